"""A webhook over HTTP: it keeps the requests that it gets, and checks their signatures with code of
its own."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from email import message_from_bytes
from pathlib import Path
from typing import Any

from aiohttp import web

from postroad.adapters.clocks import MachineClock
from postroad.adapters.programs.webhook import Webhook, WebhookConnector
from postroad.contents import MemoryBudget
from postroad.domain.delivery.webhooks import WebhookAddress
from postroad.domain.mail.envelope_documents import MAX_HANDED
from postroad.ports.clock import Clock

SECRET = "whsec_" + base64.b64encode(b"k" * 32).decode()


@dataclass(frozen=True)
class Posted:
    """One request as it arrived."""

    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def key(self) -> str:
        return self.headers["webhook-id"]

    @property
    def envelope(self) -> dict[str, Any]:
        """The part `envelope`."""
        found: dict[str, Any] = json.loads(self._part("envelope"))
        return found

    @property
    def message(self) -> bytes:
        """The part `message`, octet by octet."""
        return self._part("message")

    def _part(self, name: str) -> bytes:
        kind = message_from_bytes(b"Content-Type: %s\n\n" % self.headers["Content-Type"].encode())
        boundary = b"--" + str(kind.get_boundary()).encode()
        _, *parts, end = self.body.split(boundary)
        assert end == b"--\r\n"
        for each in parts:
            head, _, content = each.partition(b"\r\n\r\n")
            if f'name="{name}"'.encode() in head:
                return content.removesuffix(b"\r\n")
        raise AssertionError(f"no part {name}")

    def is_signed_by(self, secret: str) -> bool:
        """Whether one of its signatures is by this secret."""
        key = base64.b64decode(secret.removeprefix("whsec_"))
        about = f"{self.key}.{self.headers['webhook-timestamp']}.".encode() + self.body
        wanted = base64.b64encode(hmac.new(key, about, hashlib.sha256).digest()).decode()
        return f"v1,{wanted}" in self.headers["webhook-signature"].split(" ")


class WebhookServer:
    """`async with WebhookServer() as server: … server.url … server.requests`."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[Posted] = []
        self.statuses: dict[str, int] = {}
        """By recipient; 200 for others."""
        self.headers: dict[str, str] = {}
        """Of each answer."""
        self.body = b""
        """Of each answer."""
        self.losses = 0
        """So many requests are read, and their connections closed without an answer."""
        self.connections = set[int]()
        self.gate, self.is_held = asyncio.Event(), asyncio.Event()
        """Cleared, it holds answers back."""
        self.gate.set()
        self.port = 0
        self._tls = tls
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://localhost:{self.port}/mail?token=hunter2"

    def hold_back(self) -> None:
        """Give no answer until the end."""
        self.gate.clear()

    async def __aenter__(self) -> WebhookServer:
        application = web.Application(client_max_size=2 * MAX_HANDED)
        application.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(application, shutdown_timeout=0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, ssl_context=self._tls)
        await site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._runner is not None
        self.gate.set()
        await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        body = await request.read()
        posted = Posted(request.path, dict(request.headers), body)
        self.requests.append(posted)
        assert request.transport is not None
        self.connections.add(id(request.transport))
        if self.losses:
            self.losses -= 1
            request.transport.abort()
        self.is_held.set()
        await self.gate.wait()
        wanted = [self.statuses.get(each, 200) for each in posted.envelope["recipients"]]
        return web.Response(status=max(wanted), headers=self.headers, body=self.body)


class AnsweringUnread:
    """A server that answers by these octets as soon as a request has begun, and reads no more."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self._over = asyncio.Event()
        self.url = ""
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> AnsweringUnread:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/"
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._server is not None
        self._over.set()
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(self.answer)
        await self._over.wait()
        writer.close()


def a_webhook_connector(
    server: WebhookServer | AnsweringUnread,
    folder: Path,
    *,
    secrets: str = SECRET,
    ca_file: Path | None = None,
    timeout: timedelta = timedelta(seconds=60),
    largest_bytes: int = MAX_HANDED,
    clock: Clock | None = None,
) -> WebhookConnector:
    """Return what opens connections to a webhook; `folder` gets the file of the secrets."""
    file = folder / "secret"
    file.write_text(secrets)
    webhook = Webhook(WebhookAddress(server.url), file, ca_file, timeout, largest_bytes)
    return WebhookConnector(webhook, clock or MachineClock(), MemoryBudget(MAX_HANDED))
