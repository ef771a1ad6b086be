"""An event loop whose tasks and futures hash by the order of their making, not by their address.
Sets of them are iterated in the same order in every run, so a seed gives the same history."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Future(asyncio.Future[Any]):
    def __init__(self, *, loop: _Loop) -> None:
        self._number = loop.next_number()
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number


class _Task(asyncio.Task[Any]):
    def __init__(self, work: Coroutine[Any, Any, Any], *, loop: _Loop, **more: Any) -> None:
        self._number = loop.next_number()
        super().__init__(work, loop=loop, **more)

    def __hash__(self) -> int:
        return self._number


class _Loop(asyncio.SelectorEventLoop):
    _made = 0

    def next_number(self) -> int:
        self._made += 1
        return self._made

    def create_future(self) -> asyncio.Future[Any]:
        return _Future(loop=self)


def _task(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], **more: Any
) -> asyncio.Task[T]:
    assert isinstance(loop, _Loop)
    return _Task(work, loop=loop, **more)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine as `asyncio.run` does. Errors in tasks that no code awaits are ignored,
    because those tasks belong to processes that were killed."""
    with asyncio.Runner(loop_factory=_Loop) as runner:
        loop = runner.get_loop()
        loop.set_task_factory(_task)  # type: ignore[arg-type]  # a generic one
        loop.set_exception_handler(lambda loop, context: None)
        return runner.run(work)
