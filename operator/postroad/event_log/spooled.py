"""Events of a process, on their way to where they wait for their sender."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import islice
from math import inf
from typing import TypeVar

from postroad.domain.delivery.attempts import Attempted
from postroad.domain.delivery.events import (
    AcceptedMail,
    ChangedMail,
    EventRule,
    ReturnedReport,
    StreamEvent,
    accepted_events,
    attempt_events,
    changed_events,
    returned_events,
)
from postroad.domain.mail.mail import Envelope, Outcome
from postroad.errors import StreamRefused
from postroad.ports.events import EventSpool
from postroad.telemetry.logs import logger
from postroad.telemetry.metrics import EVENTS, of_queue

T = TypeVar("T")

_log = logger("events")

MAX_APPENDED = 1000
"""Events that are made durable together."""

MAX_LEFT = 10_000
"""Events of accepted mail that are in memory although their clients have their replies. Beyond it
the oldest go."""

LOG_SECONDS = 10
"""Of two log lines about it."""

REFUSED_SECONDS = 10.0
"""For which a stream that the broker refuses is not tried again."""


class SpooledEvents:
    """`ports.events.EventLog` over a spool: events that wait at the same time go there together.
    `rules` may be replaced at any time. Belongs to one event loop."""

    def __init__(self, spool: EventSpool, rules: Sequence[EventRule], queue: str) -> None:
        self.rules = rules
        self._queue = queue
        self._refused: dict[str, float] = {}
        self._spool = spool
        self._waiting: dict[int, StreamEvent] = {}
        """By their numbers, and in their order."""

        self._accepted: deque[int] = deque()
        """Numbers of those of accepted mail, and of reports."""

        self._noted = self._durable = 0
        self._appending: asyncio.Task[None] | None = None
        self._unlogged, self._logged_at = 0, -inf

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
        self._add_of_client(accepted_events(self.rules, accepted))

    def note_returned(self, report: ReturnedReport) -> None:
        self._add_of_client(returned_events(self.rules, report))

    async def keep_changed(self, operation: str, changed: ChangedMail, moment: datetime) -> None:
        """Note the events of an operation on a mail; let them be durable when many were noted."""
        self._add(changed_events(self.rules, self._queue, operation, changed, moment))
        if self._noted - self._durable >= MAX_APPENDED:
            await self.flush()

    def _add_of_client(self, events: Iterable[StreamEvent]) -> None:
        before = self._noted
        self._add(events)
        self._accepted.extend(range(before + 1, self._noted + 1))

    def _add(self, events: Iterable[StreamEvent]) -> None:
        for each in events:
            self._noted += 1
            self._waiting[self._noted] = each

    async def flush(self) -> None:
        target = self._noted
        try:
            while self._durable < target:
                if self._appending is None or self._appending.done():
                    self._appending = asyncio.create_task(self._append())
                # Shielded: what is cancelled may be kept all the same, and would be so twice.
                await asyncio.shield(self._appending)
        except BaseException:
            self._drop_oldest(target)
            raise

    async def _append(self) -> None:
        together = dict(islice(self._waiting.items(), MAX_APPENDED))
        await self._keep(list(together.values()))
        self._durable = max(together, default=self._noted)
        for each in together:
            self._waiting.pop(each, None)
        while self._accepted and self._accepted[0] <= self._durable:
            self._accepted.popleft()

    def _drop_oldest(self, target: int) -> None:
        """Drop events of accepted mail, up to a number: those of outcomes keep back their mail."""
        dropped: list[StreamEvent] = []
        while len(self._accepted) > MAX_LEFT and self._accepted[0] <= target:
            dropped.append(self._waiting.pop(self._accepted.popleft()))
            EVENTS.labels(*of_queue(self._queue), dropped[-1][0], "full").inc()
        self._unlogged += len(dropped)
        now = asyncio.get_running_loop().time()
        if dropped and now - self._logged_at >= LOG_SECONDS:
            streams, first = sorted({each[0] for each in dropped}), str(dropped[0][1])
            _log.error(
                "events dropped", streams=streams, count=self._unlogged, result="full", first=first
            )
            self._unlogged, self._logged_at = 0, now

    async def _keep(self, events: Sequence[StreamEvent]) -> None:
        """Make events durable. Those of a stream that was taken out, or that the broker refuses,
        are dropped: they would hold up the outcomes of all mail."""
        now, declared = asyncio.get_running_loop().time(), {each.name for each in self.rules}
        left = [each for each in events if each[0] in declared]
        refused = {each for each, until in self._refused.items() if until > now}
        while True:
            for stream, number in Counter(each for each, _, _ in left if each in refused).items():
                EVENTS.labels(*of_queue(self._queue), stream, "refused").inc(number)
            left = [each for each in left if each[0] not in refused]
            try:
                if left:
                    await self._spool.append(left)
            except StreamRefused as error:
                if error.stream not in self._refused:
                    names = {"queue": self._queue, "stream": error.stream}
                    _log.error("events of a stream are dropped", **names, error=error.explain())
                self._refused[error.stream] = now + REFUSED_SECONDS
                refused = {error.stream}
            else:
                break
        for stream in {each for each, _, _ in left}:
            self._refused.pop(stream, None)
