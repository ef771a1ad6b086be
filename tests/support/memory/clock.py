"""A clock that a test moves, and random numbers that repeat."""

from __future__ import annotations

import asyncio
import heapq
import random
from datetime import UTC, datetime, timedelta

START = datetime(2026, 1, 1, 10, 0, tzinfo=UTC)


class ManualClock:
    """Virtual time: `sleep` returns when `advance` has passed its end.

    `skew` is the error of this process's wall clock. All clocks made by `beside` share the true
    time.
    """

    def __init__(self, start: datetime = START, skew: timedelta = timedelta(0)) -> None:
        self._time = _Time(start)
        self._paused = timedelta(0)
        self.skew = skew

    def beside(self, skew: timedelta) -> ManualClock:
        """Return the clock of another process, whose wall clock is wrong by `skew`."""
        other = ManualClock(skew=skew)
        other._time = self._time
        return other

    def now(self) -> datetime:
        return self._time.start + self.elapsed() + self.skew

    def elapsed(self) -> timedelta:
        return self._time.elapsed - self._paused

    def pause(self, duration: timedelta) -> None:
        """Set wall clock and elapsed time back: a virtual machine that its hypervisor paused."""
        self._paused += duration

    async def sleep(self, duration: timedelta) -> None:
        if duration <= timedelta(0):
            await asyncio.sleep(0)
            return
        await self._time.wait_until(self._time.elapsed + duration)

    async def advance(self, duration: timedelta) -> None:
        """Let time pass; sleeping tasks wake in order, each at its own time."""
        await self._time.advance(duration)

    def jump(self, duration: timedelta) -> None:
        """Let time pass at once, as for a suspended process: no task runs meanwhile."""
        self._time.elapsed += duration

    @property
    def next_waking(self) -> timedelta | None:
        """Time until the first sleeping task wakes; None: no task sleeps."""
        return self._time.next_waking


class _Time:
    """The true time of several clocks."""

    def __init__(self, start: datetime) -> None:
        self.start = start
        self.elapsed = timedelta(0)
        self._sleepers: list[tuple[timedelta, int, asyncio.Future[None]]] = []
        self._count = 0

    @property
    def next_waking(self) -> timedelta | None:
        while self._sleepers and self._sleepers[0][2].done():
            heapq.heappop(self._sleepers)
        return self._sleepers[0][0] - self.elapsed if self._sleepers else None

    async def wait_until(self, moment: timedelta) -> None:
        waking = asyncio.get_running_loop().create_future()
        self._count += 1
        heapq.heappush(self._sleepers, (moment, self._count, waking))
        await waking

    async def advance(self, duration: timedelta) -> None:
        end = self.elapsed + duration
        await settle()
        while self.next_waking is not None and self._sleepers[0][0] <= end:
            moment, _, waking = heapq.heappop(self._sleepers)
            self.elapsed = max(self.elapsed, moment)
            waking.set_result(None)
            await settle()
        self.elapsed = max(self.elapsed, end)
        await settle()


async def settle(passes: int = 100) -> None:
    """Run every task that is ready, for at most so many passes of the event loop; fewer where the
    loop shows that no task is ready."""
    ready = getattr(asyncio.get_running_loop(), "_ready", None)
    for _ in range(passes):
        await asyncio.sleep(0)
        if ready is not None and not ready:
            return


class SeededRandomness:
    """The same numbers for the same seed."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)

    def uniform(self) -> float:
        return self._random.random()

    def bits(self, count: int) -> int:
        return self._random.getrandbits(count)
