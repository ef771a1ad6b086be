"""Size: rows less marks, counted on the servers, partition by partition; no mail is read.

Entries at or below a purge watermark are not counted. A closed slice is counted once, and again
when its stamp has changed.

Rows less marks is wrong by one for each mark without a row, and for each mail whose replacement
stopped before its successor's row. Both are looked up where entries ended otherwise than by
delivery, so that a process that ended between two steps leaves `size` right.

Marks outlive rows, in a slice that is kept for longer than some of its rows live. It has fewer rows
then than were counted at its close; where few are left, they are read, and joined with the marks.
Where more are left, or a purge ended a part of what was counted at the close, the result is too
small by the marks whose rows expired.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial

from postroad.distributed.browse import joined
from postroad.distributed.concurrency import results
from postroad.distributed.engine import Engine
from postroad.distributed.limits_cache import Beginning
from postroad.distributed.live_slices import live_partitions
from postroad.distributed.replacement import replacement_of
from postroad.domain.entries import Entry, Traits
from postroad.domain.mail_views import Sizes
from postroad.domain.slices import Partition
from postroad.errors import ViewError
from postroad.ports.marks import Counts, PartitionStamp
from postroad.ports.view import ClosedSlice
from postroad.telemetry import metrics

REMEMBERED = timedelta(hours=1)
"""How long a count is kept at most: rows that expire change no stamp, nor does a writer whose clock
is far off."""

FEW = 10_000
"""Rows of a partition that a count may read; with more, an operator that asks every half minute
would read without end."""


@dataclass(frozen=True, slots=True)
class _Counted:
    stamp: PartitionStamp
    live: Counts
    until: timedelta


@dataclass(slots=True)
class KeptCounts:
    """What the counts of a queue leave for the next ones, whichever engine makes those: the closed
    slices, and the dead letters with how long their number stands."""

    closed: dict[Partition, _Counted] = field(default_factory=dict)
    dead_letters: int = 0
    dead_letters_until: timedelta | None = None


class SizeCache:
    """Counts what waits, and caches the counts of closed slices."""

    def __init__(self, engine: Engine, kept: KeptCounts | None = None) -> None:
        self._engine = engine
        self._kept = kept or KeptCounts()

    async def get(self) -> Sizes:
        """Count the mails that wait. Raises: ViewError, ConfigurationStale."""
        engine = self._engine
        began = await engine.limits_cache.begin()
        if began.browse_start is None:
            return Sizes(0, 0, 0, await self._count_letters())
        self._forget_before(began.browse_start)
        counted, dead_letters = await asyncio.gather(self._count_from(began), self._count_letters())
        return Sizes(counted.total, counted.delayed, counted.held, dead_letters)

    def forget(self) -> None:
        """Count everything anew the next time."""
        self._kept.closed.clear()
        self._kept.dead_letters_until = None

    async def _count_from(self, began: Beginning) -> Counts:
        total = delayed = held = 0
        waiting = live_partitions(self._engine, began)
        async for each in results(waiting, partial(self._live, began.at)):
            total, delayed, held = total + each.total, delayed + each.delayed, held + each.held
        return Counts(total, delayed, held)

    async def _live(self, now: datetime, where: tuple[Partition, ClosedSlice | None]) -> Counts:
        """Count a partition, or return its cached count: once none of its mails is delayed any
        more, it only changes with its marks. (A successor that was given up gets its row and its
        mark at any time; the mark changes the stamp.)"""
        engine = self._engine
        partition, closed = where
        stamp = await engine.view.stamp(partition)
        known = self._kept.closed.get(partition)
        if known and known.stamp == stamp and engine.clock.elapsed() < known.until:
            return known.live
        live, is_settled = await self._count(partition, closed, stamp, now)
        if (
            closed is not None
            and is_settled
            and not live.delayed
            and stamp.settled(now - 3 * engine.timing.skew)
        ):
            until = engine.clock.elapsed() + REMEMBERED
            self._kept.closed[partition] = _Counted(stamp, live, until)
        return live

    async def _count(
        self, partition: Partition, closed: ClosedSlice | None, stamp: PartitionStamp, now: datetime
    ) -> tuple[Counts, bool]:
        """Count what waits, and whether that can only change together with the stamp: a replacement
        under way ends without a further mark.

        Marks are counted first: every mark has its row by then, so no count is ever negative.
        """
        view = self._engine.view
        marks = await view.count_marks(partition, now, stamp.purged)
        rows = await view.count_rows(partition, now, stamp.purged)
        missing, is_settled = await self._unfinished(partition, stamp)
        counted_then = 0 if closed is None else closed.rows.get(partition.bucket_id, 0)
        have_expired = stamp.purged is None and rows.total < counted_then
        if have_expired and marks.total and rows.total <= FEW:
            rows, marks = await self._unmarked(partition, now), Counts(0, 0, 0)
        elif stamp.ended is not None:
            withdrawn = view.withdrawn_without_rows(partition, stamp.purged)
            missing += [each async for each in withdrawn]
        more = Counts.of(missing, now)
        live = Counts(
            total=max(rows.total - marks.total + more.total, 0),
            delayed=max(rows.delayed - marks.delayed + more.delayed, 0),
            held=max(rows.held - marks.held + more.held, 0),
        )
        return live, is_settled

    async def _unmarked(self, partition: Partition, now: datetime) -> Counts:
        """Count the rows that have no mark, by reading both. A row that cannot be decoded counts as
        neither delayed nor held."""
        total = delayed = held = 0
        async for row, mark in joined(self._engine.view, [partition], None):
            if mark is None:
                one = Counts.of([row.traits if isinstance(row, Entry) else Traits(())], now)
                total, delayed, held = total + 1, delayed + one.delayed, held + one.held
        return Counts(total, delayed, held)

    async def _unfinished(
        self, partition: Partition, stamp: PartitionStamp
    ) -> tuple[list[Traits], bool]:
        """Return the mails whose replacements stopped before their successors' rows, and whether no
        replacement is under way."""
        if stamp.ended is None:
            return [], True
        view, is_settled = self._engine.view, True
        missing: list[Traits] = []
        async for mark, traits in view.unfinished(partition, stamp.purged):
            if not mark.is_unfinished_replacement:
                continue  # undecodable: nothing waits under it
            is_settled = False
            successor, change = replacement_of(mark)
            if await view.row(successor) is not None:
                continue
            after = await view.mark(successor)
            waits = after is None and mark.is_live
            has_mark_alone = after is not None and after.delivered_at is not None
            if waits or has_mark_alone:
                missing.append(Traits(traits.domains, change.due_at, change.held))
        return missing, is_settled

    def _forget_before(self, first: datetime) -> None:
        closed = self._kept.closed
        for partition in [each for each in closed if each.slice_start < first]:
            del closed[partition]

    async def _count_letters(self) -> int | None:
        """Count dead letters; None where the view does not answer: waiting mail is counted still.
        A count is repeated after ten times its duration, so that counting takes at most a tenth of
        the view's time."""
        engine, known, began = self._engine, self._kept, self._engine.clock.elapsed()
        if known.dead_letters_until is not None and began < known.dead_letters_until:
            return known.dead_letters
        try:
            known.dead_letters = await engine.view.count_letters()
        except ViewError as error:
            metrics.UNCOUNTED.labels(engine.label).inc()
            engine.log.warning("the dead letters could not be counted", error=error.explain())
            return None
        now = engine.clock.elapsed()
        known.dead_letters_until = now + 10 * (now - began)
        return known.dead_letters
