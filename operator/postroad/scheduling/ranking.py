"""The numbers of the scheduler: connections of a destination, their age, idle time and queues, its
window. An administrator sets the number of connections. Durations are in seconds.

Source: AMB-17 for the values.

Members in the order of ranks that change: each operation costs the logarithm of their number.

Shares of the system that mails may use, and the mail that gets more next.

With s as `scale_max_concurrency` and N workers, k mails without end get s*N/(1+s*k) workers each,
and 1/(1+s*k) of them stays free for the next mail. Workers are connections or routers.
Source: SC-4 to SC-9, SC-25; AMB-14, AMB-15."""

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Generic, Protocol, TypeVar

from postroad.domain.smtp.next_hops import HopTimeouts
from postroad.errors import InvalidSettings
from postroad.scheduling.events import Precedence


@dataclass(frozen=True, slots=True)
class ShareLimits:
    """Number of jobs that a mail may have at work. Source: SC-6; SC-26 (with values of its own)."""

    max_message_concurrency: int = 5
    scale_max_concurrency: float = 10.0


def _usual_limits() -> Mapping[Precedence, ShareLimits]:
    usual = dict.fromkeys(Precedence, ShareLimits())
    return MappingProxyType(usual | {Precedence.VERIFICATION: ShareLimits(10, 0.1)})


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of one destination: how many connections, how many jobs one has in all, and how many
    are opened in a minute; recipients of one job, and times, which the scheduler hands on. None: as
    `SchedulerRules` has it, or as usual."""

    connections: int | None = None
    jobs: int | None = None
    per_minute: int | None = None
    recipients: int | None = None
    timeouts: HopTimeouts | None = None


LimitsOf = Callable[[str], ConnectionLimits]
"""Returns the limits of a destination, by its name."""


def usual_limits(_: str) -> ConnectionLimits:
    """Return the limits of all where an administrator has none."""
    return ConnectionLimits()


@dataclass(frozen=True, slots=True)
class SchedulerRules:
    """The limits of one worker process.

    A connection with `backlog` jobs makes another one open (SC-14); `longest_queue` bounds what
    rides free on it (AMB-23), without a bound for None; one that transmits in series may have more.
    A destination has at most
    `per_destination` connections, of which each is kept for `idle` seconds without a job, and for
    `age` seconds or `jobs_per_connection` jobs in all (SC-22). A destination that failed backs off
    for `first_backoff` seconds times the square of its failures, at most for `max_backoff`. It is
    forgotten `remember_broken` seconds after its backoff, one that closed after `remember_closed`;
    zero leaves these records out (SC-24).

    A destination is failing while more than half of its connections take longer than `prompt`
    seconds to open or over a job, and after a job that did.
    A new one has `first_connect` seconds to accept its first connection, and twice as long to greet
    on it, while half of all are in use.
    A connection is overdue when it has been opening for `overdue_after` seconds, or takes longer
    than `prompt` over a job. Overdue ones do not count among `connections`, as long as they are no
    more than `overdue_share` of these: so many sockets there are beside them.
    While other mail wants all connections, `least_for_failing` of them are kept for such ones, and
    `least_for_new` for these and for destinations that have not answered yet (AMB-27); with 1.0
    for both, they are as others."""

    connections: int = 200
    routers: int = 50
    limits: Mapping[Precedence, ShareLimits] = field(default_factory=_usual_limits)
    per_destination: int = 20
    backlog: int = 3
    longest_queue: int | None = 6
    idle: float = 60.0
    age: float = 300.0
    jobs_per_connection: int = 1000
    first_backoff: float = 15.0
    max_backoff: float = 3600.0
    remember_closed: float = 3600.0
    remember_broken: float = 3600.0
    prompt: float = 5.0
    first_connect: float = 5.0
    overdue_after: float = 1.0
    overdue_share: float = 0.5
    least_for_new: float = 0.08
    least_for_failing: float = 0.04

    def __post_init__(self) -> None:
        numbers = (self.connections, self.routers, self.per_destination, self.backlog)
        if min(*numbers, self.jobs_per_connection) < 1:
            raise InvalidSettings("connections, routers, backlog and jobs are counts above zero")
        if self.longest_queue is not None and self.longest_queue < self.backlog:
            raise InvalidSettings("the longest queue of a connection is at least its backlog")
        durations = (self.idle, self.age, self.first_backoff, self.max_backoff)
        if min(*durations, self.prompt, self.first_connect) <= 0:
            raise InvalidSettings("ages, backoffs and what is prompt are above zero seconds")
        if not 0 <= self.least_for_failing <= self.least_for_new <= 1:
            raise InvalidSettings("what is kept is a share of the connections, the least last")
        if self.overdue_after <= 0 or self.overdue_share < 0:
            raise InvalidSettings(
                "overdue is what takes some time, and their share is no less than 0"
            )

    @property
    def overdue_places(self) -> int:
        """Number of overdue connections that do not count among the others."""
        return int(self.overdue_share * self.connections)


Member = TypeVar("Member")
Rank = tuple[float, ...]


class Ranking(Generic[Member]):
    """Members by rank, the least first; those of equal ranks in no order that means anything.

    >>> hosts = Ranking[str]()
    >>> hosts.put("a", (2,)); hosts.put("b", (1,)); hosts.put("b", (3,))
    >>> hosts.first()
    'a'
    """

    __slots__ = ("_heap", "_pushes", "_ranks")

    def __init__(self) -> None:
        # What is pushed has a number, because an entry that has become wrong may have the rank of
        # another member, and members cannot be compared.
        self._heap: list[tuple[Rank, int, Member]] = []
        self._pushes = 0
        self._ranks: dict[Member, Rank] = {}

    def __len__(self) -> int:
        return len(self._ranks)

    def __contains__(self, member: Member) -> bool:
        return member in self._ranks

    def put(self, member: Member, rank: Rank) -> None:
        """Add a member, or give it another rank."""
        if self._ranks.get(member) == rank:
            return
        self._ranks[member] = rank
        # Each entry of the heap that has become wrong was paid for when it was pushed.
        if len(self._heap) > 2 * len(self._ranks) + 8:
            self._heap = [(each, -n, owner) for n, (owner, each) in enumerate(self._ranks.items())]
            heapq.heapify(self._heap)
        else:
            self._pushes += 1
            heapq.heappush(self._heap, (rank, self._pushes, member))

    def discard(self, member: Member) -> None:
        """Take a member out, if it is there."""
        self._ranks.pop(member, None)
        if not self._ranks:
            self._heap.clear()

    def first(self) -> Member | None:
        """Return the member with the least rank; it stays."""
        heap = self._heap
        while heap:
            rank, _, member = heap[0]
            if self._ranks.get(member) == rank:
                return member
            heapq.heappop(heap)
        return None

    def first_rank(self) -> Rank | None:
        member = self.first()
        return None if member is None else self._ranks[member]

    def take_due(self, now: float) -> Member | None:
        """Take out the first member and return it, if its rank begins with `now` or less."""
        if not self._heap or self._heap[0][0][0] > now:
            return None  # of most calls: an entry that has become wrong is no later than the first
        rank = self.first_rank()
        if rank is None or rank[0] > now:
            return None
        member = self._heap[0][2]
        self.discard(member)
        return member

    def members(self) -> list[Member]:
        """Return all members, in no order that means anything."""
        return list(self._ranks)


def may_grow(working: int, limits: ShareLimits, free: int) -> bool:
    """Return whether a mail with this many jobs at work may use one more of the free workers.

    >>> may_grow(90, ShareLimits(5, 10), free=10), may_grow(91, ShareLimits(5, 10), free=9)
    (True, False)
    """
    if working < limits.max_message_concurrency:
        return True
    return working < limits.scale_max_concurrency * free


class Share:
    """Jobs that one mail has at work: its jobs on connections, those that ride free too, or those
    in routers. `number` counts mails by arrival, `turn` when a job of it last began, or its
    arrival, so that of mails with equally many the one comes first that has waited longest."""

    __slots__ = ("number", "precedence", "turn", "working")

    def __init__(self, number: int, precedence: Precedence) -> None:
        self.number = self.turn = number
        self.precedence = precedence
        self.working = 0

    @property
    def rank(self) -> Rank:
        """The share's rank among those of the same precedence. Source: AMB-14."""
        return (self.working, self.turn)


class Contender(Protocol):
    """A share, or what stands for the first of several."""

    @property
    def working(self) -> int:
        """Number of jobs the mail has at work."""

    @property
    def rank(self) -> Rank: ...


C = TypeVar("C", bound=Contender)


class Contest(Generic[C]):
    """The mails of one precedence that could use a worker if there is one."""

    __slots__ = ("_limits", "_ranking")

    def __init__(self, limits: ShareLimits) -> None:
        self._limits = limits
        self._ranking: Ranking[C] = Ranking()

    def enter(self, contender: C) -> None:
        """Add a contender, or note that its rank has changed."""
        self._ranking.put(contender, contender.rank)

    def leave(self, contender: C) -> None:
        """Take a contender out, if it is there."""
        self._ranking.discard(contender)

    def best(self, free: int) -> C | None:
        """Return the first contender that may use one of the free workers. Where the mail with the
        fewest jobs at work may not grow, no other may."""
        first = self._ranking.first()
        if first is None or not may_grow(first.working, self._limits, free):
            return None
        return first
