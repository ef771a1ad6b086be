"""The server of the listeners of role http: accepts connections, hands requests on, and drains.

aiohttp reads requests and writes responses; how many clients there are, and how long one may be
silent, is decided here. A full server accepts no connection: clients wait in the backlog, from
which another process that shares the listening socket accepts them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import cache, partial
from importlib import resources
from typing import Any, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestHandler

from postroad.intake.clients import Clients
from postroad.intake.context import IntakeContext
from postroad.intake.server import PAUSE_SECONDS
from postroad.intake.web.requests import HttpClient, Requests
from postroad.problems import Problem
from postroad.smtp.wire import HandshakeFailed, address_of
from postroad.telemetry.logs import logger

_log = logger("intake")

IDLE_SECONDS = 30.0
"""For the first request to begin, and between two of one connection."""

MIN_IDLE_SECONDS = 1.0
"""Idleness after which a full server may end a connection without a login."""

MAX_TARGET = 64 * 1024
"""Octets of a request's target: the recipients of a mail stand in it."""

MAX_FIELD = 20 * 1024
"""Octets of a header field: a token has up to 16 kB."""

_BROKEN = (web.RequestPayloadError, HttpProcessingError)
"""Errors of a body that breaks off, or whose chunks are none."""


class HttpConnection(RequestHandler):  # type: ignore[type-arg,unused-ignore]
    """A connection of one client. `silence`: seconds within which it must read what is written."""

    def __init__(
        self, server: web.Server, listening: socket.socket, address: str, silence: float
    ) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(
            server,
            loop=loop,
            access_log=None,  # type: ignore[arg-type]  # it stands for none
            keepalive_timeout=IDLE_SECONDS,
            auto_decompress=False,
            max_line_size=MAX_TARGET,
            max_field_size=MAX_FIELD,
        )
        self.listening, self.address = listening, address
        self.has_begun = False
        """True once a request has come."""

        self.has_logged_in = False
        self.is_answering = False
        self.begun_at = loop.time()
        """Begin of the connection, or of its last request."""

        self.is_lost = loop.create_future()
        self._silence = silence
        self._reads_nothing = False
        self._watch: asyncio.TimerHandle | None = None
        self._connected: asyncio.Transport | None = None  # aiohttp forgets its own at close

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._connected = cast("asyncio.Transport", transport)
        self._check_reading()

    def abort(self) -> None:
        if self._connected is not None:
            self._connected.abort()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._reads_nothing = False

    def logged_in(self) -> None:
        self.has_logged_in = True

    def may_end(self, now: float) -> bool:
        """Return True if a full server may end it: idle, or not reading, and without a login."""
        is_idle = not self.is_answering or self.writing_paused
        return not self.has_logged_in and is_idle and now - self.begun_at >= MIN_IDLE_SECONDS

    def _check_reading(self) -> None:
        """End the connection once it has not read all of a response for as long as it may be
        silent: aiohttp waits for good, also where it closes the connection."""
        assert self._connected is not None
        reads_nothing = self.writing_paused or self._connected.is_closing()
        if reads_nothing and self._reads_nothing:
            self.abort()
            return
        self._reads_nothing = reads_nothing
        self._watch = asyncio.get_running_loop().call_later(self._silence / 2, self._check_reading)

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        if self._watch is not None:
            self._watch.cancel()
        if not self.is_lost.done():
            self.is_lost.set_result(None)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what aiohttp itself refuses: what is no request."""
        _log.debug("no request of HTTP", error=type(exc).__name__)
        response = response_to(Problem(400, "this is no request of HTTP/1.1"))
        response.headers["Server"] = "postroad"  # else aiohttp names itself and Python
        response.force_close()
        return response


class HttpServer:
    """Listens on its sockets, and answers requests."""

    def __init__(self, *, max_connections: int, clients: Clients) -> None:
        self._loop = asyncio.get_running_loop()
        self._clients = clients
        self._requests = Requests(self._clients)
        self._web = web.Server(self._answer)
        self._room = asyncio.Semaphore(max_connections)
        self._contexts: dict[socket.socket, IntakeContext] = {}
        self._accepting: dict[socket.socket, asyncio.Task[None]] = {}
        self._serving = set[asyncio.Task[None]]()
        self._connections = set[HttpConnection]()
        self._routes: dict[str, tuple[str, Callable[..., Awaitable[web.StreamResponse]]]] = {
            "/v1/mails": ("POST", self._requests.mail),
            "/v1/mails:batch": ("POST", self._requests.batch),
            "/api/inject/v1": ("POST", self._requests.inject),
            "/v1/openapi.json": ("GET", _describe),
        }

    def listen_on(self, *listening: socket.socket, context: IntakeContext) -> None:
        """Accept clients on sockets, which other processes may share. `drain` closes them. Called
        again with sockets that it knows, requests that begin later have the new context."""
        for each in listening:
            self._contexts[each] = context
            if each not in self._accepting:
                each.setblocking(False)
                self._accepting[each] = self._loop.create_task(self._accept(each))

    async def drain(self, within: timedelta) -> None:
        """Accept no more clients, and answer the requests under way; those that are left after
        `within` are cancelled."""
        for task in self._accepting.values():
            task.cancel()
        await asyncio.gather(*self._accepting.values(), return_exceptions=True)
        for each in self._accepting:
            each.close()
        self._web.pre_shutdown()
        await self._web.shutdown(within.total_seconds())
        for serving in self._serving:
            serving.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        self._requests.close()

    async def _accept(self, listening: socket.socket) -> None:
        while True:
            await self._have_room()
            try:
                connection, peer = await self._loop.sock_accept(listening)
            except OSError as error:
                self._room.release()
                if not isinstance(error, ConnectionError):  # no descriptors or memory
                    _log.error("no client can be accepted", error=str(error))
                    await asyncio.sleep(PAUSE_SECONDS)
                continue
            except asyncio.CancelledError:
                self._room.release()
                raise
            task = self._loop.create_task(self._serve(listening, connection, address_of(peer)))
            self._serving.add(task)
            task.add_done_callback(self._left)

    async def _have_room(self) -> None:
        """Wait until there is room, and take it. Of a full server, the connection without a login
        that has been idle longest is ended: it needs no user to open many."""
        while self._room.locked():
            now = self._loop.time()
            idle = [each for each in self._connections if each.may_end(now)]
            if idle:
                min(idle, key=lambda each: each.begun_at).abort()
            try:
                async with asyncio.timeout(MIN_IDLE_SECONDS):
                    await self._room.acquire()
                    return
            except TimeoutError:
                continue
        await self._room.acquire()

    def _left(self, serving: asyncio.Task[None]) -> None:
        self._serving.discard(serving)
        self._room.release()
        if not serving.cancelled() and (error := serving.exception()) is not None:
            _log.error("unexpected error in a connection", exc_info=error)

    async def _serve(
        self, listening: socket.socket, connection: socket.socket, address: str
    ) -> None:
        context = self._contexts[listening]
        refusal = self._clients.connected(address, self._loop.time())
        if refusal is not None:
            context.client_refused(refusal, address, set())
            connection.close()
            return
        try:
            silence = context.timeouts.data_block.total_seconds()
            client = HttpConnection(self._web, listening, address, silence)
            await self._converse(connection, client, context)
        finally:
            connection.close()
            self._clients.left(address, self._loop.time())

    async def _converse(
        self, connection: socket.socket, client: HttpConnection, context: IntakeContext
    ) -> None:
        secured: dict[str, Any] = {}
        if context.tls is not None:
            timeout = context.timeouts.tls.total_seconds()
            secured = {"ssl": context.tls(), "ssl_handshake_timeout": timeout}
        try:
            await self._loop.connect_accepted_socket(lambda: client, connection, **secured)
        except (OSError, EOFError) as error:
            if secured:
                context.handshake_failed(HandshakeFailed(error))
            return
        silence = self._loop.call_later(IDLE_SECONDS, partial(_close_if_silent, client))
        self._connections.add(client)
        try:
            await client.is_lost
        finally:
            self._connections.discard(client)
            silence.cancel()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = cast("HttpConnection", request.protocol)
        connection.has_begun = connection.is_answering = True
        connection.begun_at = self._loop.time()
        try:
            return await self._answer_one(request, connection)
        finally:
            connection.is_answering = False

    async def _answer_one(
        self, request: web.BaseRequest, connection: HttpConnection
    ) -> web.StreamResponse:
        context = self._contexts[connection.listening]
        method, answer = self._routes.get(request.path, ("", None))
        try:
            if answer is None:
                raise Problem(404, "there is no such path: see /v1/openapi.json")
            if request.method != method:
                allow = [("Allow", method)]
                raise Problem(405, f"the method of this path is {method}", headers=allow)
            client = HttpClient(
                context, connection.address, request.secure, logged_in=connection.logged_in
            )
            response = await answer(request, client)
        except Problem as problem:
            response = response_to(problem)
        except _BROKEN:
            response = response_to(Problem(400, "the body breaks off, or is malformed"))
            response.force_close()
        except ConnectionError:
            raise
        except Exception:  # also for a bug, 503: the client must keep the mail
            _log.exception("unexpected error in a request", queue=context.queue.name)
            response = response_to(Problem(503, "not now, come again"))
        response.headers["Server"] = "postroad"
        response.headers["Cache-Control"] = "no-store"
        return response


def response_to(problem: Problem) -> web.Response:
    response = web.json_response(
        problem.document(), status=problem.status, content_type="application/problem+json"
    )
    for name, value in problem.headers:
        response.headers.add(name, value)
    return response


@cache
def _description() -> bytes:
    return (resources.files("postroad.intake.web") / "openapi.json").read_bytes()


async def _describe(request: web.BaseRequest, client: HttpClient) -> web.StreamResponse:
    return web.Response(body=_description(), content_type="application/json")


def _close_if_silent(client: HttpConnection) -> None:
    if not client.has_begun:
        client.abort()
