"""The `Connector` contract in memory, and over loopback to a sink, pipelined and stepwise."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from contract.connections_contract import ConnectionContract, HopUnderTest
from postroad.adapters.memory.connections import Loss, MemoryConnector
from postroad.adapters.network.connections import SmtpConnector
from postroad.domain.mail import Outcome
from postroad.domain.next_hops import NextHop, TlsMode
from postroad.routing.routes import ResolvedHop
from support.sink import EXTENSIONS, HANG_UP, Sink

LOST_AT = {Loss.BEFORE: "MAIL", Loss.WITHIN: "DATA", Loss.AT_END: "DOT"}


class MemoryHop:
    def __init__(self) -> None:
        self.connector = MemoryConnector()
        self.resolved = ResolvedHop(NextHop("hop.example"), ("192.0.2.1",))

    def accept_no_connection(self, reply: str) -> None:
        self.connector.refusal = reply

    def refuse(self, recipient: str, reply: str) -> None:
        self.connector.outcomes[recipient] = Outcome.failed(reply)

    def lose(self, sender: str, where: Loss) -> None:
        self.connector.losses[sender] = where

    def hold_back(self) -> None:
        self.connector.gate.clear()

    def go_on(self) -> None:
        self.connector.gate.set()

    async def until_held(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    def contents(self) -> list[bytes]:
        return [content for _, content in self.connector.delivered]


class SinkHop:
    def __init__(self, sink: Sink, socket: Path | None = None) -> None:
        self._sink = sink
        self._replies: dict[tuple[str, str], str] = {}
        self._sender = ""
        self._is_held = asyncio.Event()
        sink.rule = self._rule
        self.connector = SmtpConnector(ehlo_name="relay.example")
        no_such_name = NextHop("hop.invalid", sink.port, TlsMode.NONE)
        self.resolved = ResolvedHop(no_such_name, ("127.0.0.1",))
        if socket is not None:
            self.resolved = ResolvedHop(NextHop.at_socket(socket), ())

    def _rule(self, verb: str, argument: str) -> str | None:
        if verb == "MAIL":
            self._sender = argument
        if verb == "CONTENT":
            self._is_held.set()
        about = argument if verb in ("CONNECT", "RCPT") else self._sender
        for (given, part), reply in self._replies.items():
            if given == verb and part in about:
                return reply
        return None

    def accept_no_connection(self, reply: str) -> None:
        self._replies["CONNECT", ""] = reply

    def refuse(self, recipient: str, reply: str) -> None:
        self._replies["RCPT", recipient] = reply

    def lose(self, sender: str, where: Loss) -> None:
        self._replies[LOST_AT[where], sender] = HANG_UP

    def hold_back(self) -> None:
        self._sink.gate.clear()

    def go_on(self) -> None:
        self._sink.gate.set()

    async def until_held(self) -> None:
        await self._is_held.wait()

    def contents(self) -> list[bytes]:
        return [mail.content for mail in self._sink.mails]


class TestMemoryConnection(ConnectionContract):
    @pytest.fixture
    async def hop(self) -> HopUnderTest:
        return MemoryHop()


class TestSmtpConnection(ConnectionContract):
    extensions: tuple[str, ...] = EXTENSIONS

    @pytest.fixture
    async def hop(self) -> AsyncIterator[HopUnderTest]:
        async with Sink(extensions=self.extensions) as sink:
            yield SinkHop(sink)


class TestSmtpConnectionStepwise(TestSmtpConnection):
    extensions = EXTENSIONS[1:]


class TestLmtpConnectionAtASocket(ConnectionContract):
    @pytest.fixture
    async def hop(self, tmp_path: Path) -> AsyncIterator[HopUnderTest]:
        socket = tmp_path / "lmtp"
        async with Sink(lmtp=True, socket=socket) as sink:
            yield SinkHop(sink, socket)
