"""Browse start moves forward over drained slices, one at a time, and no further than it may.

Never after the start of the current slice and never within the grace period of now, because only
closed slices are passed; only forward, because the limit is written with its own value as
timestamp (invariant 5). Source: 000 Decision (browseStart).
"""

from __future__ import annotations

from datetime import datetime
from itertools import pairwise

from postroad.errors import PostroadError
from postroad.mailqueue.closing import Slice, State, closable, close, examine
from postroad.mailqueue.engine import Engine
from postroad.ports.view import ClosedSlice

AT_MOST = 5000
"""Slices looked at in one go; the next goes on from there."""


class Advancing:
    """Moves browse start; at most one at a time in a process."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._running = False
        self._closed_until: datetime | None = None

    def draw(self) -> None:
        """Perhaps begin to advance in the background: with probability 1 / pace."""
        engine = self._engine
        if self._running or engine.closed:
            return
        try:
            pace = engine.configuration.effective().writing.update_browse_start_pace
        except PostroadError:
            return  # stale: whoever refreshes it will also advance
        if engine.chance.uniform() * pace < 1:
            engine.in_background(self._try())

    async def _try(self) -> None:
        try:
            await self.run()
        except PostroadError as error:  # the next draw, or maintenance, tries again
            self._engine.log.debug("browse start stays for now", error=type(error).__name__)

    async def run(self) -> None:
        """Close what can be closed, then pass what is drained. Raises: ServerError, ClockSkew,
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
        first = (await engine.bearings.refresh()).browse_start
        if first is None:
            return
        await engine.bearings.check_clock()  # by one that is ahead, open slices look closed
        effective = engine.configuration.effective()
        now = await engine.bearings.earliest_now()
        slices = closable(engine, first, now)[: AT_MOST + 1]
        closed = {each.slice_start: each async for each in engine.view.closed_slices(first)}
        await self._close(slices, closed)
        passed: datetime | None = None
        # The start of a slice is only known to be safe once the slice before it was passed.
        for slice_, following in pairwise(slices):
            if not await self._passes(slice_, closed.get(slice_.start)):
                break
            passed = following.start
        if passed is not None:
            engine.check_still(effective)
            await engine.view.advance(browse_start=passed)
            await engine.bearings.refresh()
            engine.log.debug("browse start moved", slice=passed.isoformat())

    async def _close(self, slices: list[Slice], closed: dict[datetime, ClosedSlice]) -> None:
        for slice_ in slices:
            if slice_.start in closed:
                continue
            if self._closed_until is not None and slice_.start < self._closed_until:
                continue  # it was empty
            now_closed = await close(self._engine, slice_)
            if now_closed is not None:
                closed[slice_.start] = now_closed
            self._closed_until = slice_.start

    async def _passes(self, slice_: Slice, closed: ClosedSlice | None) -> bool:
        """Whether browse start may go on. A slice that was empty when it was looked at (or whose
        record a person took back) is closed now that all before it are drained: a successor may
        have come late, by a write that the view had kept, and its predecessor is final now."""
        if closed is None:
            closed = await close(self._engine, slice_)
        if closed is None or closed.drained:
            return True
        if await examine(self._engine, slice_, closed) is not State.DRAINED:
            return False
        await self._engine.view.mark_drained(slice_.start)
        return True
