"""Replies to STARTTLS in odd forms: TLS begins by their digits, and nothing that came in
clear counts as sent under it."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from postroad.domain.smtp.next_hops import NextHop, TlsMode
from postroad.ports.delivery import ConnectionClosed
from postroad.routing.routes import ResolvedHop
from postroad.smtp.client.connections import SmtpConnector
from support.connections import Events, a_job
from support.issuing import issue
from support.reply_forms import READABLE, UNCLEAR, ReplyForm

SERVER = issue("localhost")
TLS, CLEAR, WAITS = "over TLS", "in clear", "waits"
MODES = (TlsMode.OPPORTUNISTIC, TlsMode.ENCRYPTED)


class Hop:
    """Answers STARTTLS with these octets; TLS begins behind them where they are a consent."""

    def __init__(self, folder: Path, reply: bytes, *, consents: bool) -> None:
        self._reply, self._consents = reply, consents
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(*SERVER.write(folder))
        self.went = WAITS

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._talk(reader, writer)
        except (OSError, EOFError):
            pass  # the client is gone
        finally:
            writer.transport.abort()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        is_secured = False
        writer.write(b"220 hop\r\n")
        while verb := (await reader.readuntil(b"\r\n")).split()[0]:
            if verb == b"STARTTLS":
                writer.write(self._reply)
                await writer.drain()
                if self._consents:
                    await writer.start_tls(self._context)
                    is_secured = True
            elif verb == b"DATA":
                writer.write(b"354 go\r\n")
                await reader.readuntil(b"\r\n.\r\n")
                self.went = TLS if is_secured else CLEAR
                writer.write(b"250 kept\r\n")
            elif verb == b"EHLO" and not is_secured:
                writer.write(b"250-hop\r\n250 STARTTLS\r\n")
            else:
                writer.write(b"250 ok\r\n")


async def went(folder: Path, mode: TlsMode, reply: bytes, *, consents: bool) -> str:
    hop, events = Hop(folder, reply, consents=consents), Events()
    server = await asyncio.start_server(hop.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    to = ResolvedHop(NextHop("localhost", port, mode), ("127.0.0.1",))
    connection = SmtpConnector(ehlo_name="relay.example").open(to, events)
    connection.submit(a_job(1))
    while not (events.finished or any(isinstance(e, ConnectionClosed) for e in events.all)):
        await events.next()
    connection.close()
    await events.until_closed()
    server.close()
    return hop.went


@pytest.mark.parametrize("form", READABLE.values(), ids=READABLE)
async def test_starttls_is_answered_by_the_digits(form: ReplyForm, tmp_path: Path) -> None:
    for mode in MODES:
        assert await went(tmp_path, mode, form(220), consents=True) == TLS
    assert await went(tmp_path, MODES[0], form(454), consents=False) == CLEAR
    assert await went(tmp_path, MODES[1], form(454), consents=False) == WAITS


@pytest.mark.parametrize("form", UNCLEAR.values(), ids=UNCLEAR)
async def test_an_unclear_reply_to_starttls_is_none(form: ReplyForm, tmp_path: Path) -> None:
    assert await went(tmp_path, MODES[0], form(0), consents=False) == CLEAR
    assert await went(tmp_path, MODES[1], form(0), consents=False) == WAITS


@pytest.mark.parametrize("reply", [b"220 go\r\n", b"220 go\n", b"220-a\n220 go\r\r\n", b"220\r\n"])
async def test_a_reply_behind_the_consent_ends_the_session(reply: bytes, tmp_path: Path) -> None:
    injected = reply + b"250 injected\r\n"

    assert await went(tmp_path, MODES[1], injected, consents=True) == WAITS
