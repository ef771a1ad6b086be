"""The intake's listener: a session per client, up to a limit, and an orderly end.

It takes mail from whoever can reach it, for anybody: who may reach it is for the network to say
(a NetworkPolicy, or a listening address).
"""

from __future__ import annotations

import asyncio
import socket
from datetime import timedelta

from postroad.adapters.network.serving import ServingWire
from postroad.adapters.network.wire import WireError
from postroad.errors import InvalidSettings
from postroad.intake import answers
from postroad.intake.sessions import LINGER, Receiver, Session
from postroad.telemetry.logs import logger
from postroad.telemetry.metrics import SESSIONS

_log = logger("intake")

BACKLOG = 1024
"""Clients that may wait to be accepted."""


class SmtpServer:
    """Listens, and runs a session for every client."""

    def __init__(self, receiver: Receiver, *, max_sessions: int = 500) -> None:
        self._receiver = receiver
        self._max_sessions = max_sessions
        self._sessions: dict[asyncio.Task[None], ServingWire] = {}
        self._server: asyncio.Server | None = None
        self._is_draining = False
        SESSIONS.set_function(lambda: len(self._sessions))

    async def listen(self, host: str, port: int) -> None:
        """Begin to accept clients. Raises: InvalidSettings when the address cannot be had."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(self._wire, host or None, port, backlog=BACKLOG)
        except OSError as error:
            raise InvalidSettings(
                f"cannot listen on {host}:{port}: {error.strerror}",
                hint="say another address with --listen or POSTROAD_INTAKE_PORT",
            ) from error
        _log.info("listening", queue=self._receiver.queue.name, address=f"{host}:{self.port}")

    async def listen_on(self, listening: socket.socket) -> None:
        """Begin to accept clients on a socket that may be shared with other processes."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._wire, sock=listening, backlog=BACKLOG)

    def _wire(self) -> ServingWire:
        return ServingWire(self._welcome)

    @property
    def port(self) -> int:
        """The port that is listened on."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    async def drain(self, within: timedelta) -> None:
        """Accept nobody any more, let mails that are being received be finished, tell the others
        to come again; whoever is left after `within` is cut off."""
        self._is_draining = True
        if self._server is not None:
            self._server.close()
        for wire in self._sessions.values():
            wire.interrupt()
        if not self._sessions:
            return
        _, late = await asyncio.wait(self._sessions, timeout=within.total_seconds())
        for session in late:
            session.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        if late:
            _log.warning("sessions cut off", queue=self._receiver.queue.name, count=len(late))

    def _welcome(self, wire: ServingWire) -> None:
        if self._is_draining or len(self._sessions) >= self._max_sessions:
            reply = answers.CLOSING if self._is_draining else answers.BUSY
            running = asyncio.create_task(_turn_away(wire, reply.encode()))
        else:
            running = asyncio.create_task(Session(wire, self._receiver).run())
        self._sessions[running] = wire
        running.add_done_callback(self._forget)

    def _forget(self, session: asyncio.Task[None]) -> None:
        self._sessions.pop(session, None)
        if not session.cancelled() and (error := session.exception()) is not None:
            _log.error("a session failed in an unforeseen way", exc_info=error)


async def _turn_away(wire: ServingWire, reply: bytes) -> None:
    try:
        await wire.write(reply, timedelta(seconds=1))
        await wire.linger(LINGER)
        await wire.close(timedelta(seconds=1))
    except WireError:
        pass  # it left first
