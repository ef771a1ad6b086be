"""A connection to a next hop: jobs in, events out.

The caller decides how many connections there are and which job goes over which (the scheduler); a
connection transmits its jobs in order and reports what became of each.

Log of a worker's attempts.

Entries about delivery that the processes of one queue share, each entry for a time.

DNS, as routing needs it.

Signer of mails on their way out.

MTA-STS, as routing needs it.

The addresses that a queue does not mail, by tenant."""

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Mapping,
    Sequence,
)
from datetime import timedelta
from enum import StrEnum
from typing import Protocol
from uuid import UUID

from postroad.domain.delivery.attempts import Attempted
from postroad.domain.delivery.suppressed import SuppressedAddress
from postroad.domain.mail.mail import Envelope, Outcome
from postroad.domain.mail.shapes import Shape
from postroad.domain.values.frozen import value
from postroad.routing.answers import Answer, Question
from postroad.routing.routes import ResolvedHop
from postroad.routing.securing import DomainPolicy

AtHand = Callable[[], tuple[bytes, Shape | None] | None]
"""Returns content and shape where they need not be waited for: `Item.at_hand`."""

FindShape = Callable[[], Awaitable[Shape | None]]
"""Returns the shape that acceptance found, if it is known: `Item.shape`."""


async def not_known() -> Shape | None:
    """Return the shape of a content that acceptance did not examine: None."""
    return None


def not_at_hand() -> None:
    """Return the content of a mail that is read when it is sent: None."""


@value
class Transmission:
    """A job of a connection: one mail for some recipients."""

    job: int
    """Its caller's number, unique among the jobs of the connection."""

    mail_id: UUID
    envelope: Envelope
    size_bytes: int
    content: Callable[[], AsyncGenerator[bytes, None]]
    """Opens the content, at most once and shortly before it is sent. The connection closes it."""

    shape: FindShape = not_known
    at_hand: AtHand = not_at_hand
    """Not None: the connection may send this, and open no content."""


@value
class ConnectionOpened:
    """The next hop has answered, and jobs are transmitted from now on."""


@value
class TakesSeries:
    """Mails go over the connection in series: so many jobs on it cost no more round trips than two.
    1: they go one after the other, as at first."""

    jobs: int


@value
class JobFinished:
    """Result of an attempt: an outcome for every recipient that was tried, at least for one. The
    others are beyond what the next hop takes at a time, or can have the mail, which those with an
    outcome cannot. They are to be submitted again at once, as no attempt. `delivered` stands only
    on the next hop's own positive reply after the last octet; a job whose end was sent and not
    answered is deferred, in doubt."""

    job: int
    outcomes: Mapping[str, Outcome]
    backoff: timedelta = timedelta(0)
    """For how long the next hop asks to be left alone."""

    ended_session: bool = False
    """True if the session ended over it: the next hop replied 421, or the connection was lost. That
    says as much about the next hop as a connection that could not be opened."""


@value
class ContentFailed:
    """The content of a job could not be read, so no recipient has it. No attempt was made."""

    job: int
    error: Exception


@value
class ConnectionClosed:
    """The connection has ended, or could not be opened. `untried` are its jobs without another
    event, in order: the next hop answered about none of their recipients, the end of none was sent,
    or it refused to go on (421) before it read them, and no attempt is counted. They may be
    submitted to another connection at once: each connection that opens finishes its first job, so
    this ends."""

    text: str
    """Why, as the text of an outcome. Empty: the caller closed it."""

    untried: tuple[int, ...] = ()


ConnectionEvent = ConnectionOpened | TakesSeries | JobFinished | ContentFailed | ConnectionClosed


OnEvent = Callable[[ConnectionEvent], None]

BeforeEnd = Callable[[], Awaitable[None]]
"""Awaited before the end of a mail is sent. Raises nothing."""


async def at_once() -> None:
    """Let the end of a mail be sent without a wait."""


def report_late(transmission: Transmission, on_event: OnEvent) -> None:
    """Report a job that was submitted after the end of its connection (see Connection), once the
    caller of `submit` has gone on."""
    late = ConnectionClosed("451 4.4.2 the connection has ended", (transmission.job,))
    asyncio.get_running_loop().call_soon(on_event, late)


class Connection(Protocol):
    """One connection. Its methods return at once and raise nothing; what happens is an event.

    It may wait for its first job before it opens. ConnectionOpened comes first, if at all, and
    ConnectionClosed last and once; TakesSeries comes in between whenever its number is another one.
    Each job has one event of its own before that, in the order of
    submission, or is `untried`. A job that is submitted after the end is `untried` in one more
    ConnectionClosed. Methods may be called while an event is handled."""

    def submit(self, transmission: Transmission) -> None:
        """Add a job behind the others, also before the connection is open. Where the next hop
        offers PIPELINING, its first commands go out before the mail before it is answered, and
        where it offers CHUNKING, perhaps its content."""

    def close(self) -> None:
        """Finish what is being transmitted, and close. Jobs behind it are untried, also where their
        first commands went out: nothing else is begun. Idempotent."""

    def abort(self) -> None:
        """Close at once. Idempotent."""


class Connector(Protocol):
    """Opens connections."""

    def open(
        self, hop: ResolvedHop, on_event: OnEvent, before_end: BeforeEnd = at_once
    ) -> Connection:
        """Begin to open a connection to one of the addresses of a next hop; its name is compared
        with its certificate, and looked up by the system's resolver only where it comes without
        addresses. `on_event` gets its events one after the other, the first one after this has
        returned. Needs an event loop. Raises: InvalidSettings.  The connection awaits `before_end`,
        behind the events of all earlier jobs, before the next hop can have the whole of a mail; of
        mails that go out as chunks, before it can have the last of their series."""


class AttemptLog(Protocol):
    """The attempt log of a process (domain/delivery/attempts.py)."""

    def write(
        self, attempted: Attempted, outcomes: Mapping[str, Outcome], *, given_up: bool = False
    ) -> None:
        """Write the outcomes of an attempt, before the queue records them: what the log lacks, the
        queue tries again. A kill of the process loses nothing that was written, a power cut some
        seconds. Never raises: mail goes out although the log cannot be written, which is counted
        and logged."""


class Topic(StrEnum):
    """Subject of an entry. The values are stored."""

    SUSPENSIONS = "suspensions"
    """By site: it gets no mail."""

    WORKERS = "workers"
    """By worker: the sites that it knows."""

    LIMITS = "limits"
    """By worker: the limits by rate that it has mail for."""

    REROUTES = "reroutes"
    """By site or domain: its mail goes elsewhere."""

    FLUSHES = "flushes"
    """By site: it is to be tried now."""

    FLUSHED = "flushed"
    """By worker and site: it tries the site now, and the domains that it knows of it."""

    STREAMS = "streams"
    """By stream of events: which it gets, for those who change waiting mails."""

    WATCHERS = "watchers"
    """By console: it shows outcomes as they happen, so that workers publish theirs."""

    OUTCOMES = "outcomes"
    """By worker: its last outcomes, while there are watchers."""


class SharedState(Protocol):
    """Small entries. The last one under a name counts; one that is published is seen by the
    readings that begin afterwards. A process that is killed leaves its entries until their time is
    over. No entry decides what becomes of a mail: a shared state that is lost loses no mail, and a
    power cut may lose the entries of the last seconds. Raises: ServerError."""

    async def publish(self, topic: Topic, name: str, text: str, lifetime: timedelta) -> None:
        """Publish an entry, or another one in its place, for a lifetime of a second at least."""

    async def take_down(self, topic: Topic, name: str) -> None:
        """Withdraw an entry. Idempotent."""

    async def published(self, topic: Topic) -> Mapping[str, str]:
        """Return the texts of a topic by name."""

    async def published_about(self, topics: Collection[Topic]) -> Mapping[Topic, Mapping[str, str]]:
        """Return the texts of each of these topics by name, in one request."""


class Resolver(Protocol):
    """Looks up absolute names: no search domain is ever appended. Safe to use concurrently."""

    async def look_up(self, *questions: Question) -> tuple[Answer, ...]:
        """Return what DNS answers to each question, which are asked together; CNAME records are
        followed.

        Never raises for what a server does or leaves undone. A name or a record is reported as
        missing only where a server that knows has answered so; a failure (SERVFAIL, REFUSED), a
        referral, an answer that cannot be read or none in time are `unavailable`.
        Of very many records the preferred ones are returned, the same ones each time.
        `ttl` is the shortest of the records that led to the answer; of a negative answer it is what
        its SOA record allows, and zero without one.
        The strings of a TXT record are joined. `is_validated` stands only where a name server on
        this machine calls all of the answer authentic: elsewhere its flag could be forged.
        Source: RFC 1034 3.6.2, 4.3.1, 5.3; RFC 2181 5, 8; RFC 2308 2, 5; RFC 6840 5.8."""


class Signing(Protocol):
    """One mail that is being signed."""

    def feed(self, octets: bytes) -> None:
        """Take the next octets of the mail as they are sent, in chunks of any size: with CRLF at
        the end of each line, without the dots that transparency doubles."""

    def end(self) -> bytes:
        """Return the fields that go before the mail, each ended by CRLF; empty where it cannot be
        signed. Takes up to a millisecond for each signature."""


class Signer(Protocol):
    """Signs mails with the keys that an administrator chose."""

    def begin(self, header: bytes, envelope: Envelope) -> Signing | None:
        """Begin to sign a mail with this header, in any form; None: no key does. Never raises."""


class StsPolicies(Protocol):
    """Finds the policies of domains. Safe to use concurrently."""

    async def find(self, domain: str) -> DomainPolicy:
        """Return the policy that holds for mail to a domain (in A-labels, lower case). Never raises
        for what a server does: a policy that cannot be fetched is none, and one that was fetched
        before holds until it is over, whatever DNS and the web server have meanwhile.
        Source: RFC 8461 3.1, 5.1."""


class SuppressionList(Protocol):
    """The lists of one queue. A tenant is empty for mail without one. All is durable when it
    returns, and seen by what begins afterwards, in each process. Raises: ServerError, StoreFailed,
    StoreFull, StoreDamaged."""

    async def add(self, tenant: str, entries: Sequence[SuppressedAddress]) -> None:
        """Put addresses on a list; the last entry with a token by an administrator counts, and the
        last one by refusals. What is broken off may have put some there. Expired entries may go."""

    async def remove(self, tenant: str, tokens: Collection[bytes]) -> None:
        """Take addresses off a list, all their entries. Idempotent."""

    async def find(
        self, tenant: str, tokens: Collection[bytes]
    ) -> Mapping[bytes, SuppressedAddress]:
        """Return the `strongest` entry of those listed, which may be pending or have expired."""

    def entries(self, tenant: str, after: bytes = b"") -> AsyncIterator[SuppressedAddress]:
        """Yield the entries of a list after a token, in their order, in memory for a page of it at
        most. What changes meanwhile may be in it or not."""
