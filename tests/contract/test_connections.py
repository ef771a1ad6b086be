"""The `Connector` contract in memory, over loopback to a sink, pipelined and stepwise, and to
programs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from threading import Event

import pytest

from contract.connections_contract import (
    ConnectionContract,
    DialogueContract,
    DialogueUnderTest,
    HopUnderTest,
    RecipientsContract,
)
from postroad.adapters.programs.function import FunctionConnector
from postroad.contents import MemoryBudget
from postroad.domain.mail.envelope_documents import MAX_HANDED, HandedMail
from postroad.domain.mail.mail import Outcome
from postroad.domain.smtp.next_hops import NextHop, TlsMode
from postroad.handling import HandlerFunction
from postroad.routing.routes import ResolvedHop
from postroad.smtp.client.connections import SmtpConnector
from support.memory.connections import Loss, MemoryConnector
from support.sink import EXTENSIONS, HANG_UP, Sink
from support.webhook_server import WebhookServer, a_webhook_connector

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


class WebhookHop:
    def __init__(self, server: WebhookServer, folder: Path) -> None:
        self._server = server
        self.connector = a_webhook_connector(server, folder)
        self.resolved = ResolvedHop(NextHop("webhook", 0), ())

    def refuse(self, recipient: str, reply: str) -> None:
        self._server.statuses[recipient] = 422

    def hold_back(self) -> None:
        self._server.gate.clear()

    def go_on(self) -> None:
        self._server.gate.set()

    async def until_held(self) -> None:
        await self._server.is_held.wait()

    def contents(self) -> list[bytes]:
        return [each.message for each in self._server.requests]


class FunctionHop:
    def __init__(self, *, is_async: bool) -> None:
        self._refused: dict[str, Outcome] = {}
        self._contents: list[bytes] = []
        self._gate, self._is_held = Event(), Event()
        self._gate.set()
        call = self._called if is_async else self._take
        function = HandlerFunction("tests:take", call, timedelta(minutes=1), MAX_HANDED)
        self.connector = FunctionConnector(function, MemoryBudget(MAX_HANDED), 10)
        self.resolved = ResolvedHop(NextHop("function", 0), ())

    async def _called(self, mail: HandedMail) -> dict[str, Outcome]:
        while not self._gate.is_set():
            self._is_held.set()
            await asyncio.sleep(0)
        return self._take(mail)

    def _take(self, mail: HandedMail) -> dict[str, Outcome]:
        self._is_held.set()
        self._gate.wait()
        self._contents.append(mail.content)
        return {each: self._refused.get(each, Outcome.delivered()) for each in mail.recipients}

    def refuse(self, recipient: str, reply: str) -> None:
        self._refused[recipient] = Outcome.failed(reply)

    def hold_back(self) -> None:
        self._gate.clear()

    def go_on(self) -> None:
        self._gate.set()

    async def until_held(self) -> None:
        while not self._is_held.is_set():
            await asyncio.sleep(0)

    def contents(self) -> list[bytes]:
        return self._contents


class TestMemoryConnection(DialogueContract):
    @pytest.fixture
    async def hop(self) -> DialogueUnderTest:
        return MemoryHop()


class TestSmtpConnection(DialogueContract):
    extensions: tuple[str, ...] = EXTENSIONS

    @pytest.fixture
    async def hop(self) -> AsyncIterator[DialogueUnderTest]:
        async with Sink(extensions=self.extensions) as sink:
            yield SinkHop(sink)


class TestSmtpConnectionStepwise(TestSmtpConnection):
    extensions = EXTENSIONS[1:]


class TestLmtpConnectionAtASocket(DialogueContract):
    @pytest.fixture
    async def hop(self, tmp_path: Path) -> AsyncIterator[DialogueUnderTest]:
        socket = tmp_path / "lmtp"
        async with Sink(lmtp=True, socket=socket) as sink:
            yield SinkHop(sink, socket)


class TestWebhookConnection(ConnectionContract):
    @pytest.fixture
    async def hop(self, tmp_path: Path) -> AsyncIterator[HopUnderTest]:
        async with WebhookServer() as server:
            yield WebhookHop(server, tmp_path)


class TestFunctionConnection(RecipientsContract):
    is_async = True

    @pytest.fixture
    async def hop(self) -> HopUnderTest:
        return FunctionHop(is_async=self.is_async)


class TestFunctionInAThread(TestFunctionConnection):
    is_async = False
