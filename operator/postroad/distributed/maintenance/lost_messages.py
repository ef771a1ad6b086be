"""Maintenance gives mails without a message a new one, as `republish` does.

A mail that has its message after all is only replaced: claims and marks prevent a second delivery.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from uuid import UUID

from postroad.distributed.engine.engine import Engine
from postroad.distributed.engine.timing import count
from postroad.distributed.entries import replacement
from postroad.distributed.entries.endings import MailErrors
from postroad.distributed.reading.browse import waiting
from postroad.domain.queues.entries import Change, Entry
from postroad.domain.queues.lost_messages import LostMessageDetector, MessageCount, Messages
from postroad.errors import ClockSkew, ServerError
from postroad.telemetry import metrics

REPAIRER = UUID(int=2)
"""Id that the process that gives new messages claims; no entry has this id."""

CLAIMED = timedelta(minutes=15)
"""Lifetime of that claim: longer than from one count to the next, which renews it."""

MAX_ROUND = timedelta(minutes=5)
"""Time for which one round gives new messages, because the rest of maintenance waits meanwhile. The
next round continues."""


class LostMessages:
    """Compares the broker's messages with the mails that wait, from one round to the next."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._detector = LostMessageDetector()
        self._owner = UUID(int=engine.randomness.bits(128))

    async def count_messages(self, now: datetime) -> MessageCount:
        """Count the broker's messages, before any waiting mail is counted. `now` is not later.
        Raises: nothing."""
        timing = self._engine.timing
        # Entries before this have been published or withdrawn, and a replacement of theirs that
        # stopped is seen by maintenance.
        before = now - timing.deadline - timing.grace
        return self._detector.begin(await self._messages(), before)

    async def repair(self, counted: MessageCount, errors: MailErrors) -> None:
        """Give new messages where some were missing for long; by one process at a time, and by none
        with a wrong clock, which can make no entries. Raises: ServerError, ConfigurationStale."""
        engine = self._engine
        wanted = self._detector.decide(counted)
        if not wanted:
            return
        if not await self._may_repair():
            self._detector.defer()
            return
        engine.log.warning(
            "the broker has fewer messages than mails wait: the oldest get new ones",
            missing=counted.missing,
            count=wanted,
        )

        async def repair(entry: Entry) -> int:
            with errors.of(entry.enqueue_id):
                if await replacement.replace(engine, entry, Change.nothing(entry)) is None:
                    metrics.REPUBLISHED.labels(*engine.labels).inc()
                    return 1
            return 0

        self._detector.repaired(counted, await count(self._oldest(counted, wanted), repair))

    async def _may_repair(self) -> bool:
        try:
            await self._engine.limits_cache.check_clock()
        except ClockSkew:
            return False
        return await self._engine.view.claim(REPAIRER, self._owner, CLAIMED)

    async def _oldest(self, counted: MessageCount, wanted: int) -> AsyncIterator[Entry]:
        """Yield the oldest entries that were counted, for at most `MAX_ROUND`."""
        engine = self._engine
        until = engine.clock.elapsed() + MAX_ROUND
        async for each in waiting(engine, await engine.limits_cache.begin()):
            if each.mark is None and counted.lacks(each.row):
                yield each.row
                wanted -= 1
            if not wanted or engine.clock.elapsed() > until:
                return

    async def _messages(self) -> Messages | None:
        try:
            depths = await self._engine.broker.depths()
        except ServerError as error:
            self._engine.log.debug("messages were not counted", error=type(error).__name__)
            return None
        if depths.leased is None:
            return None
        return Messages(depths.work + depths.dead, depths.delayed, depths.leased)
