"""Streams of events: where they are kept until they are sent, and to what they are sent."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from enum import Enum, auto
from typing import NamedTuple, Protocol

from postroad.domain.delivery.attempts import Attempted
from postroad.domain.delivery.events import AcceptedMail, ReturnedReport, StreamEvent
from postroad.domain.mail.mail import Envelope, Outcome


class EventLog(Protocol):
    """The events of one process, on their way to where they are kept."""

    @property
    def is_on(self) -> bool:
        """True if there is a stream."""

    def note(
        self,
        attempted: Attempted,
        envelope: Envelope,
        outcomes: Mapping[str, Outcome],
        *,
        given_up: bool = False,
    ) -> None:
        """Note the events of an attempt. Returns at once."""

    def note_accepted(self, accepted: AcceptedMail) -> None:
        """Note the events of a mail that was accepted. Returns at once."""

    def note_returned(self, report: ReturnedReport) -> None:
        """Note the events of a report that came back. Returns at once."""

    async def flush(self) -> None:
        """Return when all that was noted before is durable. After an error it is noted still.
        Raises: ServerError, StoreFailed, StoreFull."""


class WaitingEvent(NamedTuple):
    """An event that was not sent yet. `done` ends it; the others of its batch may go on."""

    body: bytes
    done: Callable[[], Awaitable[None]]


class EventSpool(Protocol):
    """Keeps the events of a queue, those of each stream by itself, until they are sent. Safe to use
    concurrently, also by several processes. Raises: ServerError, StoreFailed, StoreFull."""

    async def append(self, events: Sequence[StreamEvent]) -> None:
        """Keep events, in their order. Durable when it returns; after an error some may be kept.
        Raises: StreamRefused where those of one stream cannot be kept; then none are."""

    def batches(self, stream: str) -> AsyncGenerator[Sequence[WaitingEvent], None]:
        """Yield events of a stream, the oldest first, at most MAX_BATCH together; wait for some.
        The caller ends all of a batch before it asks for the next one, or closes the generator:
        then those that are left come again, first. One process at a time gets those of a stream,
        the others wait. A crash repeats those that were done last."""

    def exchange(self, name: str) -> EventSink:
        """Return what sends to an exchange of the broker that keeps the events. No I/O. Raises:
        InvalidSettings where no broker does."""

    async def is_beyond(self, stream: str, most: int) -> bool:
        """Return whether more than so many events of a stream wait."""


MAX_BATCH, MAX_AT_ONCE = 64, 16
"""Events that a sender has, and requests to a sink at the same time."""

MAX_WAITING = 100_000
"""Events of a stream that are kept. Beyond it the oldest go, since what is new is of more use."""


class SinkVerdict(Enum):
    """Fate of an event: the sink has it, refuses it for good, or may have it later."""

    TAKEN = auto()
    REFUSED = auto()
    LATER = auto()


class SinkReply(NamedTuple):
    """Reply of a sink. `reason`: in words without an address. `pause`: for how long it asks to be
    left alone."""

    verdict: SinkVerdict
    reason: str = ""
    pause: timedelta = timedelta(0)


class EventSink(Protocol):
    """Gets the events of one stream."""

    async def send(self, event_id: str, body: bytes) -> SinkReply:
        """Send an event. Raises nothing that a sink does or leaves undone."""

    async def close(self) -> None:
        """Close its connections. Idempotent."""
