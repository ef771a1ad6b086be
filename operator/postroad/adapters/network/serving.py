"""A server's side of a connection: what a client sends is answered within the call that brings it.

A session takes what has arrived in a plain function, and its task is woken only for what it has to
wait for: a mail to be queued, TLS, the end. Wakeups it for every line would cost more than the
line.
"""

from __future__ import annotations

import asyncio
import math
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from enum import Enum, auto

from postroad.adapters.network.wire import (
    HIGH_WATER,
    ConnectionLost,
    HandshakeFailed,
    LineTooLong,
    Wire,
)

CHUNK = 64 * 1024
"""Octets of content that are read and handed out at most at a time."""

COMMANDS = 8 * 1024
"""The same of commands: what a client sends without reading its answers is memory of this side."""

REPLIES = 4 * 1024
"""Octets of unread replies that may wait in this process, and four times as many in the system: a
client that does not read them gets no further command executed."""

PASS_SECONDS = 0.0003
"""For clients that have sent much at once, in each pass of the event loop: all others are served in
the rest of it."""

FEW_TURNS = 5
"""Turns of a client in a row, after which it gives way to clients that had fewer."""


class RunQueue:
    """Clients that have sent more than was taken in one go: first come, first served, a few in each
    pass of the event loop. Of those that had FEW_TURNS already, one is served in each pass: however
    many there are, others wait for one of them at most."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._few: deque[Callable[[], None]] = deque()
        self._many: deque[Callable[[], None]] = deque()
        self._is_due = False
        self._into = memoryview(bytearray(CHUNK))

    def append(self, progress: Callable[[], None], had: int = 0) -> None:
        """Call `turn` in a later pass; `had`: the client's turns in a row before it."""
        (self._few if had < FEW_TURNS else self._many).append(progress)
        self._pass_soon()

    def buffer(self, size: int) -> memoryview:
        """Return that much memory, for octets that are copied out of it before another client's
        arrive."""
        return self._into[:size]

    def _pass(self) -> None:
        self._is_due = False
        ends = time.monotonic() + PASS_SECONDS  # the loop's own time stands still within a pass
        try:
            for _ in range(len(self._few)):
                self._few.popleft()()
                if time.monotonic() >= ends:
                    break
            if self._many:
                self._many.popleft()()
        finally:  # what one turn raises must not be the end of all others
            if self._few or self._many:
                self._pass_soon()

    def _pass_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._pass)


class Progress(Enum):
    """What taking has come to."""

    WAIT = auto()
    """All was taken that can be: the rest has to arrive first."""

    AGAIN = auto()
    """There is more to take, after others had their turn."""

    DONE = auto()
    """The task that serves goes on."""


class ServingWire(Wire, asyncio.BufferedProtocol):
    """The connection of a client. What it sends waits in a buffer until `serve` is called."""

    def __init__(self, run_queue: RunQueue | None = None) -> None:
        super().__init__()
        self._run_queue = run_queue or RunQueue()
        self._most_unread = COMMANDS
        self._take: Callable[[], Progress] | None = None
        self._is_next = False
        """Whether a turn is due in a moment."""

        self._entries = 0
        """Turns since all was taken that had arrived."""

        self._searched = 0
        self._is_too_long = False
        self._timeout, self._latest = timedelta(), math.inf
        self.is_interrupted = False
        """Whether this side wants to end the session; for `take` to look at."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._limit_replies()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._run_queue.buffer(min(CHUNK, self._most_unread))

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(self._run_queue.buffer(nbytes))

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
        self, take: Callable[[], Progress], timeout: timedelta, latest: float = math.inf
    ) -> None:
        """Call `take` whenever there is something to take, until it is DONE.

        It reads with `next_line` or `next_chunk`, answers with `send`, and says with `expect` what
        patience it has from then on. While the client does not read its answers, nothing is taken.
        Raises: ConnectionLost, TooSlow, and what `take` raises.
        """
        self._take, self._reader = take, self._loop.create_future()
        if not self._is_closed:
            self.expect(timeout, latest)
        self._arrived()
        try:
            await self._reader
        finally:
            self._take = self._reader = None

    def interrupt(self) -> None:
        """Say that this side wants to end the session, and let `take` look at it."""
        self.is_interrupted = True
        self._arrived()

    @property
    def waits_for_peer(self) -> bool:
        """Whether the session can go on only when the client sends, or reads its answers."""
        is_writing = self._writer is not None and not self._writer.done()
        is_served = self._take is not None and not self._is_next
        return is_served or is_writing or self._is_securing

    def give_up(self) -> None:
        """Let `serve` raise TooSlow in a moment; abort where this side waits for a client that does
        not read its answers, or is in the handshake."""
        if self._take is None or self._is_writing_paused:
            self.abort()
        else:
            self.expect(timedelta())

    # What `take` calls.

    def next_line(self, limit: int) -> bytes | None:
        """Return the next line without its CRLF, None while it has not arrived whole. A bare CR or
        LF is part of the line.

        Raises: LineTooLong, once the end of that line has arrived.
        """
        buffer, self._most_unread = self._buffer, COMMANDS
        if not buffer:
            return None
        end = buffer.find(b"\r\n", self._searched)
        if end < 0:
            if len(buffer) > limit + 1:
                self._is_too_long = True
                self._consume(len(buffer) - 1)  # the last octet may be a CR
            self._searched = max(0, len(buffer) - 1)
            self._read_on()  # the longest line is longer than what reading goes on at
            return None
        line = bytes(buffer[:end])
        self._consume(end + 2)
        self._searched = 0
        if self._is_too_long or end > limit:
            self._is_too_long = False
            raise LineTooLong
        return line

    def next_chunk(self) -> bytes:
        """Return what has arrived, at most CHUNK octets."""
        self._most_unread = HIGH_WATER
        data = bytes(self._buffer if len(self._buffer) <= CHUNK else self._buffer[:CHUNK])
        self._consume(len(data))
        return data

    @property
    def has_more(self) -> bool:
        """Whether something has arrived that was not taken."""
        return bool(self._buffer)

    def put_back(self, data: bytes) -> None:
        """Let `data` be taken next."""
        if data:
            self._buffer[:0] = data

    def send(self, data: bytes) -> None:
        """Send without waiting; a client that is gone is not told."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def expect(self, timeout: timedelta, latest: float = math.inf) -> None:
        """Give the client that long from now for what is waited for, but not beyond the moment
        `latest`."""
        self._timeout, self._latest = timeout, latest
        self._due = min(self._loop.time() + timeout.total_seconds(), latest)
        if self._due < self._watched_until:
            self._watch_until(self._due)

    def _arrived(self) -> None:
        """Let `take` have its turn, unless one is coming or the answers are not read."""
        take, reader = self._take, self._reader
        if take is None:
            super()._arrived()
            return
        if reader is None or reader.done() or self._is_next:
            return
        if self._is_closed or (self._transport is not None and self._transport.is_closing()):
            # Under TLS a client can take its leave behind commands that have arrived: what could
            # not be answered is not done.
            reader.set_exception(ConnectionLost())
            return
        if self._is_writing_paused:
            return
        try:
            progress = take() if self._buffer or self.is_interrupted else Progress.WAIT
        except Exception as error:  # whatever it is, the task must hear of it
            reader.set_exception(error)
            del reader  # the error knows this frame, and would keep itself alive
            return
        if progress is Progress.AGAIN:
            self._entries += 1
            self._run_soon()
            return
        self._entries = 0
        if progress is Progress.DONE:
            reader.set_result(None)
        elif self._at_end:
            reader.set_exception(ConnectionLost())

    def _run_soon(self) -> None:
        if not self._is_next:
            self._is_next = True
            self._run_queue.append(self._run_next, self._entries)

    def _run_next(self) -> None:
        self._is_next = False
        self._arrived()


async def accept(connection: socket.socket, wire: ServingWire) -> None:
    """Serve an accepted client. Raises: ConnectionLost."""
    try:
        _limit_unread(connection)
        await asyncio.get_running_loop().connect_accepted_socket(lambda: wire, connection)
    except OSError as error:
        raise ConnectionLost from error


async def accept_tls(
    connection: socket.socket, wire: ServingWire, context: ssl.SSLContext, timeout: timedelta
) -> None:
    """Serve an accepted client whose first octets begin TLS. The loop does the handshake before the
    wire sees anything, so that no octet can count as said in clear. Raises: HandshakeFailed."""
    try:
        _limit_unread(connection)
        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: wire,
            connection,
            ssl=context,
            ssl_handshake_timeout=timeout.total_seconds(),
        )
    except (OSError, EOFError) as error:
        raise HandshakeFailed(error) from error


def _limit_unread(connection: socket.socket) -> None:
    """Let the system keep few replies that the client does not read: by itself it keeps megabytes
    of them, which are hundreds of thousands of executed commands."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * REPLIES)
