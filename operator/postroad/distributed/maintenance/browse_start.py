"""Browse start moves forward over drained slices, in order.

It never passes the current slice nor the grace period, because only closed slices are passed, and
only moves forward, because the limit is written with its own value as timestamp (invariant 5).
Source: 000 Decision (browseStart).

Where a mail that waits stops it, the later slices are checked too, now and then: reads of waiting
mail skip a slice that is marked drained, and its rows no longer look vanished when they expire."""

from collections.abc import AsyncIterator
from datetime import datetime, timedelta

from postroad.distributed.engine.engine import Engine
from postroad.distributed.entries.live_slices import TOGETHER, Slice, standing, with_rows
from postroad.distributed.maintenance.drain_check import (
    SliceState,
    check_drained,
    closable_until,
    close,
)
from postroad.errors import PostroadError
from postroad.ports.marks import PartitionVersion
from postroad.ports.view import Effective
from postroad.telemetry import metrics

AT_MOST = 100_000
"""Slices that one run checks; the next run continues."""

BEYOND = timedelta(minutes=10)
"""Interval at which the slices beyond the first one with waiting mail are checked."""


class BrowseStartAdvance:
    """Moves browse start; at most one at a time in a process."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._running = False
        self._closed_until: datetime | None = None
        self._beyond_due = timedelta(0)
        self._live: dict[datetime, tuple[PartitionVersion, ...]] = {}
        """Slices in which mail waits and no replacement is under way, with the versions of their
        partitions, read before the rows: valid until a version changes."""
        self._vanished: dict[datetime, int] = {}

    def draw(self) -> None:
        """Begin to advance in the background, with probability 1 / pace."""
        engine = self._engine
        if self._running or engine.closed:
            return
        try:
            pace = engine.configuration.effective().writing.update_browse_start_pace
        except PostroadError:
            return  # stale; a process with a fresh one advances
        if engine.randomness.uniform() * pace < 1:
            engine.in_background(self._try())

    async def _try(self) -> None:
        try:
            await self.run()
        except PostroadError as error:  # the next draw, or maintenance, tries again
            self._engine.log.debug("browse start stays for now", error=type(error).__name__)

    async def run(self) -> None:
        """Close slices that are over, then pass drained ones. Raises: ServerError, ClockSkew,
        ConfigurationStale."""
        if self._running:
            return
        self._running = True
        try:
            await self._run()
        finally:
            self._running = False

    async def _run(self) -> None:
        engine = self._engine
        first = (await engine.limits_cache.refresh()).browse_start
        if first is None:
            return
        await engine.limits_cache.check_clock()  # to a clock that is ahead, open slices look closed
        effective = engine.configuration.effective()
        self._forget_before(first)
        last = closable_until(engine, await engine.limits_cache.earliest_now())
        await self._close_new(first, last)
        stopped = await self._pass(first, last, effective)
        if stopped is not None:
            await self._check_beyond(stopped, last, effective)

    async def _pass(self, first: datetime, last: datetime, effective: Effective) -> datetime | None:
        """Move browse start; return the slice that it cannot pass, None where it can pass all."""
        engine = self._engine
        passed: datetime | None = None
        stopped: datetime | None = None
        gone_over = 0
        async for slice_ in self._in_order(first, last):
            # The start of a slice is safe only once all slices before it are drained.
            passed = slice_.start if gone_over else None
            gone_over += 1
            if not await self._is_drained(slice_):
                stopped = slice_.start
                break
            if gone_over > AT_MOST:
                break
        if passed is not None:
            engine.check_still(effective)
            await engine.view.advance(browse_start=passed)
            await engine.limits_cache.refresh()
            engine.log.debug("browse start moved", slice=passed.isoformat())
        return stopped

    async def _in_order(self, first: datetime, last: datetime) -> AsyncIterator[Slice]:
        """Yield slices; one without a record had no rows when all before it were drained. A slice
        that was empty earlier is read again here, because a successor's row may have come late, by
        a write that the view had delayed; its predecessor's mark is final by now."""
        async for run in _runs(standing(self._engine, first, last)):
            occupied = {each.start for each in await with_rows(self._engine, _unrecorded(run))}
            for slice_ in run:
                if slice_.start in occupied:
                    yield Slice(slice_.start, slice_.buckets, await close(self._engine, slice_))
                else:
                    yield slice_

    async def _is_drained(self, slice_: Slice) -> bool:
        if slice_.closed is None or slice_.closed.drained:
            return True
        found = await check_drained(self._engine, slice_, slice_.closed)
        self._note(slice_, found.missing)
        if found.state is not SliceState.DRAINED:
            return False
        await self._engine.view.mark_drained(slice_.start)
        return True

    async def _close_new(self, first: datetime, last: datetime) -> None:
        """Close slices that this process has not read yet. Sooner is better: rows that vanish
        before the close are not missed."""
        first = max(first, self._closed_until or first)
        gone_over = 0
        async for run in _runs(standing(self._engine, first, last)):
            await self._close(run)
            self._closed_until = run[-1].start
            gone_over += len(run)
            if gone_over > AT_MOST:
                break

    async def _close(self, run: list[Slice]) -> list[Slice]:
        """Return the slices of a run that have a record now."""
        occupied = {each.start for each in await with_rows(self._engine, _unrecorded(run))}
        return [
            Slice(each.start, each.buckets, each.closed or await close(self._engine, each))
            for each in run
            if each.closed is not None or each.start in occupied
        ]

    async def _check_beyond(self, first: datetime, last: datetime, effective: Effective) -> None:
        """Mark the drained slices beyond one that is not. A row may still come into such a slice
        while a replacement in an earlier one is under way: its successor's, written late. So all
        slices from browse start on are read whole, in order, after `last` was taken: a replacement
        that is not seen then has its successor in a slice that was not closable yet. A replacement
        that cannot be finished keeps the slice of its successor unmarked."""
        engine = self._engine
        if engine.clock.elapsed() < self._beyond_due:
            return
        self._beyond_due = engine.clock.elapsed() + BEYOND
        doubtful: set[datetime] = set()
        undrained: set[datetime] = set()
        async for run in _runs(standing(engine, first, last)):
            for slice_ in await self._close(run):
                closed = slice_.closed
                if closed is None or closed.drained:
                    continue
                undrained.add(slice_.start)
                if await self._is_still_live(slice_):
                    continue
                found = await check_drained(engine, slice_, closed, whole=True)
                self._note(slice_, found.missing)
                if found.is_unknown:
                    return  # its successor's row may come into any slice
                doubtful |= found.doubtful
                if found.state is SliceState.DRAINED and slice_.start not in doubtful:
                    engine.check_still(effective)
                    await engine.view.mark_drained(slice_.start)
                elif found.state is SliceState.LIVE and not found.doubtful:
                    self._remember_live(slice_, found.versions)
        for start in [each for each in self._vanished if each >= first and each not in undrained]:
            del self._vanished[start]  # an administrator accepted the loss, in another process
        self._show_vanished()

    async def _is_still_live(self, slice_: Slice) -> bool:
        known = self._live.get(slice_.start)
        if known is None:
            return False
        if known == tuple([await self._engine.view.version(each) for each in slice_.partitions]):
            return True
        del self._live[slice_.start]
        return False

    def _remember_live(self, slice_: Slice, versions: tuple[PartitionVersion, ...]) -> None:
        """A version that is too young does not show whether a mark came since."""
        latest = self._engine.clock.now() - BEYOND
        if all(each.settled(latest) for each in versions):
            self._live[slice_.start] = versions

    def _note(self, slice_: Slice, missing: int) -> None:
        self._vanished.pop(slice_.start, None)
        if missing:
            self._vanished[slice_.start] = missing
        self._show_vanished()

    def _show_vanished(self) -> None:
        metrics.VANISHED.labels(*self._engine.labels).set(sum(self._vanished.values()))

    def _forget_before(self, first: datetime) -> None:
        for table in (self._live, self._vanished):
            for start in [start for start in table if start < first]:
                del table[start]
        self._show_vanished()


async def _runs(slices: AsyncIterator[Slice]) -> AsyncIterator[list[Slice]]:
    """Yield slices in runs that one request can ask about: those without a record, up to the next
    one with a record, which comes alone."""
    run: list[Slice] = []
    async for slice_ in slices:
        if run and (slice_.closed is not None or len(run) * slice_.buckets >= TOGETHER):
            yield run
            run = []
        run.append(slice_)
        if slice_.closed is not None:
            yield run
            run = []
    if run:
        yield run


def _unrecorded(run: list[Slice]) -> list[Slice]:
    return [each for each in run if each.closed is None]
