"""Events of a process: to where they wait for their sender, and the sinks that settings name."""

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path

from postroad.adapters.clocks import MachineClock
from postroad.adapters.disk.event_file import EventFile
from postroad.delivery_settings.events import EventStream
from postroad.domain.delivery.attempts import Attempted
from postroad.domain.delivery.events import (
    AcceptedMail,
    EventRule,
    StreamEvent,
    accepted_events,
    attempt_events,
)
from postroad.domain.mail.mail import Envelope, Outcome
from postroad.errors import InvalidSettings
from postroad.ports.events import EventSink, EventSpool
from postroad.ports.mail_queue import MailQueue

MAX_APPENDED = 1000
"""Events that are made durable together."""


class SpooledEvents:
    """`ports.events.EventLog` over a spool: events that wait at the same time go there together.
    `rules` may be replaced at any time. Belongs to one event loop."""

    def __init__(self, spool: EventSpool, rules: Sequence[EventRule]) -> None:
        self.rules = rules
        self._spool = spool
        self._waiting: deque[StreamEvent] = deque()
        self._noted = self._durable = 0
        self._appending = asyncio.Lock()

    @property
    def is_on(self) -> bool:
        return bool(self.rules)

    def note(
        self,
        attempted: Attempted,
        envelope: Envelope,
        outcomes: Mapping[str, Outcome],
        *,
        given_up: bool = False,
    ) -> None:
        self._add(attempt_events(self.rules, attempted, envelope, outcomes, given_up=given_up))

    def note_accepted(self, accepted: AcceptedMail) -> None:
        self._add(accepted_events(self.rules, accepted))

    def _add(self, events: Iterable[StreamEvent]) -> None:
        before = len(self._waiting)
        self._waiting.extend(events)
        self._noted += len(self._waiting) - before

    async def flush(self) -> None:
        target = self._noted
        while self._durable < target:
            async with self._appending:
                if self._durable < target:
                    await self._append()

    async def _append(self) -> None:
        together = list(islice(self._waiting, MAX_APPENDED))
        await self._spool.append(together)
        for _ in together:
            self._waiting.popleft()
        self._durable += len(together)


def event_spool_of(queue: MailQueue) -> EventSpool:
    """Return where events of a queue wait. Raises: InvalidSettings for one without."""
    if queue.event_spool is None:
        raise InvalidSettings(
            f"the queue {queue.name} keeps no events",
            hint="leave out `events`, or use embedded:///DIR or distributed://NAME",
        )
    return queue.event_spool


def open_sink(
    stream: EventStream, spool: EventSpool, folder: Path, ca_file: Path | None
) -> EventSink:
    """Return where events of a stream go. `folder`: where relative paths begin. Raises:
    InvalidSettings."""
    if stream.amqp is not None:
        return spool.exchange(stream.amqp.exchange)
    if stream.file is not None:
        return EventFile(stream.file)
    from postroad.adapters.programs.event_webhook import EventWebhook  # aiohttp's client

    assert stream.webhook is not None
    assert stream.secret is not None
    assert stream.secret.file is not None
    return EventWebhook(stream.webhook, folder / stream.secret.file, ca_file, MachineClock())
