"""Size: rows less marks, counted on the servers, partition by partition; no mail is read.

What a purge has passed is not counted at all. A closed slice is counted once, and again when the
signs of its marks have changed.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime, timedelta

from postroad.domain.slices import Partition
from postroad.mailqueue.browse import readable
from postroad.mailqueue.engine import Engine
from postroad.ports.queue import Sizes
from postroad.ports.view import Counts, Signs

AT_ONCE = 16
"""Partitions counted at the same time."""

REMEMBERED = timedelta(hours=1)
"""How long signs are believed at most: rows that expired leave none, nor does a writer whose clock
is far off."""


@dataclass(frozen=True, slots=True)
class _Counted:
    signs: Signs
    live: Counts
    until: timedelta


class SizeCache:
    """Counts what waits, and remembers closed slices."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._closed: dict[Partition, _Counted] = {}

    async def get(self) -> Sizes:
        """Count the mails that wait. Raises: ViewError, ConfigurationStale."""
        engine, now = self._engine, self._engine.clock.now()
        first = (await engine.bearings.refresh()).browse_start
        if first is None:
            return Sizes(0, 0, 0, await engine.view.count_buried())
        closed = {each.slice_start: each async for each in engine.view.closed_slices(first)}
        self._forget_before(first)
        turnstile = asyncio.Semaphore(AT_ONCE)
        counting = [
            self._live(Partition(start, bucket), now, turnstile, is_closed=start in closed)
            for start, buckets in readable(engine, first, now + engine.timing.skew)
            if start not in closed or not closed[start].drained
            for bucket in range(buckets)
        ]
        counted, dead_letters = await asyncio.gather(
            asyncio.gather(*counting), engine.view.count_buried()
        )
        return Sizes(
            size=sum(each.total for each in counted),
            delayed=sum(each.delayed for each in counted),
            held=sum(each.held for each in counted),
            dead_letters=dead_letters,
        )

    def forget(self) -> None:
        """Count everything anew the next time."""
        self._closed.clear()

    async def _live(
        self, partition: Partition, now: datetime, turnstile: asyncio.Semaphore, *, is_closed: bool
    ) -> Counts:
        """Count a partition, or remember its count: as soon as none of its mails is delayed any
        more, it only changes with its marks. (A successor that was given up gets its row and its
        mark at any time; the mark shows.)"""
        engine = self._engine
        async with turnstile:
            signs = await engine.view.signs(partition)
            known = self._closed.get(partition)
            if known and known.signs == signs and engine.clock.elapsed() < known.until:
                return known.live
            live = await self._count(partition, signs, now)
            if is_closed and not live.delayed and signs.settled(now - 3 * engine.timing.skew):
                until = engine.clock.elapsed() + REMEMBERED
                self._closed[partition] = _Counted(signs, live, until)
            return live

    async def _count(self, partition: Partition, signs: Signs, now: datetime) -> Counts:
        """Marks are counted first: every mark has its row by then, so no count is ever negative."""
        view = self._engine.view
        marks = await view.count_marks(partition, now, signs.purged)
        rows = await view.count_rows(partition, now, signs.purged)
        # Only rows that are older than their lifetime can be fewer than their marks, which are
        # younger.
        return Counts(
            total=max(rows.total - marks.total, 0),
            delayed=max(rows.delayed - marks.delayed, 0),
            held=max(rows.held - marks.held, 0),
        )

    def _forget_before(self, first: datetime) -> None:
        for partition in [each for each in self._closed if each.slice_start < first]:
            del self._closed[partition]
