"""Waiting for servers that are away: longer each time, with jitter, never spinning."""

from __future__ import annotations

from datetime import timedelta

from postroad.ports.clock import Chance, Clock


class Backoff:
    """Waits between attempts. Full jitter between half and all of the present wait."""

    def __init__(self, clock: Clock, chance: Chance, first: timedelta, longest: timedelta) -> None:
        self._clock = clock
        self._chance = chance
        self._next = first
        self._longest = longest

    async def wait(self) -> None:
        """Wait once more."""
        duration = self._next * (0.5 + self._chance.uniform() / 2)
        self._next = min(self._next * 2, self._longest)
        await self._clock.sleep(duration)
