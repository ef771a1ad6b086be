"""Wakes consumers that wait for an entry: one for a ready entry, all when a delayed one is due.

Consumers do not poll: one alarm is set for the earliest due time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from datetime import timedelta

from postroad.ports.clock import Clock

NEVER = float("inf")


class Wakeups:
    """Waiting consumers and their alarm. Times are seconds of the monotonic clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._alarm: asyncio.Task[None] | None = None
        self._alarm_at = NEVER

    async def wait(self, due: float | None) -> None:
        """Wait until an entry may be ready. `due`: when the next delayed one is due, or None.
        A cancelled consumer that was woken wakes the next."""
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
        """Wake the consumer that has waited longest."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def wake_all(self) -> None:
        """Wake every consumer."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    def wake_at(self, due: float) -> None:
        """Wake every consumer at `due`, unless an earlier alarm is set."""
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
        """Cancel the alarm."""
        if self._alarm is not None:
            self._alarm.cancel()
