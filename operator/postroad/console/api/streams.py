"""Streams of server-sent events to clients."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from postroad.console.api.models import OperationDocument
from postroad.console.operations import Running
from postroad.problems import Problem

MAX_STREAMS = 256
"""At a time, of all users."""

MAX_STREAMS_OF_USER = 64

KEEP_ALIVE_SECONDS = 15.0
"""Time without an event after which a comment shows that the stream is there."""


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

    def __init__(self, streams: Streams, user: str, events: AsyncIterator[str]) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._streams, self._user = streams, user

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._streams.one(self._user):
            await super().__call__(scope, receive, send)


def progress_response(streams: Streams, user: str, running: Running) -> StreamingResponse:
    """Return the progress of an operation as events, until its end. Raises: Problem."""
    streams.check_room(user)
    return _CountedStream(streams, user, _progress(running))


async def _progress(running: Running) -> AsyncIterator[str]:
    while True:
        document = OperationDocument.of(running)
        yield f"event: progress\ndata: {document.model_dump_json(by_alias=True)}\n\n"
        if running.has_ended:
            return
        while not await _changes(running, document):
            yield ": alive\n\n"


async def _changes(running: Running, seen: OperationDocument) -> bool:
    """Wait until an operation is not as it was seen; False after a while without that."""
    async with running.changed:  # in it: a change behind the look would wake no task
        try:
            async with asyncio.timeout(KEEP_ALIVE_SECONDS):
                await running.changed.wait_for(lambda: OperationDocument.of(running) != seen)
        except TimeoutError:
            return False
    return True
