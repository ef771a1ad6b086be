"""Requests of the page to the API in the same process."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

from starlette.requests import Request
from starlette.types import Message

from postroad.problems import Problem

BASE = "/api/v1"

MAX_FIELDS = 2000
"""Fields of a form."""


class Api:
    """The API, which the page asks in the name of its user: the page may do and see what the user
    may by the API, and each parameter is checked there alone."""

    def __init__(self, request: Request) -> None:
        self._request = request

    async def get(self, *parts: str, query: Iterable[tuple[str, Any]] = ()) -> Any:
        """Return a document. Raises: Problem, as the API answers."""
        return await self.send("GET", *parts, query=query)

    async def send(
        self,
        method: str,
        *parts: str,
        query: Iterable[tuple[str, Any]] = (),
        body: Mapping[str, Any] | None = None,
    ) -> Any:
        """Send a request; fields of the query that are empty are left out. Raises: Problem."""
        given = [(name, str(value)) for name, value in query if value not in (None, "")]
        sent = b"" if body is None else json.dumps(body).encode()
        path = "/".join((BASE, *parts))
        scope = self._request.scope
        asked = {name: scope[name] for name in ("type", "asgi", "http_version", "scheme")} | {
            "method": method,
            "path": path,
            "raw_path": quote(path).encode(),
            "root_path": "",
            "query_string": urlencode(given).encode(),
            "headers": [
                (b"host", self._request.headers["host"].encode()),
                (b"content-type", b"application/json"),
                (b"content-length", str(len(sent)).encode()),
            ],
            "client": scope.get("client"),
            "server": scope.get("server"),
            "state": dict(scope["state"]),
        }
        return _document(*await self._exchange(asked, sent))

    async def _exchange(self, scope: dict[str, Any], sent: bytes) -> tuple[int, bytes]:
        status, received = 500, bytearray()

        async def receive() -> Message:
            return {"type": "http.request", "body": sent, "more_body": False}

        async def send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            received.extend(message.get("body", b""))

        await self._request.app(scope, receive, send)
        return status, bytes(received)


def _document(status: int, body: bytes) -> Any:
    found: Any = json.loads(body) if body else None
    if status >= 400:
        raise Problem(status, found["detail"])
    return found


async def form_of(request: Request) -> list[tuple[str, str]]:
    """Return the fields of a form that are filled in, without white space around. Raises:
    Problem."""
    try:
        text = (await request.body()).decode()
        fields = parse_qsl(text, max_num_fields=MAX_FIELDS, errors="strict")
    except ValueError:
        raise Problem(400, "the form cannot be read") from None
    return [(name, value.strip()) for name, value in fields if value.strip()]
