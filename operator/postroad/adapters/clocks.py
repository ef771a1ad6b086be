"""The ports `Clock` and `Randomness` over the machine's clocks and Python's generator."""

import asyncio
import random
import time
from datetime import UTC, datetime, timedelta

_MICROSECOND = timedelta(microseconds=1)


class MachineClock:
    """Wall clock, CLOCK_BOOTTIME, and asyncio's sleep."""

    def now(self) -> datetime:
        return datetime.fromtimestamp(time.time_ns() // 1_000_000 / 1000, UTC)

    def elapsed(self) -> timedelta:
        # Half the time of `timedelta(seconds=…)`, for fifteen readings a mail.
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000 * _MICROSECOND

    async def sleep(self, duration: timedelta) -> None:
        await asyncio.sleep(max(0.0, duration.total_seconds()))


class SystemRandomness:
    """Python's default generator, seeded by the system."""

    def __init__(self) -> None:
        self._random = random.Random()

    def uniform(self) -> float:
        return self._random.random()

    def bits(self, count: int) -> int:
        return self._random.getrandbits(count)
