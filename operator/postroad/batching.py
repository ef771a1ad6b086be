"""Batching: requests of one kind that wait at the same time go to the server as one.

While a request is under way, those with the same key wait and then share the next one, as in a
database's group commit. A lone request is sent at once; the more requests are in flight, the more
one carries, so a busy server gets fewer. Source: ADR 0012.

Tasks that work beside each other end together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Hashable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Generic, TypeVar

from postroad.errors import PostroadError, ServerError

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
R = TypeVar("R")


class Batcher(Generic[K, V, R]):
    """`await batcher(key, value)` returns what `send(key, values)` returned for this value.

    `send` returns results in the order of its values; for each key one call runs at a time, with
    at most `most` values. A request that waits for longer than `max_wait` fails with `late` and is
    not sent. When the server is away, every request of the call fails with its error; those that
    wait are sent all the same, because one lost answer says nothing about the next. A request whose
    caller was cancelled before the call is left out. Belongs to one event loop."""

    def __init__(
        self,
        send: Callable[[K, list[V]], Awaitable[Sequence[R]]],
        late: Callable[[], PostroadError],
        *,
        most: int,
        max_wait: timedelta,
    ) -> None:
        self._send = send
        self._late = late
        self._most = most
        self._max_wait = max_wait.total_seconds()
        self._waiting: dict[K, list[_Request[V, R]]] = {}
        self._senders: set[asyncio.Task[None]] = set()

    async def __call__(self, key: K, value: V) -> R:
        loop = asyncio.get_running_loop()
        request: _Request[V, R] = _Request(value, loop.create_future(), loop.time())
        waiting = self._waiting.get(key)
        if waiting is None:
            self._waiting[key] = [request]
            sender = loop.create_task(self._run(key))
            self._senders.add(sender)
            sender.add_done_callback(self._senders.discard)
        else:
            waiting.append(request)
        return await request.answer

    async def _run(self, key: K) -> None:
        together: list[_Request[V, R]] = []
        try:
            while waiting := self._waiting[key]:
                together, self._waiting[key] = waiting[: self._most], waiting[self._most :]
                await self._answer(key, self._wanted(together))
        except BaseException:
            # The sender was cancelled: without an error here, the waiting callers would hang.
            for request in (*together, *self._waiting[key]):
                request.fail(self._late())
            raise
        finally:
            del self._waiting[key]

    def _wanted(self, together: list[_Request[V, R]]) -> list[_Request[V, R]]:
        """Return the requests that still have a caller and did not wait for too long."""
        oldest = asyncio.get_running_loop().time() - self._max_wait
        for request in together:
            if request.since < oldest:
                request.fail(self._late())
        return [each for each in together if not each.answer.done()]

    async def _answer(self, key: K, together: list[_Request[V, R]]) -> None:
        if not together:
            return
        try:
            answers = await self._send(key, [each.value for each in together])
        except Exception as error:
            if len(together) > 1 and not _is_away(error):
                # The server may have refused one of them: sent alone, the others succeed.
                for each in together:
                    await self._answer(key, self._wanted([each]))
                return
            for each in together:
                each.fail(error)
            return
        for each, answer in zip(together, answers, strict=True):
            if not each.answer.done():
                each.answer.set_result(answer)


class Shared(Generic[R]):
    """One attempt that concurrent callers share. A cancelled caller does not cancel it."""

    def __init__(self) -> None:
        self._attempt: asyncio.Task[R] | None = None

    async def get(self, attempt: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """Make an attempt, or wait for the one under way. Raises: its error."""
        # Done counts as over before `_ended` runs: awaiting it would not yield, so that a caller
        # who tries until an attempt brings something would hold up the event loop for good.
        if self._attempt is None or self._attempt.done():
            self._attempt = asyncio.create_task(attempt())
            self._attempt.add_done_callback(self._ended)
        return await asyncio.shield(self._attempt)

    async def end(self) -> None:
        """Wait until no attempt is under way."""
        if self._attempt is not None:
            await asyncio.wait([self._attempt])

    def _ended(self, attempt: asyncio.Task[R]) -> None:
        if attempt is self._attempt:
            self._attempt = None
        if not attempt.cancelled():
            attempt.exception()  # read here: asyncio logs an error that no caller reads


@asynccontextmanager
async def together() -> AsyncIterator[asyncio.TaskGroup]:
    """Yield a group of tasks, all of which have ended when the block has: an error of one cancels
    the others. Raises: that error, not a group; of several one of ours."""
    try:
        async with asyncio.TaskGroup() as tasks:
            yield tasks
    except BaseExceptionGroup as group:
        error = _first(group)
        raise error from error.__cause__


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    found = (group.subgroup(PostroadError) or group).exceptions[0]
    return _first(found) if isinstance(found, BaseExceptionGroup) else found


class _Request(Generic[V, R]):
    __slots__ = ("answer", "since", "value")

    def __init__(self, value: V, answer: asyncio.Future[R], since: float) -> None:
        self.value = value
        self.answer = answer
        self.since = since

    def fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


def _is_away(error: Exception) -> bool:
    return isinstance(error, ServerError) and error.transient
