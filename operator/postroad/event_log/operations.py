"""Events of an administrator's operations, durable before the mails are changed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from math import inf
from typing import TypeVar

from postroad.domain.delivery.events import CHANGES, ChangedMail, EventRule, changed_events
from postroad.errors import InvalidInput
from postroad.event_log.spooled import SpooledEvents
from postroad.ports.clock import Clock
from postroad.ports.delivery import SharedState, Topic
from postroad.ports.events import MAX_WAITING, EventSpool
from postroad.telemetry.logs import logger
from postroad.telemetry.metrics import EVENTS, of_queue

_log = logger("events")

T = TypeVar("T")

PORTION, PORTION_SECONDS = 100, 1.0
"""Mails of an operation whose events are durable before the mails are changed; and for how long one
of them waits for others."""

MAX_OF_OPERATIONS = MAX_WAITING // 2
"""Events of a stream up to which an operation adds some: it must not push out others."""

ROOM_WAIT, LOOK = timedelta(seconds=10), timedelta(milliseconds=500)
"""Time for which an operation waits for a sender, and between two looks."""


async def operation_events_of(
    operation: str, queue: str, shared_state: SharedState, spool: EventSpool | None, clock: Clock
) -> OperationEvents | None:
    """Return what makes the events of an operation on waiting mails; None: no stream gets them.
    Raises: ServerError."""
    if operation not in CHANGES or spool is None:
        return None
    rules = list[EventRule]()
    for name, text in (await shared_state.published(Topic.STREAMS)).items():
        with suppress(InvalidInput):
            rules.append(EventRule.of(name, text))
    meant = [each for each in rules if each.kinds is None or CHANGES[operation] in each.kinds]
    return OperationEvents(operation, queue, meant, spool, clock) if meant else None


class OperationEvents:
    """The events of one operation. Those that a stream has no room for are dropped and counted,
    once its sender had time to make some."""

    def __init__(
        self,
        operation: str,
        queue: str,
        rules: Sequence[EventRule],
        spool: EventSpool,
        clock: Clock,
    ) -> None:
        self._operation, self._queue, self._rules = operation, queue, rules
        self._spool, self._clock = spool, clock
        self._events = SpooledEvents(spool, rules, queue)
        self._full: list[EventRule] = []

    async def over(
        self, found: AsyncIterator[T], changed: Callable[[T], ChangedMail | None]
    ) -> AsyncGenerator[T, None]:
        """Yield what was found, each portion when its events are durable. `changed` is asked before
        that; None: the mail will not be changed. Raises: ServerError, StoreFailed, StoreFull."""
        async for portion in _portions(found):
            await self._find_room()
            for each in portion:
                if (mail := changed(each)) is not None:
                    await self._keep(mail)
            await self._events.flush()
            for each in portion:
                yield each

    async def _keep(self, mail: ChangedMail) -> None:
        moment = self._clock.now()
        for stream, *_ in changed_events(self._full, self._queue, self._operation, mail, moment):
            EVENTS.labels(*of_queue(self._queue), stream, "full").inc()
        await self._events.keep_changed(self._operation, mail, moment)

    async def _find_room(self) -> None:
        """Wait for streams that are full; not for those that stay so."""
        full = [each for each in self._rules if not await self._has_room(each)]
        if new := [each.name for each in full if each not in self._full]:
            _log.error("events of an operation are dropped", queue=self._queue, streams=new)
        self._full, self._events.rules = full, [each for each in self._rules if each not in full]

    async def _has_room(self, rule: EventRule) -> bool:
        until = self._clock.elapsed() + (timedelta(0) if rule in self._full else ROOM_WAIT)
        while await self._spool.is_beyond(rule.name, MAX_OF_OPERATIONS):
            if self._clock.elapsed() >= until:
                return False
            await self._clock.sleep(LOOK)
        return True


async def _portions(found: AsyncIterator[T]) -> AsyncGenerator[list[T], None]:
    """Yield what comes, some together, nothing later than PORTION_SECONDS."""
    loop, portion, until = asyncio.get_running_loop(), list[T](), inf
    coming: asyncio.Future[T] | None = None
    try:
        while True:
            coming = coming or asyncio.ensure_future(_next(found))
            left = None if until == inf else max(0.0, until - loop.time())
            await asyncio.wait({coming}, timeout=left)
            if coming.done():
                try:
                    portion.append(coming.result())
                except StopAsyncIteration:
                    break
                finally:
                    coming = None
                until = min(until, loop.time() + PORTION_SECONDS)
            if portion and (len(portion) == PORTION or loop.time() >= until):
                yield portion
                portion, until = [], inf
        if portion:
            yield portion
    finally:
        if coming is not None:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)


async def _next(found: AsyncIterator[T]) -> T:
    return await anext(found)
