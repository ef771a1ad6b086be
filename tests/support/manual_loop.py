"""An event loop whose time stands still until a test moves it."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any

PASSES = 20
"""Passes of the loop after which due callbacks, and the tasks they woke, have run; fewer where
nothing is left to run."""


class _UnaskedSelector(selectors.DefaultSelector):
    """Asks the system for nothing while callbacks are ready: they are all that goes on."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return [] if timeout == 0 else super().select(timeout)


class ManualLoop(asyncio.SelectorEventLoop):
    """For code without sockets: a wait for one would not end."""

    moment = 0.0

    def __init__(self) -> None:
        super().__init__(_UnaskedSelector())

    def time(self) -> float:
        return self.moment

    def is_idle(self) -> bool:
        """Whether, beside the caller, no callback is ready or due."""
        ready, timers = self._ready, self._scheduled  # type: ignore[attr-defined]
        return not ready and not (timers and timers[0].when() <= self.moment)


async def move(seconds: float) -> None:
    """Move the time, a second at a step, and run what becomes due."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, ManualLoop)
    while seconds > 0:
        step = min(seconds, 1.0)
        loop.moment += step
        seconds -= step
        for _ in range(PASSES):
            if loop.is_idle():
                break
            await asyncio.sleep(0)


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run a test on such a loop."""
    with asyncio.Runner(loop_factory=ManualLoop) as runner:
        runner.run(work)
