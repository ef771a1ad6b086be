"""Connections of HTTP whose clients do not read, or are not users."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest
from aiohttp import web

from postroad.intake.web import server
from postroad.intake.web.server import HttpConnection
from support.intake_files import HTTP, an_intake_by_file
from support.manual_loop import move, run

REQUEST = b"GET /v1/openapi.json HTTP/1.1\r\nHost: x\r\n\r\n"


class Transport(asyncio.Transport):
    """Of a client that reads nothing: what is written stays."""

    is_closed = is_aborted = False

    def __init__(self, protocol: HttpConnection) -> None:
        super().__init__()
        self.protocol = protocol

    def write(self, data: object) -> None:
        pass

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_aborted = True
        self.protocol.connection_lost(None)


async def nothing(request: web.BaseRequest) -> web.StreamResponse:
    return web.Response()


def connected() -> tuple[HttpConnection, Transport]:
    with socket.socket() as listening:
        connection = HttpConnection(web.Server(nothing), listening, "", 180.0)
    transport = Transport(connection)
    connection.connection_made(transport)
    connection.data_received(REQUEST)
    return connection, transport


def test_a_connection_that_does_not_read_is_ended_within_the_time_of_a_block() -> None:
    async def work() -> None:
        connection, transport = connected()
        await move(1)
        connection.pause_writing()
        await move(181)
        assert transport.is_aborted
        assert connection.is_lost.done()

    run(work())


def test_a_connection_that_closes_and_does_not_read_is_ended() -> None:
    async def work() -> None:
        _, transport = connected()
        await move(31)
        assert transport.is_closed
        assert not transport.is_aborted
        await move(180)
        assert transport.is_aborted

    run(work())


def test_a_connection_that_reads_slowly_goes_on() -> None:
    async def work() -> None:
        connection, transport = connected()
        connection.keep_alive(False)
        for _ in range(20):
            connection.pause_writing()
            await move(80)
            connection.resume_writing()
            connection.data_received(REQUEST)
            await move(1)
        assert not transport.is_aborted
        transport.abort()

    run(work())


async def test_connections_without_a_login_that_do_not_read_make_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "MIN_IDLE_SECONDS", 0.2)
    async with an_intake_by_file(tmp_path, HTTP, max_sessions=6, client_sessions=6) as running:
        port = running.ports["http"]
        held = []
        for _ in range(3):
            _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(REQUEST * 3000)
            held.append(writer)
        async with asyncio.timeout(60):
            while not (await answer(port)).startswith(b"HTTP/1.1 200"):
                pass  # on a busy machine, it may itself be the one that is ended
        for each in held:
            each.transport.abort()


async def answer(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(REQUEST)
    try:
        return await reader.readline()
    except ConnectionError:
        return b""
    finally:
        writer.transport.abort()
