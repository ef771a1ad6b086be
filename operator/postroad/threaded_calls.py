"""Calls that block, and may hang: each runs in a thread of its own.

Not the event loop's executor, whose few threads read and write files: six calls that hang would
take them all. And a thread of it blocks the end of the process until its call returns."""

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from threading import Thread
from typing import TypeVar, cast

R = TypeVar("R")

_Returned = tuple[object, Exception | None]


class ThreadedCalls:
    """At most `most` calls at a time; one whose caller waits no longer counts until it returns."""

    def __init__(self, most: int) -> None:
        self._places = asyncio.Semaphore(most)

    @property
    def is_full(self) -> bool:
        """True if the next call would wait for another one to return."""
        return self._places.locked()

    async def run(
        self, call: Callable[..., R], *arguments: object, started: Callable[[], None] | None = None
    ) -> R:
        """Return what a call returns, which has the caller's context. `started` is called when it
        has a thread. Raises: what the call raises, RuntimeError where that is no Exception or the
        machine has no thread left."""
        await self._places.acquire()
        loop = asyncio.get_running_loop()
        returned: asyncio.Future[_Returned] = loop.create_future()
        begin = partial(copy_context().run, call, *arguments)
        thread = Thread(target=self._run, args=(loop, returned, begin), daemon=True)
        try:
            thread.start()
        except RuntimeError:
            self._places.release()
            raise
        if started is not None:
            started()
        found, error = await returned
        if error is not None:
            raise error
        return cast("R", found)

    def _run(
        self,
        loop: asyncio.AbstractEventLoop,
        returned: asyncio.Future[_Returned],
        begin: Callable[[], object],
    ) -> None:
        found: _Returned
        try:
            found = begin(), None
        except BaseException as error:
            # Else a SystemExit of the call would end the process.
            ours = error if isinstance(error, Exception) else RuntimeError(type(error).__name__)
            found = None, ours
        try:
            loop.call_soon_threadsafe(self._end, returned, found)
        except RuntimeError:  # the loop is closed: no caller waits, and those of the next one may
            self._places.release()

    def _end(self, returned: asyncio.Future[_Returned], found: _Returned) -> None:
        self._places.release()
        if not returned.done():
            returned.set_result(found)
