"""A server's side of a connection: answers a client within the event loop's call that brings its
octets.

A session processes them in a plain function, one *round* for each call of it. Its task is woken
only for what has to wait (an enqueue, TLS, the end), because a wake-up for each line would cost
more than the line. A client that sends more than one round processes waits in the run queue for its
next round, so that clients that send little wait for a few rounds of others, however many there
are.

Certificates are renewed while a pod runs: cert-manager writes the Secret, and the kubelet swaps a
symlink to a new folder. To check the files costs two system calls for each TLS handshake."""

from __future__ import annotations

import asyncio
import math
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Mapping
from datetime import timedelta
from enum import Enum, auto
from pathlib import Path
from typing import Any

from postroad.errors import InvalidSettings
from postroad.file_stamps import FileStamp, stamp_of
from postroad.smtp.wire import (
    HIGH_WATER,
    ConnectionLost,
    HandshakeFailed,
    LineTooLong,
    Wire,
    WireError,
)
from postroad.telemetry.logs import logger
from postroad.tls import ClientAuthorities, ServerContext, server_context

CHUNK = 64 * 1024
"""Octets of content that are read at a time."""

PASS_SECONDS = 0.0003
"""For rounds of the queue in each pass of the event loop; new connections and clients that send
little have the rest of the pass."""

FEW_ROUNDS = 5
"""Rounds in a row after which a client waits behind those that had fewer."""


class RunQueue:
    """Runs rounds first come, first served, a few in each pass of the event loop. Of clients that
    had FEW_ROUNDS already, one is served in each pass: the others wait for one of them at most."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._few: deque[Callable[[], None]] = deque()
        self._many: deque[Callable[[], None]] = deque()
        self._is_due = False
        self.into = memoryview(bytearray(CHUNK))
        """Memory that all clients share: each copies its octets out of it before another client's
        arrive."""
        self.into_for_commands = self.into[:COMMANDS]

    def append(self, run: Callable[[], None], rounds: int = 0) -> None:
        """Call `run` in a later pass. `rounds`: the client's rounds in a row before it."""
        (self._few if rounds < FEW_ROUNDS else self._many).append(run)
        self._pass_soon()

    def _pass(self) -> None:
        self._is_due = False
        ends = time.monotonic() + PASS_SECONDS  # uvloop's loop.time() stands still in a pass
        try:
            for _ in range(len(self._few)):
                self._few.popleft()()
                if time.monotonic() >= ends:
                    break
            if self._many:
                self._many.popleft()()
        finally:  # an exception of one round must not end the service of all clients
            if self._few or self._many:
                self._pass_soon()

    def _pass_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self.loop.call_soon(self._pass)


COMMANDS = 8 * 1024
"""Octets of commands that are read at a time, because what a client sends without reading the
replies is memory of this process."""

REPLIES = 4 * 1024
"""Octets of unread replies in this process, beside four times as many in the system. No further
command of a client that does not read them is executed."""

MAX_LINGERING = 64 * 1024
"""Octets of a peer that `linger` drops before it leaves the rest in the system. Without this bound,
peers that send all the time would keep the processor for as long as their sessions linger."""


MAX_DROPPED = 1024 * 1024
"""Octets of one line that are dropped for one LineTooLong: a client that sends a line without end
is refused like one that sends many lines."""


class RoundResult(Enum):
    WAIT = auto()
    """The next round comes when more octets have arrived."""

    AGAIN = auto()
    """The next round comes after those of other clients."""

    DONE = auto()
    """`serve` returns."""


WAIT, AGAIN, DONE = RoundResult  # an attribute of an enum costs as much as a call (CPython 3.11)


class ServingWire(Wire, asyncio.BufferedProtocol):
    """The connection of a client. Octets wait in a buffer until `serve` is called."""

    def __init__(self, run_queue: RunQueue | None = None) -> None:
        self._run_queue = run_queue or RunQueue()
        super().__init__(self._run_queue.loop)
        self._most_unread = COMMANDS
        self._take: Callable[[], RoundResult] | None = None
        self._is_queued = False
        """True if a round waits in the run queue."""

        self._rounds = 0
        """Rounds in a row that left octets in the buffer."""

        self._searched = 0
        self._is_too_long = False
        self._dropped = 0
        """Octets dropped of the line under way since it last counted as too long."""

        self._timeout, self._latest = timedelta(), math.inf
        self.is_interrupted = False
        """True if this side wants to end the session; `take` reads it."""

        self.client_address: str | None = None
        """The client's address, where a proxy has said it."""

    @property
    def peer_address(self) -> str | None:
        """The client's address, also behind a proxy that says it."""
        return self.client_address or super().peer_address

    def channel_binding(self) -> str | None:
        """Return the certificate that this side has shown, None without TLS."""
        connection = self._transport and self._transport.get_extra_info("ssl_object")
        return getattr(connection and connection.context, "certificate", None) or None

    def names_in_certificate(self) -> list[str] | None:
        """Return the names of hosts in the certificate of the client, which authorities vouch for;
        None: it has shown none."""
        shown = self._transport and self._transport.get_extra_info("peercert")
        if not shown:
            return None
        return [name for kind, name in shown.get("subjectAltName", ()) if kind == "DNS"]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._limit_replies()

    def get_buffer(self, sizehint: int) -> memoryview:
        queue = self._run_queue
        return queue.into if self._most_unread > COMMANDS else queue.into_for_commands

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(self._run_queue.into[:nbytes])

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._take is not None:
            self.expect(self._timeout, self._latest)
            self._run_soon()

    async def start_tls(
        self, context: ssl.SSLContext, timeout: timedelta, *, server_hostname: str | None = None
    ) -> None:
        await super().start_tls(context, timeout, server_hostname=server_hostname)
        self._limit_replies()

    def _limit_replies(self) -> None:
        assert self._transport is not None
        self._transport.set_write_buffer_limits(REPLIES)

    async def serve(
        self, take: Callable[[], RoundResult], timeout: timedelta, latest: float = math.inf
    ) -> None:
        """Call `take`, a round, whenever octets have arrived, until it returns DONE. It reads with
        `next_line` or `next_chunk`, replies with `send`, and sets the next timeout with `expect`.
        There is no round while the client does not read its replies. Raises: ConnectionLost,
        TooSlow, and what `take` raises."""
        self._take, self._reader = take, self.loop.create_future()
        if not self._is_closed:
            self.expect(timeout, latest)
        self._arrived()
        try:
            await self._reader
        finally:
            self._take = self._reader = None

    def interrupt(self) -> None:
        """Ask `take` to end the session."""
        self.is_interrupted = True
        self._arrived()

    @property
    def waits_for_peer(self) -> bool:
        """True if the session can go on only when the client sends, or reads its replies."""
        is_writing = self._writer is not None and not self._writer.done()
        is_served = self._take is not None and not self._is_queued
        return is_served or is_writing or self._is_securing

    def give_up(self) -> None:
        """Make `serve` raise TooSlow; abort the connection of a client that does not read its
        replies or is in the handshake."""
        if self._take is None or self._is_writing_paused:
            self.abort()
        else:
            self.expect(timedelta())

    async def linger(self, timeout: timedelta) -> None:
        """End this side's direction and drop what arrives until the peer ends its own, for at most
        `timeout`, because `close` with unread input resets the connection, and the peer may lose
        replies that it has not read. A peer that sends more than MAX_LINGERING octets has the same
        time, but may lose them. No effect under TLS, which has no half-close."""
        transport = self._transport
        if self._is_secured or self._at_end or transport is None or transport.is_closing():
            return
        due, left = self.loop.time() + timeout.total_seconds(), MAX_LINGERING
        try:
            transport.write_eof()
            while not self._at_end:
                left -= len(self._buffer)
                self._consume(len(self._buffer))
                if left <= 0:
                    self._pause_reading()
                await self._arrival(due)
        except (WireError, OSError):
            pass

    # Called by `take`.

    def next_line(self, limit: int) -> bytes | None:
        """Return the next line without its CRLF, None while it has not arrived whole. A bare CR or
        LF is part of the line. Raises: LineTooLong, once the end of that line has arrived, and
        before that whenever MAX_DROPPED octets of it were dropped."""
        buffer, self._most_unread = self._buffer, COMMANDS
        if not buffer:
            return None
        end = buffer.find(b"\r\n", self._searched)
        if end < 0:
            if len(buffer) > limit + 1:
                self._is_too_long = True
                self._dropped += len(buffer) - 1
                self._consume(len(buffer) - 1)  # the last octet may be a CR
            self._searched = max(0, len(buffer) - 1)
            if self._dropped >= MAX_DROPPED:
                self._dropped = 0
                raise LineTooLong
            self._resume_reading()  # a line may be longer than the fill level at which this happens
            return None
        line = bytes(buffer[:end])
        self._consume(end + 2)
        self._searched = self._dropped = 0
        if self._is_too_long or end > limit:
            self._is_too_long = False
            raise LineTooLong
        return line

    def expect_content(self) -> None:
        """Read as much at a time as the content of a mail has, until `next_line` is called."""
        self._most_unread = HIGH_WATER

    def next_chunk(self) -> bytes:
        """Return the next octets, at most CHUNK of them."""
        data = bytes(self._buffer if len(self._buffer) <= CHUNK else self._buffer[:CHUNK])
        self._consume(len(data))
        return data

    def put_back(self, data: bytes) -> None:
        """Put `data` before the unread octets."""
        if data:
            self._buffer[:0] = data

    def send(self, data: bytes) -> None:
        """Send without waiting; no error when the client is gone."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def expect(self, timeout: timedelta, latest: float = math.inf) -> None:
        """Set the deadline of what the client sends next: `timeout` from now, at most `latest` of
        the loop's clock."""
        self._timeout, self._latest = timeout, latest
        self._due = min(self.now() + timeout.total_seconds(), latest)
        if self._due < self._watched_until:
            self._watch_until(self._due)

    def _arrived(self) -> None:
        """Run a round, unless one is queued or the client does not read its replies."""
        take, reader = self._take, self._reader
        if take is None:
            super()._arrived()
            return
        if reader is None or reader.done() or self._is_queued:
            return
        if self._is_closed or (self._transport is not None and self._transport.is_closing()):
            # Under TLS a client can close behind commands that have arrived: a command that cannot
            # be answered is not executed.
            reader.set_exception(ConnectionLost())
            return
        if self._is_writing_paused:
            return
        try:
            result = take() if self._buffer or self.is_interrupted else WAIT
        except Exception as error:  # all of them: raised here, they would end in asyncio's log
            reader.set_exception(error)
            del reader  # the error refers to this frame: a cycle without this line
            return
        if result is AGAIN:
            self._rounds += 1
            self._run_soon()
            return
        self._rounds = 0
        if result is DONE:
            reader.set_result(None)
        elif self._at_end:
            reader.set_exception(ConnectionLost())

    def _run_soon(self) -> None:
        if not self._is_queued:
            self._is_queued = True
            self._run_queue.append(self._run, self._rounds)

    def _run(self) -> None:
        self._is_queued = False
        self._arrived()


async def accept(connection: socket.socket, wire: ServingWire) -> None:
    """Serve an accepted client. Raises: ConnectionLost."""
    try:
        await wire.loop.connect_accepted_socket(lambda: wire, connection)
    except OSError as error:
        raise ConnectionLost from error


async def accept_tls(
    connection: socket.socket, wire: ServingWire, context: ssl.SSLContext, timeout: timedelta
) -> None:
    """Serve an accepted client whose connection begins with TLS. asyncio does the handshake before
    the wire gets any octet, so that none counts as sent in clear. Raises: HandshakeFailed."""
    try:
        await wire.loop.connect_accepted_socket(
            lambda: wire,
            connection,
            ssl=context,
            ssl_handshake_timeout=timeout.total_seconds(),
        )
    except (OSError, EOFError) as error:
        raise HandshakeFailed(error) from error


def limit_unread(listening: socket.socket) -> None:
    """Bound the unread replies in the system, because by default it buffers megabytes of them,
    after hundreds of thousands of executed commands. Connections inherit it (tcp(7))."""
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * REPLIES)


_log = logger("tls")


class ServerCertificate:
    """A certificate with its chain, and its key (None: in the same file). `others`: by name of the
    server, in lower case (`*.example.org`: one label), the certificates for clients that ask for it
    (RFC 6066 3). `clients`: certificates that clients are asked for; those of `others` have the
    same. Raises: InvalidSettings when they cannot be used at the start."""

    def __init__(
        self,
        certificate: Path,
        key: Path | None = None,
        others: Mapping[str, ServerCertificate] | None = None,
        clients: ClientAuthorities | None = None,
    ) -> None:
        self._certificate, self._key, self._clients = certificate, key, clients
        self._others = others or {}
        try:
            self._seen = self._stamps()  # before reading, else a change meanwhile stays unseen
            self._context = self._read()
        except OSError as error:  # ssl.SSLError is one
            key_file = "its key in the same file" if key is None else f"the key {key}"
            beside = "" if clients is None else f" and the authorities of clients {clients.file}"
            raise InvalidSettings(
                f"the certificate {certificate} with {key_file}{beside} cannot be used: {error}",
                hint="name a PEM file of the certificate and its chain, and one of its unencrypted "
                "key: POSTROAD_INTAKE_TLS_CERTIFICATE and POSTROAD_INTAKE_TLS_KEY, or "
                "`certificates` of a listener",
            ) from error

    def context(self) -> ServerContext:
        """Return the TLS context of a session that begins now. Files that cannot be used are logged
        as an error, once for each change, and the last certificate stays in use."""
        seen = self._stamps()
        if seen == self._seen:
            return self._context
        self._seen = seen
        try:
            self._context = self._read()
            _log.info("certificate read again", path=str(self._certificate))
        except OSError as error:
            _log.error(
                "certificate cannot be used, the last one stays",
                path=str(self._certificate),
                error=str(error),
            )
        return self._context

    def _stamps(self) -> tuple[FileStamp, ...]:
        clients = self._certificate if self._clients is None else self._clients.file
        return tuple(map(stamp_of, (self._certificate, self._key or self._certificate, clients)))

    def _read(self) -> ServerContext:
        context = server_context(self._certificate, self._key, self._clients)
        if self._others:
            context.sni_callback = self._choose
        return context

    def _choose(self, connection: Any, name: str | None, _: ssl.SSLContext) -> None:
        wanted = (name or "").lower()
        parent = f"*.{wanted.partition('.')[2]}"
        other = self._others.get(wanted) or self._others.get(parent)
        if other is not None:
            connection.context = other.context()
