"""A pool of threads for blocking calls.

Not `concurrent.futures`: its futures, locks and wrappers cost more than most calls that are made
here take (35 us against 8 us), and every mail makes some.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

Result = TypeVar("Result")
Job = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]", Callable[..., Any], tuple[Any, ...]]


class ThreadPool:
    """At most `count` calls at a time, the rest in order. For one event loop.

    Its threads end with the process, whatever they are at: to stop is to crash.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count, self._name = count, name
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._threads = 0
        self._under_way = 0

    def run(self, work: Callable[..., Result], *arguments: object) -> asyncio.Future[Result]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()
        if self._threads < min(self._under_way + 1, self._count):
            name = f"{self._name}-{self._threads + 1}"
            Thread(target=self._work, name=name, daemon=True).start()
            self._threads += 1  # only now: the system may refuse one
        self._under_way += 1
        self._jobs.put((loop, future, work, arguments))
        return future

    def close(self) -> None:
        for _ in range(self._threads):
            self._jobs.put(None)
        self._threads = self._count  # nobody is left to start

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            loop, future, work, arguments = job
            result: Any = None
            error: BaseException | None = None
            try:
                result = work(*arguments)
            except BaseException as raised:  # it is the caller's
                error = raised
            try:
                loop.call_soon_threadsafe(self._settle, future, result, error)
            except RuntimeError:
                pass  # the loop was closed: nobody waits
            del job, future, work, arguments, result, error  # while the next job is awaited

    def _settle(
        self, future: asyncio.Future[Any], result: object, error: BaseException | None
    ) -> None:
        self._under_way -= 1
        if future.done():
            return  # the caller was cancelled
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
