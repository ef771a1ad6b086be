"""Time and randomness, so that only the outermost rooms read them from the machine."""

from datetime import datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """The two clocks of a process, and the way to wait."""

    def now(self) -> datetime:
        """Return the wall clock, aware, in UTC, in whole milliseconds as the view keeps instants:
        what is written comes back equal. May step."""

    def elapsed(self) -> timedelta:
        """Return the time since an arbitrary start. Never steps back and counts a suspended
        machine's sleep (CLOCK_BOOTTIME): deadlines and leases are measured with it."""

    async def sleep(self, duration: timedelta) -> None:
        """Wait; returns early only by cancellation."""


class Randomness(Protocol):
    """Randomness that decides load, never secrets."""

    def uniform(self) -> float:
        """Return a number in [0, 1)."""

    def bits(self, count: int) -> int:
        """Return `count` random bits as an integer."""
