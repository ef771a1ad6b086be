"""Serves the console by uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from postroad.console.api.access import Console
from postroad.console.api.app import console_app, guarded
from postroad.console.api.guard import Hosts, RequestRate
from postroad.console.api.sessions import Identities, Sessions
from postroad.telemetry.health import Readiness

MAX_CONNECTIONS = 500
"""At the same time, streams of events included. One more ends the one that has asked nothing for
longest, else one that is behind with reading: a stranger's would take all."""

MAX_LEAVING = 100
"""Connections that were ended and still count: uvloop may hear of a request before of that."""

DRAIN_SECONDS = 5

MAX_REQUEST_SECONDS = 30.0
"""Until a request is there as a whole, or its connection is closed."""

MAX_UNREAD_SECONDS = 30.0
"""For which a client may read nothing of what waits for it; then its connection is ended."""


class _Protocol(H11Protocol):
    """HTTP/1.1 with bounds on the time that a request takes to come, and a response to be read.
    uvicorn has none: clients that send nothing, or half a request, or read nothing would take all
    connections."""

    _deadline: asyncio.TimerHandle | None = None
    _watch: asyncio.TimerHandle | None = None
    _unread = 0
    """Octets that waited at the last look for a client that was behind."""

    _is_ended = False
    _heard = 0.0
    """When the last octets came."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._bound()
        self._check_reading()
        if len(self.connections) >= MAX_CONNECTIONS:
            connections = [each for each in self.connections if isinstance(each, _Protocol)]
            others = [each for each in connections if each is not self and not each._is_ended]
            idle = [each for each in others if each.is_idle]
            if spare := idle or [each for each in others if each._is_behind]:
                min(spare, key=lambda each: each._heard)._end()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._bound()

    @property
    def is_idle(self) -> bool:
        """True if no response is under way."""
        is_answered = self.cycle is None or self.cycle.response_complete
        return not self.transport.is_closing() and (is_answered or self._deadline is not None)

    @property
    def _is_behind(self) -> bool:
        """True if nothing more is written until the client reads."""
        return self.flow.write_paused or self.transport.is_closing()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unread = 0

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for each in (self._deadline, self._watch):
            if each is not None:
                each.cancel()

    def _end(self) -> None:
        self._is_ended = True
        self.transport.abort()

    def _check_reading(self) -> None:
        unread = self.transport.get_write_buffer_size() if self._is_behind else 0
        if unread and unread == self._unread:
            self._end()
            return
        self._unread = unread
        self._watch = self.loop.call_later(MAX_UNREAD_SECONDS, self._check_reading)

    def _bound(self) -> None:
        self._heard = self.loop.time()
        is_coming = self.conn.their_state in (h11.IDLE, h11.SEND_BODY)
        if is_coming and self._deadline is None:  # not anew: an octet now and then is no request
            self._deadline = self.loop.call_later(MAX_REQUEST_SECONDS, self.transport.close)
        elif not is_coming and self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # the process has handlers of its own


class ConsoleServer:
    """A console over a socket that listens. `identities` and `hosts`: of one in a cluster; without
    them, it is reached on this machine, by links."""

    def __init__(
        self,
        listening: socket.socket,
        console: Console,
        readiness: Readiness,
        rate: RequestRate | None = None,
        *,
        identities: Identities | None = None,
        hosts: Hosts | None = None,
    ) -> None:
        host, port = listening.getsockname()[:2]
        self._address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        identities = identities or Identities(Sessions(console.clock.elapsed))
        hosts = hosts or Hosts({self._address, f"localhost:{port}", f"127.0.0.1:{port}"})
        self.sessions = identities.sessions
        self.socket, self.readiness = listening, readiness
        app = console_app(console, None if identities.by_token else readiness)
        self.app = guarded(app, identities, hosts, console, rate)

    def new_link(self) -> str:
        """Return a link that leads to a session, once."""
        return f"http://{self._address}/?token={self.sessions.new_link()}"


async def serve(listening: ConsoleServer, stop: asyncio.Event) -> None:
    """Serve until `stop` is set, then let responses end for a while."""
    config = uvicorn.Config(
        listening.app,
        http=_Protocol,
        lifespan="off",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        limit_concurrency=MAX_CONNECTIONS + MAX_LEAVING,
        timeout_graceful_shutdown=DRAIN_SECONDS,
        timeout_keep_alive=30,
    )
    server = _Server(config)
    stopping = asyncio.create_task(stop.wait())

    def end(_: object) -> None:
        listening.readiness.draining()
        server.should_exit = True

    stopping.add_done_callback(end)
    try:
        await server.serve(sockets=[listening.socket])
    finally:
        stopping.cancel()
