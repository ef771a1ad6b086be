"""The numbers of the scheduler: connections of a destination, their age, idle time and queues, its
window. An administrator sets the number of connections. Durations are in seconds.

Source: AMB-17 for the values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType

from postroad.errors import InvalidSettings
from postroad.scheduling.jobs import Precedence


class Order(Enum):
    """Which mail gets a connection or a router next, of one precedence. Source: AMB-14; SC-9."""

    FEWEST_FIRST = "the mail with the fewest jobs at work, then the one that has waited longest"
    AS_LISTED = "the mail that arrived first; each decision costs a step a mail at its limit"


@dataclass(frozen=True, slots=True)
class ShareLimits:
    """How many jobs a mail may have at work. Source: SC-6; SC-26 (with values of its own)."""

    max_message_concurrency: int = 5
    scale_max_concurrency: float = 10.0


def _usual_limits() -> Mapping[Precedence, ShareLimits]:
    usual = dict.fromkeys(Precedence, ShareLimits())
    return MappingProxyType(usual | {Precedence.VERIFICATION: ShareLimits(10, 0.1)})


@dataclass(frozen=True, slots=True)
class SchedulerRules:
    """The limits of one worker process.

    A connection with `backlog` jobs makes another one open (SC-14); `longest_queue` bounds what
    rides free on it (AMB-23), without a bound for None; one that transmits in series may have more.
    A destination has at most
    `per_destination` connections, of which each is kept for `idle` seconds without a job, and for
    `age` seconds or `jobs_per_connection` jobs in all (SC-22). A destination that failed rests for
    `first_rest` seconds times the square of its failures, at most for `longest_rest`. It is
    forgotten `remember_broken` seconds after its rest, one that closed after `remember_closed`;
    zero leaves these records out (SC-24).

    A destination is troubled while more than half of its connections take longer than `prompt`
    seconds to open or over a job, and after a job that did.
    A new one has `first_connect` seconds to accept its first connection, and twice as long to greet
    on it, while half of all are in use.
    A connection is overdue when it has been opening for `overdue_after` seconds, or takes longer
    than `prompt` over a job. Overdue ones do not count among `connections`, as long as they are no
    more than `overdue_share` of these: so many sockets there are beside them.
    While other mail wants all connections, `least_for_troubled` of them are kept for such ones, and
    `least_for_new` for these and for destinations that have not answered yet (AMB-27); with 1.0
    for both, they are as others.
    """

    connections: int = 200
    routers: int = 50
    order: Order = Order.FEWEST_FIRST
    limits: Mapping[Precedence, ShareLimits] = field(default_factory=_usual_limits)
    per_destination: int = 20
    backlog: int = 3
    longest_queue: int | None = 6
    idle: float = 60.0
    age: float = 300.0
    jobs_per_connection: int = 1000
    first_rest: float = 15.0
    longest_rest: float = 3600.0
    remember_closed: float = 3600.0
    remember_broken: float = 3600.0
    prompt: float = 5.0
    first_connect: float = 5.0
    overdue_after: float = 1.0
    overdue_share: float = 0.5
    least_for_new: float = 0.08
    least_for_troubled: float = 0.04

    def __post_init__(self) -> None:
        numbers = (self.connections, self.routers, self.per_destination, self.backlog)
        if min(*numbers, self.jobs_per_connection) < 1:
            raise InvalidSettings("connections, routers, backlog and jobs are counts above zero")
        if self.longest_queue is not None and self.longest_queue < self.backlog:
            raise InvalidSettings("the longest queue of a connection is at least its backlog")
        durations = (self.idle, self.age, self.first_rest, self.longest_rest)
        if min(*durations, self.prompt, self.first_connect) <= 0:
            raise InvalidSettings("ages, rests and what is prompt are above zero seconds")
        if not 0 <= self.least_for_troubled <= self.least_for_new <= 1:
            raise InvalidSettings("what is kept is a share of the connections, the least last")
        if self.overdue_after <= 0 or self.overdue_share < 0:
            raise InvalidSettings(
                "overdue is what takes some time, and their share is no less than 0"
            )

    @property
    def overdue_places(self) -> int:
        """How many overdue connections do not count among the others."""
        return int(self.overdue_share * self.connections)
