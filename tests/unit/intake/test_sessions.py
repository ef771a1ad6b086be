"""What a session does within the call that brings a client's words, and what it leaves to its task.
The rest of it is proved over real sockets (tests/integration/test_smtp_intake.py)."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import cast

import pytest
from prometheus_client import REGISTRY

from postroad.adapters.clocks import MachineClock, SystemRandomness
from postroad.intake.clients import Rights
from postroad.intake.commands import MAX_LINE
from postroad.intake.context import IntakeContext
from postroad.intake.dialogue import MAX_ERRORS, Offer
from postroad.intake.sessions import BURST, IntakeSession
from postroad.ports.mail_queue import MailQueue
from postroad.smtp.server import CHUNK, COMMANDS, MAX_DROPPED, ServingWire
from postroad.telemetry.metrics import of_queue
from support.recording_queue import RecordingQueue
from support.transports import FakeTransport

GREETING = b"220 intake.example ESMTP\r\n"


@asynccontextmanager
async def a_session(tls: ssl.SSLContext | None = None) -> AsyncIterator[ServingWire]:
    """A session that has greeted; `written` is what it says after that."""
    queue = cast("MailQueue", RecordingQueue())
    context = IntakeContext(
        queue,
        Offer("intake.example", 1000),
        MachineClock(),
        SystemRandomness(),
        None if tls is None else lambda: tls,
    )
    wire = ServingWire()
    wire.connection_made(FakeTransport())
    running = asyncio.create_task(IntakeSession(wire, context, Rights(may_relay=True)).run())
    await asyncio.sleep(0)
    try:
        yield wire
    finally:
        wire.connection_lost(None)
        await running


def said(wire: ServingWire) -> list[bytes]:
    """What the session has written after the greeting."""
    transport = wire._transport
    assert isinstance(transport, FakeTransport)
    assert transport.written[0] == GREETING
    return transport.written[1:]


async def test_pipelined_commands_are_answered_at_once_with_one_write() -> None:
    async with a_session() as wire:
        wire.data_received(b"HELO x\r\n")
        wire.data_received(b"MAIL FROM:<>\r\nRCPT TO:<a@b.example>\r\nDATA\r\n")

        assert said(wire) == [
            b"250 intake.example\r\n",
            b"250 2.1.0 ok\r\n250 2.1.5 ok\r\n354 end with <CRLF>.<CRLF>\r\n",
        ]


async def test_the_first_of_a_content_is_read_in_one_piece() -> None:
    async with a_session() as wire:
        wire.data_received(b"HELO x\r\n")
        wire.data_received(b"MAIL FROM:<>\r\nRCPT TO:<a@b.example>\r\n")
        assert len(wire.get_buffer(-1)) == COMMANDS
        wire.data_received(b"DATA\r\n")
        assert len(wire.get_buffer(-1)) == CHUNK
        wire.data_received(b"body\r\n.\r\n")
        while len(said(wire)) < 4:
            await asyncio.sleep(0)
        wire.data_received(b"NOOP\r\n")
        assert len(wire.get_buffer(-1)) == COMMANDS


@pytest.mark.parametrize(
    ("sent", "lingers"),
    [(b"QUIT\r\n", 0), (b"QUIT\r\nNOOP\r\n", 1), (b"GET / HTTP/1.1\r\n", 1)],
)
async def test_only_a_client_that_quits_and_sends_no_more_is_left_at_once(
    sent: bytes, lingers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lingered, closed = [], asyncio.Event()

    async def linger(wire: ServingWire, timeout: timedelta) -> None:
        lingered.append(timeout)

    async def close(wire: ServingWire, timeout: timedelta) -> None:
        closed.set()

    monkeypatch.setattr(ServingWire, "linger", linger)
    monkeypatch.setattr(ServingWire, "close", close)
    async with a_session() as wire:
        wire.data_received(sent)
        await closed.wait()

    assert len(lingered) == lingers


async def test_a_busy_client_is_answered_in_bursts() -> None:
    async with a_session() as wire:
        wire.data_received(b"HELO x\r\n")
        wire.data_received(b"MAIL FROM:<>\r\n")
        wire.data_received(b"RCPT TO:<a@b.example>\r\n" * (2 * BURST + 1))
        assert said(wire)[2:] == [b"250 2.1.5 ok\r\n" * BURST]
        await asyncio.sleep(0)
        await asyncio.sleep(0)

        assert said(wire)[3:] == [b"250 2.1.5 ok\r\n" * BURST, b"250 2.1.5 ok\r\n"]


async def test_what_follows_the_end_of_a_mail_at_once_is_a_command() -> None:
    async with a_session() as wire:
        wire.data_received(b"HELO x\r\n")
        wire.data_received(b"MAIL FROM:<>\r\nRCPT TO:<a@b.example>\r\nDATA\r\n")
        wire.data_received(b"QUIT\r\n")
        await asyncio.sleep(0)
        wire.data_received(b"NOOP\r\n.\r\nNOOP\r\n")
        while len(said(wire)) < 4:
            await asyncio.sleep(0)

        assert said(wire)[1].endswith(b"354 end with <CRLF>.<CRLF>\r\n")
        assert said(wire)[2].startswith(b"250 2.0.0 queued as ")
        assert said(wire)[3] == b"250 2.0.0 ok\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        b"EHLO x\r\nMAIL FROM:<>\r\n",
        b"HELO x\r\nQUIT\r\n",
        b"MAIL FROM:<>\r\nRCPT TO:<a@b.example>\r\nDATA\r\nSubject: x\r\n\r\n.\r\n",
    ],
)
async def test_a_client_that_does_not_wait_where_it_must_is_cut_off(sent: bytes) -> None:
    async with a_session() as wire:
        if sent.startswith(b"MAIL"):
            wire.data_received(b"EHLO x\r\n")
        wire.data_received(sent)

        assert said(wire)[-1].endswith(b"554 5.5.0 wait for the reply before sending more\r\n")


@pytest.mark.parametrize(
    "line", [b"POST / HTTP/1.1", b"GET /x HTTP/1.0", b"Host: x.example", b"CONNECT a:25 HTTP/1.1"]
)
async def test_an_http_client_is_cut_off_at_its_first_line(line: bytes) -> None:
    async with a_session() as wire:
        wire.data_received(line + b"\r\nHELO x\r\nMAIL FROM:<>\r\n")

        assert said(wire) == [b"421 4.7.0 this is a mail server\r\n"]


async def test_a_client_that_is_sent_away_for_lines_that_are_too_long_is_counted() -> None:
    def counted() -> float:
        namespace, name = of_queue(RecordingQueue().name)
        labels = {"namespace": namespace, "name": name, "reason": "errors"}
        return REGISTRY.get_sample_value("postroad_refused_clients_total", labels) or 0.0

    before = counted()
    async with a_session() as wire:
        for _ in range(MAX_ERRORS):
            wire.data_received(b"x" * (MAX_LINE + 1) + b"\r\n")

        assert said(wire)[-1] == b"421 4.7.0 too many errors\r\n"
    assert counted() == before + 1


async def test_a_client_whose_line_has_no_end_is_sent_away() -> None:
    async with a_session() as wire:
        wire.data_received(b"NOOP ")
        for _ in range(MAX_ERRORS * MAX_DROPPED // COMMANDS + 100):
            wire.data_received(b"x" * COMMANDS)

        assert said(wire)[-1] == b"421 4.7.0 too many errors\r\n"


async def test_a_client_hears_the_go_ahead_for_tls_only_when_tls_can_begin() -> None:
    """In between its first octets would count as sent in clear."""
    async with a_session(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)) as wire:
        wire.data_received(b"NOOP\r\nSTARTTLS\r\n")

        assert said(wire) == [b"250 2.0.0 ok\r\n"]
