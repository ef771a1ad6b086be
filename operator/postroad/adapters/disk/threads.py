"""A pool of threads for blocking calls.

Not `concurrent.futures`: its futures, locks and wrappers cost more than most calls that are made
here take (35 us against 8 us), and every mail makes some.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, TypeVar

from postroad.errors import QueueClosed

Result = TypeVar("Result")
FileCall = tuple[
    asyncio.AbstractEventLoop, "asyncio.Future[Any]", Callable[..., Any] | None, tuple[Any, ...]
]
"""The future of a call with its loop, the function (None ends the thread), and its arguments."""


class ThreadPool:
    """At most `count` calls at a time, the rest in order. For one event loop.

    Its threads are daemons: they end with the process, because to stop is to crash.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count, self._name = count, name
        self._jobs: SimpleQueue[FileCall] = SimpleQueue()
        self._threads = 0
        self._under_way = 0
        self._is_closed = False

    def run(self, work: Callable[..., Result], *arguments: object) -> asyncio.Future[Result]:
        if self._is_closed:
            raise QueueClosed
        if self._threads < min(self._under_way + 1, self._count):
            name = f"{self._name}-{self._threads + 1}"
            Thread(target=self._work, name=name, daemon=True).start()
            self._threads += 1  # behind the start: the system may refuse a thread
        return self._put(work, arguments)

    def _put(
        self, work: Callable[..., Any] | None, arguments: tuple[Any, ...]
    ) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._under_way += 1
        self._jobs.put((loop, future, work, arguments))
        return future

    async def close(self) -> None:
        self._is_closed = True
        self._drop()
        ends = [self._put(None, ()) for _ in range(self._threads)]
        self._threads = 0
        if ends:
            await asyncio.wait(ends)

    def _drop(self) -> None:
        """Fail the calls that have not begun."""
        while True:
            try:
                _, future, _, _ = self._jobs.get_nowait()
            except Empty:
                return
            self._resolve(future, None, QueueClosed())

    def _work(self) -> None:
        is_open = True
        while is_open:
            loop, future, work, arguments = self._jobs.get()
            result: Any = None
            error: BaseException | None = None
            try:
                if work is None:
                    is_open = False
                else:
                    result = work(*arguments)
            except BaseException as raised:  # the caller handles it
                error = raised
            try:
                loop.call_soon_threadsafe(self._resolve, future, result, error)
            except RuntimeError:
                pass  # the loop is closed, so no caller waits
            del (
                future,
                loop,
                work,
                arguments,
                result,
                error,
            )  # so that a waiting thread keeps none of them alive

    def _resolve(
        self, future: asyncio.Future[Any], result: object, error: BaseException | None
    ) -> None:
        self._under_way -= 1
        if future.done():
            return  # the caller was cancelled
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
