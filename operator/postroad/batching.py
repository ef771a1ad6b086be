"""Requests of one kind that wait at the same time go to the server together.

While a request is under way, others with the same key wait, and then go as one: as a database
gathers commits. A lone request waits for nobody; the more is in flight, the more one carries, so
that a busy server is asked less often. Source: ADR 0012.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from datetime import timedelta
from typing import Generic, TypeVar

from postroad.errors import PostroadError, ServerError

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
R = TypeVar("R")


class Batcher(Generic[K, V, R]):
    """`await gathering(key, value)` gives what `send(key, values)` answered for this value.

    `send` answers in the order of its values and is called once at a time for each key, with at
    most `most` values. What waits for longer than `patience` fails with `late` instead of being
    sent. When a server is away, all that went together fails with its error; who waits behind is
    sent all the same, as one lost answer says nothing about the next. Whoever stops waiting before
    the request goes is left out. Belongs to one event loop.
    """

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
            # The loop is going down, say. Who still waits has an end of its own to come to.
            for request in (*together, *self._waiting[key]):
                request.fail(self._late())
            raise
        finally:
            del self._waiting[key]

    def _wanted(self, together: list[_Request[V, R]]) -> list[_Request[V, R]]:
        """Leave out who stopped waiting and who waited for too long."""
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
                # One of them was refused, perhaps: the others must not suffer for it.
                for each in together:
                    await self._answer(key, self._wanted([each]))
                return
            for each in together:
                each.fail(error)
            return
        for each, answer in zip(together, answers, strict=True):
            if not each.answer.done():
                each.answer.set_result(answer)


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
