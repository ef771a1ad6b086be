"""Waiting for servers that are away: longer each time, with jitter."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeVar

from postroad.errors import ViewUnavailable
from postroad.ports.clock import Clock, Randomness

T = TypeVar("T")


class Backoff:
    """Waits between attempts: each time half to all of the present wait, which doubles."""

    def __init__(
        self, clock: Clock, randomness: Randomness, first: timedelta, longest: timedelta
    ) -> None:
        self._clock = clock
        self._randomness = randomness
        self._next = first
        self._longest = longest

    async def wait(self) -> None:
        """Wait once more."""
        duration = self._next * (0.5 + self._randomness.uniform() / 2)
        self._next = min(self._next * 2, self._longest)
        await self._clock.sleep(duration)


async def persist(backoff: Backoff, tries: int, work: Callable[[], Awaitable[T]]) -> T:
    """Do work that may be repeated, at most `tries` times, while the view does not answer in time.
    Raises: what the last try raised; any other error at once."""
    for _ in range(tries - 1):
        try:
            return await work()
        except ViewUnavailable:
            pass  # the view may have done it; the next try finds out
        await backoff.wait()
    return await work()
