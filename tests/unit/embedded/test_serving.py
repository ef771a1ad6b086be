"""The owner's side of a connection, with a queue that takes its time."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from contract.queue_harness import plain_mail
from postroad.domain.mail.envelope_documents import envelope_value
from postroad.domain.mail.mail import Mail
from postroad.domain.queues.documents import Sizes
from postroad.embedded.rpc import rpc
from postroad.embedded.rpc.rpc import PIECES, FrameKind
from postroad.embedded.rpc.serving import Serving
from postroad.errors import InvalidInput, StoreFailed

PIECE = bytes(1000)
HELLO = {"op": "hello", "protocol": rpc.PROTOCOL}
MANY = 10 * PIECES


class SlowQueue:
    """Takes no content before `gate` opens; then all of it, or it fails."""

    def __init__(self, failure: StoreFailed | None = None) -> None:
        self.failure, self.gate, self.taken = failure, asyncio.Event(), 0

    async def enqueue(self, mail: Mail, delay: timedelta, key: None) -> UUID:
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        assert not isinstance(mail.content, bytes)
        async for piece in mail.content:  # type: ignore[union-attr]
            self.taken += len(piece)
        return UUID(int=7)

    async def size(self) -> Sizes:
        return Sizes(1, 0, 0, 0)


class Written:
    """What the owner answers."""

    def __init__(self) -> None:
        self.frames: list[tuple[int, FrameKind]] = []

    def write(self, data: bytes) -> None:
        _, call, kind = rpc.HEAD.unpack_from(data)
        if call != 9:  # the answer to hello
            self.frames.append((call, FrameKind(kind)))

    def is_closing(self) -> bool:
        return False

    async def drain(self) -> None:
        """Nothing is held back."""


async def begun(queue: SlowQueue) -> tuple[asyncio.StreamReader, Written, asyncio.Task[None]]:
    """Let a client send a mail in many pieces; return when the owner does no more by itself."""
    reader, written = asyncio.StreamReader(), Written()
    arguments = {
        "op": "enqueue", "mail": envelope_value(plain_mail().envelope), "delay": 0,
        "whole": False, "key": None,
    }  # fmt: skip
    reader.feed_data(rpc.json_frame(9, FrameKind.CALL, HELLO))
    reader.feed_data(rpc.json_frame(1, FrameKind.CALL, arguments))
    for _ in range(MANY):
        reader.feed_data(rpc.frame(1, FrameKind.DATA, PIECE))
    reader.feed_data(rpc.frame(1, FrameKind.END))
    reader.feed_data(rpc.json_frame(2, FrameKind.CALL, {"op": "size"}))
    connection: Any = Serving(queue, reader, written)  # type: ignore[arg-type]
    serving = asyncio.create_task(connection.serve())
    for _ in range(100):
        await asyncio.sleep(0)
    return reader, written, serving


async def leave(reader: asyncio.StreamReader, serving: asyncio.Task[None]) -> None:
    reader.feed_eof()
    await asyncio.wait_for(serving, 60)


async def answers(written: Written, count: int) -> list[tuple[int, FrameKind]]:
    async with asyncio.timeout(60):
        while len(written.frames) < count:
            await asyncio.sleep(0)
    return sorted(written.frames)


async def test_a_connection_is_not_read_while_its_mail_waits_for_the_disk() -> None:
    queue = SlowQueue()
    reader, written, serving = await begun(queue)

    assert written.frames == []  # what comes behind the mail was not read

    queue.gate.set()
    assert await answers(written, 2) == [(1, FrameKind.RESULT), (2, FrameKind.RESULT)]
    assert queue.taken == MANY * len(PIECE)
    await leave(reader, serving)


async def test_a_mail_that_fails_meanwhile_does_not_hold_up_its_connection() -> None:
    queue = SlowQueue(StoreFailed("cannot write"))
    reader, written, serving = await begun(queue)

    queue.gate.set()

    assert await answers(written, 2) == [(1, FrameKind.ERROR), (2, FrameKind.RESULT)]
    await leave(reader, serving)


async def test_an_owner_that_closes_does_not_wait_for_a_mail_that_waits() -> None:
    _, _, serving = await begun(SlowQueue())

    serving.cancel()

    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(serving, 60)


@pytest.mark.parametrize(
    "first",
    [
        rpc.json_frame(1, FrameKind.CALL, {"op": "size"}),
        rpc.frame(1, FrameKind.STORED, b"x"),
        rpc.frame(1, FrameKind.DATA, b"x"),
        rpc.json_frame(9, FrameKind.CALL, HELLO | {"protocol": 2})
        + rpc.json_frame(1, FrameKind.CALL, {"op": "size"}),
    ],
    ids=["another call", "a mail", "content", "hello of another protocol"],
)
async def test_a_connection_that_does_not_begin_with_hello_is_ended(first: bytes) -> None:
    reader, written = asyncio.StreamReader(), Written()
    reader.feed_data(first)

    with pytest.raises(InvalidInput, match="the first call is hello"):
        await Serving(SlowQueue(), reader, written).serve()  # type: ignore[arg-type]

    assert written.frames == [(1, FrameKind.ERROR)]
