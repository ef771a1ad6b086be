"""What a session does within the call that brings a client's words, and what it leaves to its task.
The rest of it is proved over real sockets (tests/integration/test_smtp_intake.py)."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

from postroad.adapters.machine.clocks import MachineChance, MachineClock
from postroad.adapters.network.serving import ServingWire
from postroad.intake.dialogue import Offer
from postroad.intake.sessions import BURST, Receiver, Session
from postroad.ports.queue import MailQueue
from support.accounts import Accounts
from support.transports import FakeTransport

GREETING = b"220 intake.example ESMTP\r\n"


@asynccontextmanager
async def a_session(tls: ssl.SSLContext | None = None) -> AsyncIterator[ServingWire]:
    """A session that has greeted; `written` is what it says after that."""
    queue = cast("MailQueue", Accounts())
    receiver = Receiver(queue, Offer("intake.example", 1000), MachineClock(), MachineChance(), tls)
    wire = ServingWire(lambda _: None)
    wire.connection_made(FakeTransport())
    running = asyncio.create_task(Session(wire, receiver).run())
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
        wire.data_received(b"HELO x\r\nMAIL FROM:<>\r\nRCPT TO:<a@b.example>\r\nDATA\r\n")

        assert said(wire) == [
            b"250 intake.example\r\n250 2.1.0 ok\r\n250 2.1.5 ok\r\n354 end with <CRLF>.<CRLF>\r\n"
        ]


async def test_a_busy_client_is_answered_in_bursts() -> None:
    async with a_session() as wire:
        wire.data_received(b"NOOP\r\n" * (BURST + 1))
        assert said(wire) == [b"250 2.0.0 ok\r\n" * BURST]
        await asyncio.sleep(0)

        assert said(wire)[1:] == [b"250 2.0.0 ok\r\n"]


async def test_what_follows_data_at_once_is_content_and_no_command() -> None:
    async with a_session() as wire:
        wire.data_received(b"HELO x\r\nMAIL FROM:<>\r\nRCPT TO:<a@b.example>\r\nDATA\r\nQUIT\r\n")
        await asyncio.sleep(0)
        wire.data_received(b"NOOP\r\n.\r\nNOOP\r\n")
        while len(said(wire)) < 3:
            await asyncio.sleep(0)

        assert said(wire)[0].endswith(b"354 end with <CRLF>.<CRLF>\r\n")
        assert said(wire)[1].startswith(b"250 2.0.0 queued as ")
        assert said(wire)[2] == b"250 2.0.0 ok\r\n"


async def test_a_client_hears_the_go_ahead_for_tls_only_when_tls_can_begin() -> None:
    """In between its first octets would count as sent in clear."""
    async with a_session(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)) as wire:
        wire.data_received(b"NOOP\r\nSTARTTLS\r\n")

        assert said(wire) == [b"250 2.0.0 ok\r\n"]
