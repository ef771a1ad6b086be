"""Kopf's watch, behind the port.

Kopf lists and watches a kind, reconnects, and begins anew where a version is gone (410) or the API
server refuses for a while. Its public API brings an event to handlers alone, in a task for each
object, and does not tell them when all that was listed has come. So this module uses the stream
behind them, which is private to Kopf, and pyproject.toml bounds its version. Source: ADR 0006."""

import asyncio
import logging
import sys
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from typing import cast

import aiohttp
import kopf
from kopf._cogs.clients.auth import vault_var
from kopf._cogs.clients.watching import Bookmark, infinite_watch
from kopf._cogs.structs.credentials import Vault
from kopf._cogs.structs.references import NamespaceName, Resource

from postroad.adapters.kubernetes.api_requests import MAX_ANSWER, MAX_PAGES
from postroad.errors import KubernetesUnavailable
from postroad.http_responses import ResponseTooLarge, read_body
from postroad.ports.kubernetes import COMPLETE, LISTED, Kind, WatchEvent
from postroad.telemetry import logs

MAX_BACKOFF = 30.0
"""Seconds between requests to an API server that refuses them or does not answer."""

MAX_NESTING = 10_000
"""Levels of JSON that an API server takes: in an object, those of fields without a schema."""

SPARE_FRAMES = 2_000
"""Calls around the functions that go through an object."""

WATCH_INTERVAL = 1.0
"""Seconds between two watches of a kind, and between two lists."""

LISTED_AT_ONCE = 100
"""Objects of one answer. Larger ones are memory that the process keeps after the watches began."""

MAX_LIST = LISTED_AT_ONCE * 1024 * 1536
"""Octets of one answer to a list: objects as large as etcd takes them."""

_log = logs.logger("controller")


class Backoffs:
    """Seconds between attempts, without end: rights can be given, an API server comes back."""

    def __iter__(self) -> Iterator[float]:
        seconds = 1.0
        while True:
            yield seconds
            seconds = min(2 * seconds, MAX_BACKOFF)


class _OneSession(Vault):
    """The session of a watch. Kopf would wait for another login when it is refused, but each of its
    requests has the credentials of its moment."""

    async def invalidate(self, key: object, info: object, *, exc: Exception | None = None) -> None:
        raise exc or kopf.LoginError("the API server refused the session")


async def watch(
    address: str,
    open_session: Callable[..., aiohttp.ClientSession],
    kind: Kind,
    namespace: str | None,
    labels: str,
) -> AsyncGenerator[WatchEvent, None]:
    """`Kubernetes.watch` over sessions with an API server."""
    settings = watching_settings(kind, labels)
    resource = Resource(kind.group, kind.version, kind.plural, kind=kind.name, namespaced=True)
    where = None if namespace is None else NamespaceName(namespace)
    for seconds in Backoffs():
        try:
            async with open_session(paced(), bounded()) as session:
                info = kopf.AiohttpSession(server=address, aiohttp_session=session)
                vault = _OneSession({"session": info})
                stream = infinite_watch(settings=settings, resource=resource, namespace=where)
                async with aclosing(cast("AsyncGenerator[object, None]", stream)):
                    while True:
                        vault_var.set(vault)  # watches of one task have one context
                        if (event := _event(await anext(stream))) is not None:
                            yield event
        except Exception as error:
            _log.warning("a watch begins anew", kind=kind.name, error=str(error))
        await asyncio.sleep(seconds)


def paced() -> aiohttp.ClientMiddlewareType:
    """Return what spreads the watches and the lists of a session. Kopf follows a watch that ends at
    once, as behind some proxies, by the next without a pause, one whose version is gone by a list,
    and a list that breaks off by another."""
    begins_at = {True: 0.0, False: 0.0}

    async def wait(
        request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        if "continue" not in request.url.query:
            now, watches = asyncio.get_running_loop().time(), "watch" in request.url.query
            begins = max(now, begins_at[watches])
            begins_at[watches] = begins + WATCH_INTERVAL
            await asyncio.sleep(begins - now)
        return await handler(request)

    return wait


def bounded() -> aiohttp.ClientMiddlewareType:
    """Return what ends an answer that would be memory without end: Kopf reads a list whole, and a
    watch up to the end of each line."""
    pages = 0

    async def read(
        request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        nonlocal pages
        pages = pages + 1 if "continue" in request.url.query else 1
        if pages > MAX_PAGES:
            raise KubernetesUnavailable(f"the list has more than {MAX_PAGES} pages")
        response = await handler(request)
        response.content = cast("aiohttp.StreamReader", _BoundedContent(response))
        return response

    return read


class _BoundedContent:
    """Content of a response as Kopf reads it."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response, self._content = response, response.content

    def __getattr__(self, name: str) -> object:
        return getattr(self._content, name)

    async def read(self) -> bytes:
        try:
            return await read_body(self._response, MAX_LIST)
        except ResponseTooLarge as error:  # as a client's error Kopf would ask again at once
            raise KubernetesUnavailable(str(error)) from error

    async def iter_chunked(self, size: int) -> AsyncGenerator[bytes, None]:
        line = 0
        async for chunk in self._content.iter_chunked(size):
            line = line + len(chunk) if b"\n" not in chunk else len(chunk.rpartition(b"\n")[2])
            if line > MAX_ANSWER:
                self._response.close()
                raise KubernetesUnavailable(f"a line has more than {MAX_ANSWER} octets")
            yield chunk


def _event(raw: object) -> WatchEvent | None:
    if raw is Bookmark.LISTED:
        return WatchEvent(COMPLETE, {})
    assert isinstance(raw, dict)
    happened = raw["type"] or LISTED
    return None if happened == "BOOKMARK" else WatchEvent(happened, raw["object"])


def watching_settings(kind: Kind, labels: str) -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.watching.server_timeout = 290
    settings.watching.client_timeout = 300
    settings.watching.connect_timeout = 15
    settings.watching.chunk_size = LISTED_AT_ONCE
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 15
    settings.networking.error_backoffs = Backoffs()
    if labels:
        settings.watching.label_selectors[kind.group, kind.version, kind.plural] = labels
    return settings


def read_nested_objects() -> None:
    """Let this process read objects that nest as deeply as an API server takes them. Else one of
    them would break each list and each watch of its kind. Costs 3 MB of a stack of 8 at most."""
    sys.setrecursionlimit(MAX_NESTING + SPARE_FRAMES)


def quiet_logs() -> None:
    """Drop Kopf's lines below WARNING: they are about each request."""
    logging.getLogger("kopf").setLevel(logging.WARNING)
