"""A receiver of events over HTTP: it verifies what it gets as Standard Webhooks has it, with code
of its own, and keeps it."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable
from typing import Any

from aiohttp import web

SECRET = "whsec_" + base64.b64encode(b"e" * 32).decode()


def verified(headers: Any, body: bytes, secret: str = SECRET) -> dict[str, Any]:
    """Return an event whose signature and time are right, by the text of Standard Webhooks."""
    event_id, timestamp = headers["webhook-id"], headers["webhook-timestamp"]
    assert abs(time.time() - int(timestamp)) < 300
    key = base64.b64decode(secret.removeprefix("whsec_"))
    digest = hmac.new(key, f"{event_id}.{timestamp}.".encode() + body, hashlib.sha256).digest()
    wanted = "v1," + base64.b64encode(digest).decode()
    assert any(hmac.compare_digest(wanted, e) for e in headers["webhook-signature"].split(" "))
    event: dict[str, Any] = json.loads(body)
    assert event["id"] == event_id
    assert headers["Content-Type"] == "application/json"
    return event


class EventReceiver:
    """`async with EventReceiver() as receiver: … receiver.url … receiver.events`."""

    def __init__(self, status: Callable[[dict[str, Any]], int] = lambda _: 200) -> None:
        self.events: list[dict[str, Any]] = []
        """Those that were answered with 2xx."""
        self.refused: list[dict[str, Any]] = []
        self.status = status
        self.headers: dict[str, str] = {}
        self.gate = asyncio.Event()
        """Cleared, it holds answers back."""
        self.gate.set()
        self.held = asyncio.Event()
        self.port = 0
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/events"

    def kinds(self) -> list[str]:
        return [each["type"] for each in self.events]

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not holds():
                await asyncio.sleep(0.02)

    async def __aenter__(self) -> EventReceiver:
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(application, shutdown_timeout=0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._runner is not None
        self.gate.set()
        await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        event = verified(request.headers, await request.read())
        self.held.set()
        await self.gate.wait()
        status = self.status(event)
        (self.events if 200 <= status < 300 else self.refused).append(event)
        return web.Response(status=status, headers=self.headers)
