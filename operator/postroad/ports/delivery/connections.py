"""A connection to a next hop: jobs in, events out.

The caller decides how many connections there are and which job goes over which (the scheduler); a
connection transmits its jobs in order and reports what became of each.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol
from uuid import UUID

from postroad.domain.mail.mail import Envelope, Outcome
from postroad.domain.mail.shapes import Shape
from postroad.routing.routes import ResolvedHop

AtHand = Callable[[], tuple[bytes, Shape | None] | None]
"""Returns content and shape where they need not be waited for: `Item.at_hand`."""

FindShape = Callable[[], Awaitable[Shape | None]]
"""Returns the shape that acceptance found, if it is known: `Item.shape`."""


async def not_known() -> Shape | None:
    """Return the shape of a content that acceptance did not examine: None."""
    return None


def not_at_hand() -> None:
    """Return the content of a mail that is read when it is sent: None."""


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class ConnectionOpened:
    """The next hop has answered, and jobs are transmitted from now on."""


@dataclass(frozen=True, slots=True)
class TakesSeries:
    """Mails go over the connection in series: so many jobs on it cost no more round trips than two.
    1: they go one after the other, as at first."""

    jobs: int


@dataclass(frozen=True, slots=True)
class JobFinished:
    """What an attempt came to: an outcome for every recipient that was tried, at least for one.

    The others are beyond what the next hop takes at a time, or can have the mail, which those with
    an outcome cannot. They are to be submitted again at once, as no attempt. `delivered` stands
    only on the next hop's own positive reply after the last octet; a job whose end was sent and not
    answered is deferred, in doubt.
    """

    job: int
    outcomes: Mapping[str, Outcome]
    rest: timedelta = timedelta(0)
    """For how long the next hop asks to be left alone."""

    ended_session: bool = False
    """Whether the session ended over it: the next hop replied 421, or the connection was lost. That
    says as much about the next hop as a connection that could not be opened."""


@dataclass(frozen=True, slots=True)
class ContentFailed:
    """The content of a job could not be read, so no recipient has it. No attempt was made."""

    job: int
    error: Exception


@dataclass(frozen=True, slots=True)
class ConnectionClosed:
    """The connection has ended, or could not be opened.

    `unsaid` are its jobs without another event, in their order: the next hop answered about none of
    their recipients, the end of none was sent, or it refused to go on (421) before it read them,
    and no attempt is counted. They may be submitted to
    another connection at once: each connection that opens finishes its first job, so this ends.
    """

    text: str
    """Why, as the text of an outcome. Empty: the caller closed it."""

    unsaid: tuple[int, ...] = ()


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
    submission, or is `unsaid`. A job that is submitted after the end is `unsaid` in one more
    ConnectionClosed. Methods may be called while an event is handled.
    """

    def submit(self, transmission: Transmission) -> None:
        """Add a job behind the others, also before the connection is open. Where the next hop
        offers PIPELINING, its first commands go out before the mail before it is answered, and
        where it offers CHUNKING, perhaps its content."""
        ...

    def close(self) -> None:
        """Finish what is being transmitted, and close. Jobs behind it are unsaid, also where their
        first commands went out: nothing else is begun. Idempotent."""
        ...

    def abort(self) -> None:
        """Close at once. Idempotent."""
        ...


class Connector(Protocol):
    """Opens connections."""

    def open(
        self, hop: ResolvedHop, on_event: OnEvent, before_end: BeforeEnd = at_once
    ) -> Connection:
        """Begin to open a connection to one of the addresses of a next hop; its name is compared
        with its certificate, and looked up by the system's resolver only where it comes without
        addresses. `on_event` gets its events one after the other, the
        first one after this has returned. Needs a running event loop. Raises: InvalidSettings.

        The connection awaits `before_end`, behind the events of all earlier jobs, before the next
        hop can have the whole of a mail; of mails that go out as chunks, before it can have the
        last of their series."""
        ...
