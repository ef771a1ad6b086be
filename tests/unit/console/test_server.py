"""The console over sockets: clients that send no request, or a part of one, or read no response,
hold no connection, and take no place of others."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from postroad.adapters.clocks import MachineClock
from postroad.cli.processes.event_loop import EventLoop
from postroad.console.api import server
from postroad.console.api.access import Console
from postroad.console.queues import OpenQueues
from postroad.console.rights import SessionRights
from postroad.telemetry.health import Readiness


@asynccontextmanager
async def served() -> AsyncIterator[tuple[str, int, bytes]]:
    """Serve a console; yield its host and port, and a request that needs no session."""
    listening, stop = socket.create_server(("127.0.0.1", 0)), asyncio.Event()
    console = Console.over(OpenQueues([]), SessionRights(), MachineClock())
    host, port = listening.getsockname()
    probe = f"GET /healthz HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode()
    serving = asyncio.create_task(
        server.serve(server.ConsoleServer(listening, console, Readiness()), stop)
    )
    try:
        async with asyncio.timeout(60):
            yield host, port, probe
    finally:  # else a test that fails would wait for the server without end
        stop.set()
        await asyncio.wait_for(serving, 30)
        await console.operations.close()


@pytest.mark.parametrize("loop", [EventLoop, asyncio.new_event_loop])
def test_idle_connections_take_no_place_of_a_request(
    monkeypatch: pytest.MonkeyPatch, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 10)
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(ask_beside_strangers())


async def ask_beside_strangers() -> None:
    async with served() as (host, port, probe):
        for part in (
            b"",
            probe[:-2],
            probe,
            b"GET / HTTP/1.1\r\nContent-Length: 9\r\n" + probe[24:],
        ):
            strangers = [await asyncio.open_connection(host, port) for _ in range(12)]
            for _, stranger in strangers:
                stranger.write(part)
            await asyncio.sleep(0.05)
            asking = socket.create_connection((host, port))
            asking.sendall(probe)  # is there when the loop hears of the connection
            reader, writer = await asyncio.open_connection(sock=asking)
            assert await reader.readline() == b"HTTP/1.1 200 OK\r\n", part
            for _, each in [*strangers, (reader, writer)]:
                each.close()


async def test_a_request_that_does_not_come_ends_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "MAX_REQUEST_SECONDS", 0.1)
    async with served() as (host, port, probe):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(probe)
        assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        await reader.readuntil(b"alive\n")
        for part in (b"", probe[:-2], b"GET / HTTP/1.1\r\nContent-Length: 9\r\n" + probe[24:]):
            idle, sending = await asyncio.open_connection(host, port)
            sending.write(part)
            await idle.read()
            sending.close()
        writer.write(probe)
        assert await reader.readline() == b"HTTP/1.1 200 OK\r\n", "between two requests it stays"
        writer.close()


async def unread(host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Ask for more than a connection holds, and read none of it."""
    asking = f"GET /static/htmx.min.js HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode()
    reader, writer = await asyncio.open_connection(host, port, limit=1024)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(asking * 400)
    return reader, writer


def are_behind() -> bool:
    """Return whether there are connections, and nothing more is written to any of them."""
    made = [each for each in gc.get_objects() if isinstance(each, server._Protocol)]
    connected = [each for each in made if each in each.connections]
    return bool(connected) and all(each.flow.write_paused for each in connected)


async def test_responses_that_are_not_read_take_no_place_of_a_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 3)
    monkeypatch.setattr(server, "MAX_LEAVING", 1)
    async with served() as (host, port, probe):
        strangers = []
        for _ in range(4):
            strangers.append(await unread(host, port))
            while not are_behind():
                await asyncio.sleep(0.05)
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(probe)
        assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        for _, each in (*strangers, (reader, writer)):
            each.transport.abort()


async def test_a_response_of_which_nothing_is_read_ends_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "MAX_UNREAD_SECONDS", 1.0)
    async with served() as (host, port, _):
        reader, stranger = await unread(host, port)
        while not are_behind():
            await asyncio.sleep(0.05)
        while are_behind():
            await asyncio.sleep(0.05)
        assert not reader.at_eof(), "it was not the client that left"
        stranger.transport.abort()
