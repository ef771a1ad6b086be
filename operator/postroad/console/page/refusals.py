"""Problems as pages, for browsers."""

from __future__ import annotations

import json

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from postroad.console.page.api_calls import BASE
from postroad.console.page.rendering import refusal

PROBLEM = "application/problem+json"


class PageRefusals:
    """ASGI: lets each problem of `app` be a page, for requests outside the API that accept one.
    `takes_tokens`: who has no session may send a token; `logs_in`: or log in at an issuer."""

    def __init__(self, app: ASGIApp, *, takes_tokens: bool, logs_in: bool) -> None:
        self._app, self._takes_tokens, self._logs_in = app, takes_tokens, logs_in

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_page = scope["type"] == "http" and not scope["path"].startswith(f"{BASE}/")
        if is_page and "text/html" in Headers(scope=scope).get("accept", ""):
            path = scope["path"] if self._logs_in else None
            send = _Sending(send, self._takes_tokens, path).send
        await self._app(scope, receive, send)


class _Sending:
    """Sends on what is no problem; a problem waits until its body is there."""

    def __init__(self, send: Send, takes_tokens: bool, path: str | None) -> None:
        self._send, self._takes_tokens, self._path = send, takes_tokens, path
        self._start: Message | None = None
        self._body = bytearray()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            if Headers(raw=message["headers"]).get("content-type") == PROBLEM:
                self._start = message
                return
        elif self._start is not None:
            self._body += message.get("body", b"")
            if message.get("more_body"):
                return
            status, detail = self._start["status"], json.loads(self._body)["detail"]
            is_login = self._takes_tokens and status == 401
            page = refusal(status, detail, asks_for_a_token=is_login, path=self._path)
            replaced = {name for name, _ in page.raw_headers}
            kept = [each for each in self._start["headers"] if each[0] not in replaced]
            await self._send({**self._start, "headers": [*kept, *page.raw_headers]})
            message = {"type": "http.response.body", "body": page.body}
        await self._send(message)
