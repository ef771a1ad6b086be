"""The client's half of the socket, against an owner that the test plays."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from postroad.embedded.rpc import rpc
from postroad.embedded.rpc.connection import OwnerConnection
from postroad.embedded.rpc.rpc import FrameKind
from postroad.errors import InvalidMail, StoreUnavailable

SOON = 10


class Owner:
    """The other end of a connection."""

    def __init__(self) -> None:
        self.received: asyncio.Queue[tuple[int, FrameKind, bytes]] = asyncio.Queue()
        self._writer: asyncio.StreamWriter

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer, frames = writer, rpc.FrameReader()
        while data := await reader.read(rpc.READ):
            for number, kind, body in frames.feed(data):
                self.received.put_nowait((number, FrameKind(kind), bytes(body)))
        writer.close()

    async def next_frame(self) -> tuple[int, FrameKind, bytes]:
        async with asyncio.timeout(SOON):
            return await self.received.get()

    def answer(self, number: int, result: dict[str, Any]) -> None:
        self._writer.write(rpc.json_frame(number, FrameKind.RESULT, result))

    def yield_elements(self, number: int, count: int) -> None:
        self._writer.write(rpc.json_frame(number, FrameKind.ELEMENT, {}) * count)


@pytest.fixture
async def owner(tmp_path: Path) -> AsyncIterator[Owner]:
    played = Owner()
    server = await asyncio.start_unix_server(played.serve, tmp_path / "socket")
    yield played
    server.close()
    await server.wait_closed()


@pytest.fixture
async def connection(owner: Owner, tmp_path: Path) -> AsyncIterator[OwnerConnection]:
    connection = await OwnerConnection.open(tmp_path / "socket")
    yield connection
    await connection.close()


async def cancelled_call(connection: OwnerConnection, owner: Owner, operation: str) -> int:
    """Make a call whose caller stops waiting; return its number when the owner has read that."""
    call = asyncio.ensure_future(connection.call(operation))
    number, kind, _ = await owner.next_frame()
    assert kind is FrameKind.CALL
    call.cancel()
    await asyncio.wait([call])
    assert await owner.next_frame() == (number, FrameKind.CANCEL, b"")
    return number


async def test_a_call_that_fits_into_no_frame_is_refused_and_the_connection_goes_on(
    connection: OwnerConnection, owner: Owner
) -> None:
    """The owner would end the connection, and give all that it has leased to others."""
    with pytest.raises(InvalidMail, match="too large"):
        await connection.call("refused", reason="x" * rpc.MAX_FRAME)

    connection.tell("give_back", item=1)
    _, _, body = await owner.next_frame()
    assert json.loads(body) == {"op": "give_back", "item": 1}


async def test_an_item_that_comes_after_its_consumer_stopped_waiting_is_given_back(
    connection: OwnerConnection, owner: Owner
) -> None:
    number = await cancelled_call(connection, owner, "next")

    owner.answer(number, {"item": 7})

    _, kind, body = await owner.next_frame()
    assert (kind, json.loads(body)) == (FrameKind.CALL, {"op": "give_back", "item": 7})


async def test_an_owner_that_goes_while_a_call_is_sent_is_unavailable(
    connection: OwnerConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def drain() -> None:
        raise ConnectionResetError

    monkeypatch.setattr(connection._writer, "drain", drain)

    with pytest.raises(StoreUnavailable, match="went away"):
        async with asyncio.timeout(SOON):
            await connection.call("size")


async def test_other_results_that_come_too_late_are_passed_over(
    connection: OwnerConnection, owner: Owner
) -> None:
    number = await cancelled_call(connection, owner, "size")

    owner.answer(number, {"item": 7})
    connection.tell("shape", item=8)

    _, _, body = await owner.next_frame()
    assert json.loads(body) == {"op": "shape", "item": 8}


async def test_a_client_asks_for_more_once_for_each_burst_that_it_has_read(
    connection: OwnerConnection, owner: Owner
) -> None:
    async def read() -> int:
        return sum([1 async for _ in connection.stream("browse", selector=None)])

    reading = asyncio.ensure_future(read())
    number, _, _ = await owner.next_frame()
    owner.yield_elements(number, 3 * rpc.BURST - 1)
    for _ in range(2):
        assert await owner.next_frame() == (number, FrameKind.MORE, b"")
    owner.answer(number, {})

    assert await reading == 3 * rpc.BURST
    connection.tell("shape", item=8)
    _, kind, _ = await owner.next_frame()
    assert kind is FrameKind.CALL, "it asked for no more"
