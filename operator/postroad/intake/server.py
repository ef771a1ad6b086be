"""The intake's server: accepts connections, runs a session for each, and drains.

A full intake accepts no connection: clients wait in the backlog, from which another process that
shares the listening socket accepts them, and the intake ends sessions that make no progress. A
client with its share of sessions is refused with 421. What a session may do follows from the
client's address (clients.py).

The intake's listening sockets: one for each address of a host, or one for all addresses."""

import asyncio
import socket
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import lru_cache, partial

from postroad.domain.smtp.replies import Reply
from postroad.errors import InvalidSettings
from postroad.intake import reply_texts
from postroad.intake.clients import ClientLimits, Clients, Rights
from postroad.intake.commands import MailFrom
from postroad.intake.context import IntakeContext
from postroad.intake.message_buffer import MEMORY_BYTES
from postroad.intake.proxy_protocol import read_client
from postroad.intake.sessions import IntakeSession
from postroad.smtp.server import RunQueue, ServingWire, accept, accept_tls, limit_unread
from postroad.smtp.wire import ConnectionLost, HandshakeFailed, WireError, address_of
from postroad.telemetry.logs import logger
from postroad.telemetry.metrics import SESSIONS

BACKLOG = 4096
"""Connections that wait for `accept`, if the system allows as many (net.core.somaxconn). A client
beyond them waits for a greeting that never comes."""

ANY_HOST = "*"
"""All addresses of this machine, of both families."""


def listening_on(host: str, port: int) -> list[socket.socket]:
    """Return a listening socket for each address of a host, one for both families for `*`. With
    port 0 all have the port that the first one got. Raises: InvalidSettings when the address cannot
    be bound."""
    try:
        bound = _bound(host, port)
    except OSError as error:
        raise InvalidSettings(
            f"cannot listen on {host}:{port}: {error.strerror}",
            hint="name another address with --listen, or another port with POSTROAD_INTAKE_PORT or "
            "POSTROAD_INTAKE_TLS_PORT",
        ) from error
    for each in bound:  # here, because a client that comes before is not bounded
        limit_unread(each)
    return bound


def _bound(host: str, port: int) -> list[socket.socket]:
    if host == ANY_HOST and socket.has_dualstack_ipv6():
        return [
            socket.create_server(
                ("", port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True
            )
        ]
    name = None if host == ANY_HOST else host
    found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    bound: list[socket.socket] = []
    try:
        for family, address in dict.fromkeys((info[0], str(info[4][0])) for info in found):
            at = (address, bound[0].getsockname()[1] if bound else port)
            bound.append(socket.create_server(at, family=family, backlog=BACKLOG))
    except OSError:
        for each in bound:
            each.close()
        raise
    return bound


_log = logger("intake")

ROOM_SECONDS = 1.0
"""Between two searches for stalled sessions, while the intake is full."""

_FULL = "the handshake takes long, and the intake is full"

REMEMBERED_CLIENTS = 1000
"""Addresses whose rights are kept: a client that sends much connects for each mail."""

PAUSE_SECONDS = 1.0
"""After an `accept` that failed for want of descriptors or memory."""


class Listening:
    """A listener: what its sessions share, and whether connections begin with TLS."""

    def __init__(self, context: IntakeContext, *, is_tls: bool) -> None:
        self.context, self.is_tls = context, is_tls
        self.of_proxies = None
        """Context of sessions with proxies that describe their clients; None: there are none."""

        if context.xclient_from.each:
            self.of_proxies = replace(context, offer=replace(context.offer, xclient=True))
        self.rights_of = lru_cache(REMEMBERED_CLIENTS)(context.rules.rights_of)


class _CountedClient:
    """The address by which the limits of a client count a session."""

    __slots__ = ("address",)

    def __init__(self, address: str) -> None:
        self.address = address


class SmtpServer:
    """Listens on its sockets, and runs a session for every client."""

    def __init__(
        self,
        context: IntakeContext,
        *,
        max_sessions: int = 500,
        clients: Clients | None = None,
    ) -> None:
        self._context = context
        self._max_sessions = max_sessions
        self._clients = Clients(ClientLimits()) if clients is None else clients
        self._sessions: dict[asyncio.Task[None], tuple[ServingWire, IntakeSession]] = {}
        self._run_queue = RunQueue()
        self._loop = self._run_queue.loop
        self._making_room: asyncio.TimerHandle | None = None
        self._handshakes: dict[asyncio.Task[None], float] = {}
        """Clients in the TLS handshake before the greeting, or behind a proxy that has not sent
        their address yet, and since when."""

        self._hearing = 0
        """Connections of proxies that have not sent an address yet."""

        self._listening: dict[socket.socket, Listening] = {}

        self._is_accepting = False
        self._is_draining = False
        SESSIONS.set_function(lambda: len(self._sessions))

    async def listen(self, host: str, port: int, *, tls: bool = False) -> int:
        """Begin to accept clients; return the port. With `tls`, connections begin with TLS (RFC
        8314 3.3), for which `context.tls` is needed. May be called again for more ports. Raises:
        InvalidSettings when the address cannot be bound."""
        bound = listening_on(host, port)
        self.listen_on(*bound, tls=tls)
        port = int(bound[0].getsockname()[1])
        _log.info("listening", queue=self._context.queue.name, address=f"{host}:{port}", tls=tls)
        return port

    def listen_on(
        self, *listening: socket.socket, tls: bool = False, context: IntakeContext | None = None
    ) -> None:
        """Accept clients on sockets, which other processes may share. `drain` closes them.
        `context`: of sessions that begin at these sockets; None: the server's own. Called again
        with sockets that it knows, sessions that begin later have the new context."""
        self._accept_or_not(is_paused=True)
        listener = Listening(context or self._context, is_tls=tls)
        for each in listening:
            each.setblocking(False)
            self._listening[each] = listener
        self._accept_or_not()

    @property
    def port(self) -> int:
        """The port of the first socket."""
        return int(next(iter(self._listening)).getsockname()[1])

    async def drain(self, within: timedelta) -> None:
        """Accept no more clients, receive mails under way to their end, and send 421 to the other
        clients; sessions that are left after `within` are cancelled."""
        self._is_draining = True
        self._accept_or_not()
        for each in self._listening:
            each.close()
        for wire, _ in self._sessions.values():
            wire.interrupt()
        for session in self._handshakes:
            session.cancel()  # no command was read, so no reply is due
        if not self._sessions:
            return
        _, late = await asyncio.wait(self._sessions, timeout=within.total_seconds())
        for session in late:
            session.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        if late:
            _log.warning("sessions cut off", queue=self._context.queue.name, count=len(late))

    def _accept_or_not(self, *, is_paused: bool = False) -> None:
        """Accept while there is room. Not asyncio's own server, because it accepts without end, and
        one process of several would get all clients of a burst."""
        has_room = len(self._sessions) + self._hearing < self._max_sessions
        if not has_room and self._making_room is None:
            self._make_room()
        accepts = has_room and not is_paused and not self._is_draining
        if accepts == self._is_accepting:
            return
        self._is_accepting = accepts
        loop = self._loop
        for each in self._listening:
            if accepts:
                loop.add_reader(each, self._accept, each)
            else:
                loop.remove_reader(each)

    def _make_room(self) -> None:
        """End stalled sessions, every ROOM_SECONDS while the intake is full."""
        self._making_room = None
        if len(self._sessions) + self._hearing < self._max_sessions or self._is_draining:
            return
        loop = self._loop
        stalled = [session for _, session in self._sessions.values() if session.is_stalled]
        for each in stalled:
            each.make_room()
        latest = loop.time() - self._context.timeouts.stalled.total_seconds()
        late = [session for session, since in self._handshakes.items() if since <= latest]
        for session in late:
            session.cancel()
            self._context.handshake_failed(HandshakeFailed(ConnectionAbortedError(_FULL)))
        if count := len(stalled) + len(late):
            _log.warning("stalled sessions ended", queue=self._context.queue.name, count=count)
        self._making_room = loop.call_later(ROOM_SECONDS, self._make_room)

    def _accept(self, listening: socket.socket) -> None:
        """Accept one client only: processes that share the socket get a share of a burst."""
        if not self._is_accepting:
            return  # the loop called for a socket after another one filled the intake
        try:
            connection, peer = listening.accept()
        except (BlockingIOError, ConnectionError):
            return  # another process accepted it, or the client has left
        except OSError as error:  # no descriptors or memory: without a pause it fails in a loop
            _log.error("no client can be accepted", error=str(error))
            self._accept_or_not(is_paused=True)
            self._loop.call_later(PAUSE_SECONDS, self._accept_or_not)
            return
        address, listener = address_of(peer), self._listening[listening]
        if address in listener.context.proxies:
            hearing = self._loop.create_task(self._hear(connection, listener))
            self._handshakes[hearing] = self._loop.time()
            self._hearing += 1
            hearing.add_done_callback(self._heard)
            self._accept_or_not()
        else:
            self._welcome(connection, address, listener)

    async def _hear(self, connection: socket.socket, listener: Listening) -> None:
        """Serve the client whose address a proxy sends."""
        try:
            address = await read_client(connection, listener.context.timeouts.tls)
        except WireError as error:
            connection.close()
            _log.info("proxy refused", queue=self._context.queue.name, error=str(error))
        except asyncio.CancelledError:
            connection.close()
            raise
        else:
            # Without an address the proxy looks whether this server lives, or hides a client.
            client = address or address_of(connection.getpeername())
            self._welcome(connection, client, listener, is_known=address is not None)

    def _heard(self, hearing: asyncio.Task[None]) -> None:
        del self._handshakes[hearing]
        self._hearing -= 1
        if not hearing.cancelled() and (error := hearing.exception()) is not None:
            _log.error("unexpected error behind a proxy", exc_info=error)
        self._accept_or_not()

    def _welcome(
        self,
        connection: socket.socket,
        address: str,
        listener: Listening,
        *,
        is_known: bool = True,
    ) -> None:
        refusal = self._clients.connected(address, self._loop.time())
        if refusal is not None:
            self._context.client_refused(refusal, address, set())
            with connection, suppress(OSError):
                if not listener.is_tls:  # a client that begins TLS cannot read a reply in clear
                    connection.send(refusal.encode(), socket.MSG_DONTWAIT)
            return
        wire = ServingWire(self._run_queue)
        wire.client_address = address
        rights, context, rename = listener.rights_of(address), listener.context, None
        client = _CountedClient(address)
        if not is_known:  # it must not have the rights of the proxy
            rights = replace(rights, may_relay=False)
        elif listener.of_proxies is not None and address in context.xclient_from:
            context, rename = listener.of_proxies, partial(self._renamed, client, listener)
        session = IntakeSession(wire, context, rights, partial(self._admit, client), rename)
        running = self._loop.create_task(self._serve(connection, wire, session, listener))
        self._sessions[running] = wire, session
        running.add_done_callback(partial(self._forget, client))
        self._accept_or_not()

    async def _serve(
        self,
        connection: socket.socket,
        wire: ServingWire,
        session: IntakeSession,
        listener: Listening,
    ) -> None:
        try:
            if listener.is_tls:
                await self._shake_hands(connection, wire, listener.context)
            else:
                await accept(connection, wire)
        except HandshakeFailed as error:
            self._context.handshake_failed(error)
            return
        except ConnectionLost:
            return  # the client has left
        await session.run()

    async def _shake_hands(
        self, connection: socket.socket, wire: ServingWire, context: IntakeContext
    ) -> None:
        session = asyncio.current_task()
        assert context.tls is not None
        assert session is not None
        self._handshakes[session] = self._loop.time()
        try:
            await accept_tls(connection, wire, context.tls(), context.timeouts.tls)
        finally:
            del self._handshakes[session]

    def _renamed(self, client: _CountedClient, listener: Listening, address: str) -> Rights | Reply:
        """Count a session as that of another client. Return its rights, or the reply that refuses
        it."""
        now = self._loop.time()
        refusal = self._clients.connected(address, now)
        if refusal is not None:
            return refusal
        self._clients.left(client.address, now)
        client.address = address
        return listener.rights_of(address)

    def _admit(self, client: _CountedClient, mail_from: MailFrom) -> Reply | None:
        size = mail_from.size_bytes
        if size is not None and size > MEMORY_BYTES:
            size *= 2  # written to a file as it comes in, and then to the queue
        if size is not None and not self._context.queue.has_room(size):
            return reply_texts.FULL  # before the client sends the content (RFC 1870 6.1)
        return self._clients.begins_mail(client.address, self._loop.time())

    def _forget(self, client: _CountedClient, session: asyncio.Task[None]) -> None:
        del self._sessions[session]
        self._clients.left(client.address, self._loop.time())
        self._accept_or_not()
        if not session.cancelled() and (error := session.exception()) is not None:
            _log.error("unexpected error in a session", exc_info=error)
