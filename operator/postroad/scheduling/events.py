"""Events and decisions of a scheduler.

A connection and a job are named by their numbers: a job's is its caller's, a connection's is
the scheduler's.

Jobs that are scheduled: addresses to look up, and recipients to deliver to.

Source: SC-1, SC-2."""

from enum import IntEnum

from postroad.domain.values.frozen import value
from postroad.errors import InvalidInput


class Precedence(IntEnum):
    """Order of mails that go first where several wait, the least first. Each has share limits of
    its own. Source: SC-26 (verifications)."""

    VERIFICATION = 0
    TRANSACTIONAL = 1
    ORDINARY = 2
    BULK = 3


def precedence_of(mail: str | None, priority: int) -> Precedence:
    """Return the precedence of a mail with this priority; no mail is a verification.

    >>> precedence_of("a newsletter", -10).name
    'BULK'
    """
    if mail is None:
        return Precedence.VERIFICATION
    if priority > 0:
        return Precedence.TRANSACTIONAL
    return Precedence.BULK if priority < 0 else Precedence.ORDINARY


@value
class Site:
    """The destinations that serve the same recipients, most preferred tier first. Jobs with equal
    sites share connections; sites may have destinations in common."""

    tiers: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        if not self.tiers or not all(self.tiers):
            raise InvalidInput("a site has a tier, and each tier has a destination")


@value
class LookupJob:
    """One address to look up. `number` is unique among those that are under way; `mail` is None
    for a verification."""

    number: int
    mail: str | None
    priority: int = 0


@value
class DeliveryJob:
    """Those recipients of one mail that have the same site. `number` is unique among the jobs in
    the scheduler; `mail` is None for a verification. A mail has one priority."""

    number: int
    mail: str | None
    site: Site
    priority: int = 0


@value
class LookupRequested:
    """An address is to be looked up."""

    job: LookupJob


@value
class LookupFinished:
    """A lookup is over, well or not."""

    job: int


@value
class Submitted:
    """A job is to be delivered."""

    job: DeliveryJob


@value
class Withdrawn:
    """A job is to be delivered no more: it waits, or the connection that has it transmits nothing
    of it. That is neither a success nor a failure of its destination."""

    job: DeliveryJob


@value
class Finished:
    """A connection has the outcome of a job for each recipient. `ended_session`: no success of its
    destination, which ended the session over it."""

    job: int
    ended_session: bool = False


@value
class Established:
    """The destination of a connection has answered."""

    connection: int


@value
class ConnectionPaused:
    """A connection waits for this side, or goes on where not `is_held`. How long that took says
    nothing about its destination."""

    connection: int
    is_held: bool


@value
class Pipelined:
    """A connection transmits jobs in series, so that its queue may be so long, where that is more
    than other connections have. Source: AMB-23; ADR 0066."""

    connection: int
    jobs: int


@value
class NotOpened:
    """A connection could not be opened."""

    connection: int


@value
class Closed:
    """The peer closed a connection. Its jobs that are not reported as finished are scheduled
    again, so a job whose outcome is unknown is reported first."""

    connection: int


@value
class BackoffReported:
    """Another process found a destination broken until this instant: here too, at most for the
    longest backoff. Source: SC-23; AMB-19."""

    destination: str
    until: float


@value
class BackoffRequested:
    """A destination asks for no mail until this instant."""

    destination: str
    until: float


@value
class BackoffCleared:
    """A destination is to be tried now, as if it had never failed: an administrator asks for it."""

    destination: str


@value
class Tick:
    """Time has passed: `Scheduler.next_moment` has come."""


Event = (
    LookupRequested | LookupFinished | Submitted | Withdrawn | Finished | Established
    | ConnectionPaused | Pipelined | NotOpened | Closed
    | BackoffReported | BackoffRequested | BackoffCleared | Tick
)  # fmt: skip


@value
class StartLookup:
    """Look an address up; report `LookupFinished`."""

    job: int


@value
class OpenConnection:
    """Open a connection; report `Established` or `NotOpened`. Jobs are assigned before that.
    `within`: for how many seconds an address is tried, and half of those in which it has to greet;
    None: as long as usual."""

    connection: int
    destination: str
    within: float | None = None


@value
class Assign:
    """Add a job to what a connection transmits, in this order; report `Finished`."""

    job: int
    connection: int


@value
class CloseConnection:
    """Close a connection that has no job. What it reports after that is ignored."""

    connection: int


@value
class Defer:
    """Give a job back, to be submitted again at this instant: all its destinations back off. No
    attempt was made."""

    job: int
    until: float


@value
class BackOff:
    """Let other processes hear that a destination is broken. Source: SC-23; AMB-19."""

    destination: str
    until: float


Decision = StartLookup | OpenConnection | Assign | CloseConnection | Defer | BackOff
