"""Lines that a client reads, however they arrive."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, cast

import pytest

from postroad.smtp.client.client import ClientWire
from postroad.smtp.wire import ConnectionLost, LineTooLong, TooSlow
from support.transports import FakeTransport

SOON, LATER = timedelta(milliseconds=20), timedelta(seconds=5)


class Transport:
    """A transport whose other side a test plays."""

    def __init__(self, **info: object) -> None:
        self._info = {"sockname": ("192.0.2.1", 25), **info}

    def get_extra_info(self, name: str) -> object:
        return self._info.get(name)

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


def due(timeout: timedelta) -> float:
    """Return an instant of the loop's clock."""
    return asyncio.get_running_loop().time() + timeout.total_seconds()


@pytest.fixture
async def wire() -> ClientWire:
    made = ClientWire()
    made.connection_made(cast("Any", Transport()))
    return made


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"\r\n250 x\r\n", [b"", b"250 x"]),
        (b"1234567890\r\nnext\r\n", [b"1234567890", b"next"]),
        (b"1\r2\r\nnext\r\n", [b"1\r2", b"next"]),
        (b"1234\r\r\nnext\r\n", [b"1234", b"next"]),
        (b"1234\n250 next\n", [b"1234", b"250 next"]),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 100])
async def test_lines_end_by_crlf_or_lf_however_they_arrive(
    wire: ClientWire, data: bytes, lines: list[bytes], size: int
) -> None:
    async def arrive() -> None:
        for start in range(0, len(data), size):
            wire.data_received(data[start : start + size])
            await asyncio.sleep(0)

    arriving = asyncio.ensure_future(arrive())

    assert [await wire.read_line(12, due(LATER)) for _ in lines] == lines
    await arriving
    assert wire.is_open


async def test_an_lf_with_more_text_behind_it_is_part_of_a_line(wire: ClientWire) -> None:
    wire.data_received(b"550 a\nb\n\nc\n\r\n250 x\r\n")

    assert await wire.read_line(20, due(LATER)) == b"550 a\nb\n\nc\n"
    assert await wire.read_line(20, due(LATER)) == b"250 x"


@pytest.mark.parametrize("data", [b"123456\r\n", b"123456\n", b"1234567", b"\n" * 7 + b"x"])
async def test_a_line_beyond_the_limit_is_refused_before_its_end(
    wire: ClientWire, data: bytes
) -> None:
    reading = asyncio.ensure_future(wire.read_line(5, due(LATER)))
    for octet in data:
        wire.data_received(bytes([octet]) if b"\n" * 2 not in data else data)
        await asyncio.sleep(0)

    with pytest.raises(LineTooLong):
        await reading


async def test_a_line_that_does_not_come_is_too_slow_or_lost(wire: ClientWire) -> None:
    wire.data_received(b"250 half")
    assert not wire.is_open
    with pytest.raises(TooSlow):
        await wire.read_line(100, due(SOON))

    wire.eof_received()
    with pytest.raises(ConnectionLost):
        await wire.read_line(100, due(LATER))


async def test_arrival_waits_for_octets_or_to_be_woken(wire: ClientWire) -> None:
    with pytest.raises(TooSlow):
        await wire.arrival(SOON)
    waiting = asyncio.ensure_future(wire.arrival(LATER))
    await asyncio.sleep(0)
    wire.wake()
    await waiting

    wire.data_received(b"x")
    await wire.arrival(SOON)


async def test_this_side_has_an_address_while_there_is_a_connection(wire: ClientWire) -> None:
    assert wire.local_address == "192.0.2.1"
    with pytest.raises(ConnectionLost):
        _ = ClientWire().local_address


async def test_a_plain_connection_stays_open_for_what_a_peer_still_reads(wire: ClientWire) -> None:
    assert wire.eof_received() is True

    secured = ClientWire()
    assert secured.eof_received() is False, "there is no connection yet"
    secured.connection_made(cast("Any", Transport(sslcontext=object())))
    assert secured.eof_received() is False, "TLS has no half-close"


class Unread(FakeTransport):
    """A transport that closes when its peer has read what was written; this one never reads."""

    def __init__(self, wire: ClientWire) -> None:
        super().__init__()
        self._wire = wire

    def get_write_buffer_size(self) -> int:
        return 1

    def abort(self) -> None:
        super().abort()
        self._wire.connection_lost(None)


async def test_a_peer_that_does_not_read_what_is_left_is_closed_in_time() -> None:
    wire = ClientWire()
    transport = Unread(wire)
    wire.connection_made(transport)

    await asyncio.wait_for(wire.close(SOON), LATER.total_seconds())

    assert transport.aborted == 1
