"""Consumers that wait for an entry: woken one by one, or all when the next entry becomes due.

Nothing polls: one alarm stands at the earliest due time that anybody named.
"""

from __future__ import annotations

import asyncio
from collections import deque
from datetime import timedelta

from postroad.ports.clock import Clock

NEVER = float("inf")


class Wakeups:
    """Who waits, and when to wake them. Times are seconds on the clock that never steps."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._alarm: asyncio.Task[None] | None = None
        self._alarm_at = NEVER

    async def wait(self, due: float | None) -> None:
        """Wait until an entry may be ready; `due` is when the next one is, None when there is none.
        To cancel is safe: who was woken in vain wakes the next."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        if due is not None:
            self.wake_at(due)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.wake_one()
            raise

    def wake_one(self) -> None:
        """Wake who has waited longest."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def wake_all(self) -> None:
        """Wake everybody."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    def wake_at(self, due: float) -> None:
        """Wake everybody at `due`, unless they are woken before."""
        if due >= self._alarm_at:
            return
        self.close()
        self._alarm_at = due
        self._alarm = asyncio.get_running_loop().create_task(self._ring(due))

    async def _ring(self, due: float) -> None:
        left = due - self._clock.elapsed().total_seconds()
        await self._clock.sleep(timedelta(seconds=max(0.0, left)))
        self._alarm, self._alarm_at = None, NEVER
        self.wake_all()

    def close(self) -> None:
        """Let no alarm ring any more."""
        if self._alarm is not None:
            self._alarm.cancel()
