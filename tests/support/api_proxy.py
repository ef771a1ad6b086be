"""A proxy between one client and an API server: it has each effect with its time, and can cut
the client off."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import aiohttp
from aiohttp import web

from postroad.adapters.kubernetes.api_server import ApiServer
from support.recording_api import is_write

DROPPED = {"host", "content-length", "transfer-encoding", "connection", "authorization"}
"""Headers that are about one connection, or that the proxy replaces by its own."""


class ForwardedWrite(NamedTuple):
    """A request that may change something, when it arrived in full."""

    at: float
    method: str
    path: str


class ApiProxy:
    """Forwards requests as the user of `api`. `url` is where it listens."""

    def __init__(self, api: ApiServer) -> None:
        self._address = api.access.address
        self._session = api.open_session()
        self._open: set[asyncio.Transport] = set()
        self._is_cut = False
        self.url = ""
        self.effects: list[ForwardedWrite] = []
        """The writes but those of the Lease, the newest last."""

    def cut(self) -> None:
        """Let nothing through any more, in either direction."""
        self._is_cut = True
        for each in self._open:
            each.abort()

    async def close(self) -> None:
        await self._session.close()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        body, transport = await request.read(), request.transport
        assert transport is not None
        if self._is_cut:
            transport.abort()
            await asyncio.Event().wait()  # until the server notices that the client is gone
        if is_write(request.method, request.path) and "/leases" not in request.path:
            self.effects.append(ForwardedWrite(time.monotonic(), request.method, request.path))
        self._open.add(transport)
        try:
            return await self._forwarded(request, body)
        finally:
            self._open.discard(transport)

    async def _forwarded(self, request: web.BaseRequest, body: bytes) -> web.StreamResponse:
        headers = {k: v for k, v in request.headers.items() if k.lower() not in DROPPED}
        url = f"{self._address}{request.path_qs}"
        timeout = aiohttp.ClientTimeout(total=None)
        async with self._session.request(
            request.method, url, data=body or None, headers=headers, timeout=timeout
        ) as upstream:
            answer = web.StreamResponse(status=upstream.status)
            answer.content_type = upstream.content_type
            await answer.prepare(request)
            async for chunk in upstream.content.iter_any():
                await answer.write(chunk)
            await answer.write_eof()
            return answer


@asynccontextmanager
async def api_proxy(api: ApiServer) -> AsyncIterator[ApiProxy]:
    """Yield a proxy that listens."""
    proxy = ApiProxy(api)
    runner = web.ServerRunner(web.Server(proxy.handle), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    proxy.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield proxy
    finally:
        await runner.cleanup()
        await proxy.close()
