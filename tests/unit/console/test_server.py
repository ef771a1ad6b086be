"""The console over sockets: clients that send no request, or a part of one, hold no connection."""

from __future__ import annotations

import asyncio
import socket

import pytest

from postroad.adapters.clocks import MachineClock
from postroad.console.api import server
from postroad.console.api.access import Console
from postroad.console.queues import OpenQueues
from postroad.console.rights import SessionRights
from postroad.telemetry.health import Readiness


async def test_a_request_that_does_not_come_ends_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "MAX_REQUEST_SECONDS", 0.1)
    listening, stop = socket.create_server(("127.0.0.1", 0)), asyncio.Event()
    console = Console.over(OpenQueues([]), SessionRights(), MachineClock())
    host, port = listening.getsockname()
    probe = f"GET /healthz HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode()
    served = server.ConsoleServer(listening, console, Readiness())
    serving = asyncio.create_task(server.serve(served, stop))

    async with asyncio.timeout(60):
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
        stop.set()
        await serving
    await console.operations.close()
