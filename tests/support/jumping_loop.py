"""An event loop that waits for nothing: when no task is ready, its time jumps to the next timer."""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

P = ParamSpec("P")


class _Jumping(selectors.SelectSelector):
    passed = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "no timer is left that would wake a task"
        self.passed += timeout
        return []


class JumpingLoop(asyncio.SelectorEventLoop):
    """For code without sockets and threads, which it would not wait for."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.passed


def jumping(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a test on such a loop."""

    @functools.wraps(test)
    def run(*args: P.args, **more: P.kwargs) -> None:
        with asyncio.Runner(loop_factory=JumpingLoop) as runner:
            runner.run(test(*args, **more))

    return run
