"""Time that a program over real sockets does not wait for."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from postroad.adapters.clocks import MachineClock


class SkippedClock(MachineClock):
    """The machine's clock, `skipped` later. Moved alone, it shows a suspension of the process."""

    def __init__(self) -> None:
        self.skipped = timedelta(0)

    def elapsed(self) -> timedelta:
        return super().elapsed() + self.skipped


class SkippingLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is the machine's, `_skipped` later: its sleeps end so much earlier,
    while what waits for a reply waits as ever."""

    _skipped = 0.0

    def time(self) -> float:
        return super().time() + self._skipped

    async def skip(self, duration: timedelta, clock: SkippedClock) -> None:
        """Let so much time of this loop and of its program's clock pass at once. Called in another
        loop; returns when this one has noticed."""
        asking, has_passed = asyncio.get_running_loop(), asyncio.Event()

        def pass_at_once() -> None:
            self._skipped += duration.total_seconds()
            clock.skipped += duration
            asking.call_soon_threadsafe(has_passed.set)

        self.call_soon_threadsafe(pass_at_once)
        await has_passed.wait()
