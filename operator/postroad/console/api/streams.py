"""Streams of server-sent events to clients."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from postroad.console.api.models import OperationDocument
from postroad.console.operations import Running
from postroad.problems import Problem

if TYPE_CHECKING:
    from postroad.console.api.access import QueueAccess

T = TypeVar("T")

MAX_STREAMS = 256
"""At a time, of all users."""

MAX_STREAMS_OF_USER = 64

KEEP_ALIVE_SECONDS = 15.0
"""Time without an event after which a comment shows that the stream is there."""

ALIVE = ": alive\n\n"

CHECK_EVERY = timedelta(seconds=15)
"""Time after which the right to a stream is checked again, with its next event or comment."""


class Streams:
    """The streams that are open, by user."""

    def __init__(self) -> None:
        self._open = Counter[str]()

    def check_room(self, user: str) -> None:
        """Raises: Problem where a user, or all users, have too many."""
        if self._open.total() >= MAX_STREAMS or self._open[user] >= MAX_STREAMS_OF_USER:
            raise Problem(429, "too many streams of events are open: close some")

    @contextmanager
    def one(self, user: str) -> Iterator[None]:
        self._open[user] += 1
        try:
            yield
        finally:
            self._open -= Counter((user,))


async def stream_of(
    chunks: AsyncIterator[Any], media_type: str, headers: Mapping[str, str] | None = None
) -> StreamingResponse:
    """Return a response in chunks; errors before the first come before the response begins."""
    first = await anext(chunks, b"")

    async def every() -> AsyncIterator[Any]:
        yield first
        async for each in chunks:
            yield each

    return StreamingResponse(every(), media_type=media_type, headers=headers)


class _CountedStream(StreamingResponse):
    """A stream that counts from its beginning on, and not from its first event: of requests that
    come at once, each would find room."""

    def __init__(self, streams: Streams, user: str, events: AsyncGenerator[str, None]) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._streams, self._user, self._events = streams, user, events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Closed here: a client that goes amid a sending would leave it to the garbage collector.
        with self._streams.one(self._user):
            async with aclosing(self._events):
                await super().__call__(scope, receive, send)


def events_response(at: QueueAccess, events: AsyncGenerator[str, None]) -> StreamingResponse:
    """Return events of a queue, which end with the user's right to them. Raises: Problem."""
    streams, user = at.console.streams, at.who.name
    streams.check_room(user)
    return _CountedStream(streams, user, while_allowed(at, events))


async def while_allowed(
    at: QueueAccess, chunks: AsyncGenerator[T, None]
) -> AsyncGenerator[T, None]:
    """Yield chunks for as long as the user has the right to them, and the queue is there."""
    elapsed = at.console.clock.elapsed
    until = elapsed() + CHECK_EVERY
    async with aclosing(chunks) as every:
        async for each in every:
            if elapsed() >= until:
                if not await at.is_still_allowed():
                    return
                until = elapsed() + CHECK_EVERY
            yield each


async def progress_events(running: Running) -> AsyncGenerator[str, None]:
    """Yield the progress of an operation, until its end."""
    look = partial(OperationDocument.of, running)
    while True:
        document = look()
        yield _event("progress", document.model_dump_json(by_alias=True))
        if running.has_ended:
            return
        while not await _changes(running.changed, look, document):
            yield ALIVE


async def outcome_events(at: QueueAccess) -> AsyncGenerator[str, None]:
    """Yield the outcomes of a queue from now on, as they happen, for as long as they are read."""
    async with at.console.outcomes.follow(at.on) as feed:
        place = feed.place
        yield ALIVE
        while True:
            while not await _changes(
                feed.changed, lambda: (feed.place, feed.has_ended), (place, False)
            ):
                yield ALIVE
            lines, missed = feed.since(place)
            place = feed.place
            if missed:
                yield _event("missed", json.dumps({"number": missed}))
            for each in lines:
                yield _event("outcome", json.dumps(each))
            if feed.has_ended:
                return


def _event(kind: str, data: str) -> str:
    return f"event: {kind}\ndata: {data}\n\n"


async def _changes(changed: asyncio.Condition, look: Callable[[], object], seen: object) -> bool:
    """Wait until something is not as it was seen; return False after a while without that."""
    async with changed:  # in it: a change behind the look would wake no task
        try:
            async with asyncio.timeout(KEEP_ALIVE_SECONDS):
                await changed.wait_for(lambda: look() != seen)
        except TimeoutError:
            return False
    return True
