"""An event loop whose time stands still until a test moves it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

ENTRIES = 20
"""Passes of the loop in which everything that became due has run, and what that woke."""


class MovedLoop(asyncio.SelectorEventLoop):
    """For what needs no socket: waiting on one would not end."""

    moment = 0.0

    def time(self) -> float:
        return self.moment


async def move(seconds: float) -> None:
    """Let time pass, a second at a time, and everything run that becomes due."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, MovedLoop)
    while seconds > 0:
        step = min(seconds, 1.0)
        loop.moment += step
        seconds -= step
        for _ in range(ENTRIES):
            await asyncio.sleep(0)


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run a test on such a loop."""
    with asyncio.Runner(loop_factory=MovedLoop) as runner:
        runner.run(work)
