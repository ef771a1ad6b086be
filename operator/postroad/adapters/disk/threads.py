"""A pool of threads for blocking calls.

Not `concurrent.futures`: its futures, locks and wrappers cost more than most calls that are made
here take (35 us against 8 us), and every mail makes some.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, TypeVar

from postroad.errors import QueueClosed

Result = TypeVar("Result")
FileCall = tuple[
    asyncio.AbstractEventLoop, "asyncio.Future[Any]", Callable[..., Any] | None, tuple[Any, ...]
]
"""The future of a call with its loop, the function (None ends the thread), and its arguments."""

Box = SimpleQueue[FileCall]
"""Task that one thread is to do."""


class ThreadPool:
    """At most `count` calls at a time, the rest in order. For one event loop.

    A call goes to the thread that became idle last, because the processor still has what it needs
    in its caches: with one box for all, the threads take turns, and each call costs more.
    The threads are daemons: they end with the process, because to stop is to crash.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count, self._name = count, name
        self._boxes: list[Box] = []
        self._idle: list[Box] = []
        self._waiting: deque[FileCall] = deque()
        self._handing_out = Lock()
        """Held while a call looks for an idle thread, or a thread for a call."""
        self._is_closed = False

    def run(self, work: Callable[..., Result], *arguments: object) -> asyncio.Future[Result]:
        if self._is_closed:
            raise QueueClosed
        call = _call_of(work, arguments)
        if (box := self._box_for(call)) is not None:
            box.put(call)
        return call[1]

    def _box_for(self, call: FileCall) -> Box | None:
        """Return the box of an idle thread, or of a new one; None where the call waits for one."""
        with self._handing_out:
            if self._idle:
                return self._idle.pop()
            if len(self._boxes) == self._count:
                self._waiting.append(call)
                return None
        box = Box()
        name = f"{self._name}-{len(self._boxes) + 1}"
        Thread(target=self._work, args=(box,), name=name, daemon=True).start()
        self._boxes.append(box)  # behind the start: the system may refuse a thread
        return box

    def _is_free(self, box: Box) -> None:
        """Give a thread the next call that waits, or note that it is idle."""
        with self._handing_out:
            if self._waiting:
                box.put(self._waiting.popleft())  # here: else `close` could end the thread before
            else:
                self._idle.append(box)

    async def close(self) -> None:
        self._is_closed = True
        with self._handing_out:
            dropped, self._waiting = self._waiting, deque()
        for _, future, _, _ in dropped:
            _resolve(future, None, QueueClosed())
        boxes, self._boxes = self._boxes, []
        ends = [_call_of(None, ()) for _ in boxes]
        for box, end in zip(boxes, ends, strict=True):
            box.put(end)
        if ends:
            await asyncio.wait([future for _, future, _, _ in ends])

    def _work(self, box: Box) -> None:
        is_open = True
        while is_open:
            loop, future, work, arguments = box.get()
            result: Any = None
            error: BaseException | None = None
            try:
                if work is None:
                    is_open = False
                else:
                    result = work(*arguments)
            except BaseException as raised:  # the caller handles it
                error = raised
            self._is_free(box)  # first: who gets the result may make the next call at once
            try:
                loop.call_soon_threadsafe(_resolve, future, result, error)
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


def _call_of(work: Callable[..., Any] | None, arguments: tuple[Any, ...]) -> FileCall:
    loop = asyncio.get_running_loop()
    return loop, loop.create_future(), work, arguments


def _resolve(future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if future.done():
        return  # the caller was cancelled
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
