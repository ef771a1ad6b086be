"""The line between pods and servers: it carries bytes, and can be cut and mended."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stack import forwarder
from stack.forwarder import Forward, Forwarder


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while chunk := await reader.read(65536):
            writer.write(chunk)
            await writer.drain()
    writer.close()


@pytest.fixture
async def target_port() -> AsyncIterator[int]:
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()


@pytest.fixture
async def line(target_port: int) -> AsyncIterator[Forwarder]:
    made = Forwarder(target_port)
    await made.start()
    yield made
    await made.close()


async def say(port: int, text: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(text)
        writer.write_eof()
        return await reader.read()
    finally:
        writer.close()


async def test_bytes_go_both_ways_until_both_ends_are_done(line: Forwarder) -> None:
    text = bytes(range(256)) * 20_000

    assert await say(line.port, text) == text


async def test_a_silenced_line_keeps_what_is_on_its_way_until_it_is_mended(
    line: Forwarder,
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", line.port)
    writer.write(b"before")
    assert await reader.readexactly(6) == b"before"

    line.silence()
    writer.write(b"meanwhile")
    new = asyncio.ensure_future(say(line.port, b"new"))
    answer = asyncio.ensure_future(reader.readexactly(9))
    done, _ = await asyncio.wait([new, answer], timeout=0.2)
    assert not done
    await line.mend()

    assert await answer == b"meanwhile"
    assert await new == b"new"
    writer.close()


async def test_a_cut_resets_what_is_open_and_refuses_what_is_new(line: Forwarder) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", line.port)
    writer.write(b"x")
    await reader.readexactly(1)

    await line.cut()

    with pytest.raises(ConnectionResetError):
        await reader.readexactly(1)
    with pytest.raises(ConnectionRefusedError):
        await say(line.port, b"x")
    writer.close()


async def test_a_mended_line_works_again_on_the_same_port(line: Forwarder) -> None:
    port = line.port

    await line.cut()
    await line.cut()
    await line.mend()
    await line.mend()

    assert line.port == port
    assert await say(port, b"again") == b"again"


async def test_a_target_that_is_down_ends_the_connection_and_may_come_back() -> None:
    line = Forwarder(1)
    await line.start()
    with contextlib.suppress(ConnectionResetError):
        assert await say(line.port, b"x") == b""
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    line._target = ("127.0.0.1", server.sockets[0].getsockname()[1])

    assert await say(line.port, b"back") == b"back"
    server.close()
    await line.close()


async def test_a_target_that_resets_resets_the_client() -> None:
    async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        forwarder._reset(writer)

    server = await asyncio.start_server(reset, "127.0.0.1", 0)
    line = Forwarder(server.sockets[0].getsockname()[1])
    await line.start()

    with pytest.raises(ConnectionResetError):
        await say(line.port, b"x")
    server.close()
    await line.close()


async def test_the_file_of_forwards_is_followed(tmp_path: Path, target_port: int) -> None:
    path = tmp_path / "forwards.json"
    task = asyncio.create_task(forwarder.follow(path, "127.0.0.2"))

    async def until(answers: bool) -> None:
        async with asyncio.timeout(60):
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.2", target_port)
                    writer.close()
                    reached = True
                except (ConnectionRefusedError, ConnectionResetError):
                    reached = False
                if reached == answers:
                    return
                await asyncio.sleep(0.02)

    forwarder.write_forwards(path, {target_port: Forward(target_port)})
    await until(answers=True)
    forwarder.write_forwards(path, {target_port: Forward(target_port, cut=True)})
    await until(answers=False)
    forwarder.write_forwards(path, {target_port: Forward(target_port)})
    await until(answers=True)
    forwarder.write_forwards(path, {})
    await until(answers=False)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_forwards_are_read_as_written(tmp_path: Path) -> None:
    forwards = {1: Forward(1), 2: Forward(2, cut=True)}

    forwarder.write_forwards(tmp_path / "f.json", forwards)

    assert forwarder.read_forwards(tmp_path / "f.json") == forwards
    assert forwarder.read_forwards(tmp_path / "none.json") == {}
