"""Clients of a listener of role http: requests by aiohttp, and octets of any kind."""

from __future__ import annotations

import asyncio
import base64
import io
from typing import Any, NamedTuple

import aiohttp

from support.intake_files import ALICE, PASSWORD, RunningIntake


class Answer(NamedTuple):
    status: int
    headers: Any
    body: Any


def basic(name: str = ALICE, password: str = PASSWORD) -> dict[str, str]:
    credentials = base64.b64encode(f"{name}:{password}".encode()).decode()
    return {"Authorization": f"Basic {credentials}"}


def a_mail(**more: Any) -> dict[str, Any]:
    return {
        "from": "a@example.org",
        "to": ["b@dest.example"],
        "message": {"subject": "x", "text": "hello\n"},
    } | more


async def ask(
    running: RunningIntake,
    path: str = "/v1/mails",
    *,
    method: str = "POST",
    headers: dict[str, str] | None = None,
    secured: bool = False,
    **more: Any,
) -> Answer:
    """Send a request as Alice, or with other `headers`."""
    scheme = "https" if secured else "http"
    tls: Any = running.certificates.client_context() if secured else True
    url = f"{scheme}://localhost:{running.ports['http']}{path}"
    sent = basic() | (headers or {})
    if isinstance(more.get("data"), bytes):
        more["data"] = io.BytesIO(more["data"])  # aiohttp warns of large bytes
    connector = aiohttp.TCPConnector(ssl=tls)
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.request(method, url, headers=sent, **more) as response,
    ):
        return Answer(response.status, response.headers, await response.json(content_type=None))


async def send_octets(running: RunningIntake, octets: bytes) -> bytes:
    """Send octets; return all that comes until the server closes, or stops sending."""
    reader, writer = await asyncio.open_connection("127.0.0.1", running.ports["http"])
    writer.write(octets)
    writer.write_eof()
    try:
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.transport.abort()
