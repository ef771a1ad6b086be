"""One TCP connection of lines, as both sides of SMTP need it: octets in and out, flow control,
timeouts, TLS by STARTTLS. client.py and serving.py read the lines.

It uses asyncio's protocols and not its streams for three reasons. The wire sees and refuses octets
that arrive in clear before TLS, also while the handshake begins; a line that is too long costs no
memory beyond its limit; and a server's side answers within the call that brings a line."""

import asyncio
import math
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import cast

from postroad.errors import PostroadError

HIGH_WATER = 256 * 1024
"""Unread octets at which the wire pauses reading."""

MAX_TIMER = 60.0
"""Seconds until the timer next checks the deadline, at most. Deadlines of minutes, one after the
other, share one timer so."""


class WireError(PostroadError):
    """The connection cannot be used any longer."""

    transient = True


class ConnectionLost(WireError):
    """The peer closed the connection, or the network did."""


class LineTooLong(WireError):
    """The peer sent a line beyond the limit. A server's wire drops it, and the session goes on; a
    client's ends with it."""


class TooSlow(WireError):
    """The peer did not send, read or connect within the timeout."""


class HandshakeFailed(ConnectionLost):
    """The TLS handshake failed. `reason` is refused, slow or left."""

    def __init__(self, error: Exception) -> None:
        why = str(error) or "the connection was closed"
        super().__init__(f"TLS could not be started: {why}")
        if isinstance(error, ConnectionAbortedError):  # asyncio raises it at the timeout
            self.reason = "slow"
        elif isinstance(error, ssl.SSLEOFError) or not isinstance(error, ssl.SSLError):
            self.reason = "left"
        else:
            self.reason = "refused"


class InjectedBeforeTLS(WireError):
    """The peer sent octets in clear that would have counted as sent under TLS."""


def address_of(name: tuple[object, ...]) -> str:
    """Return the address in the name of a socket or its peer, without the port."""
    address = str(name[0])
    return address.removeprefix("::ffff:") if "." in address else address


class Wire(asyncio.BaseProtocol):
    """A connection. One task reads and one writes at a time, or a server's side does both. Every
    failure of the connection is a WireError; after one, only `abort` makes sense, except after
    LineTooLong."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._lost: Exception | None = None
        self._at_end = False
        self.loop = loop or asyncio.get_running_loop()
        self.now = self.loop.time
        """Returns the time of the event loop's clock, in seconds."""
        self._reader: asyncio.Future[None] | None = None
        self._due = 0.0
        self._watch: asyncio.TimerHandle | None = None
        self._watched_until = math.inf
        self._writer: asyncio.Future[None] | None = None
        self._is_secured = self._is_securing = False
        self._is_closed = False
        self._closer: asyncio.Future[None] | None = None
        self._is_writing_paused = False
        self._is_reading_paused = False
        self._most_unread = HIGH_WATER

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._is_secured = transport.get_extra_info("sslcontext") is not None

    def data_received(self, data: bytes | memoryview) -> None:
        self._buffer += data
        if len(self._buffer) > self._most_unread:
            self._pause_reading()
        self._arrived()

    def eof_received(self) -> bool:
        self._at_end = True
        self._arrived()
        # Stay open: a peer that ended its direction may still read the answer. TLS has no
        # half-close.
        return self._transport is not None and not self._is_secured

    def connection_lost(self, exc: Exception | None) -> None:
        self._at_end = True
        self._lost = exc
        self._is_closed = True
        self._arrived()
        self.resume_writing()
        if self._watch is not None:
            self._watch.cancel()
        if self._closer is not None and not self._closer.done():
            self._closer.set_result(None)

    def pause_writing(self) -> None:
        self._is_writing_paused = True

    def resume_writing(self) -> None:
        self._is_writing_paused = False
        self._wake_writer()

    # Called by both sides of SMTP.

    @property
    def peer_address(self) -> str | None:
        """The peer's address without its port; a mapped IPv4 address in IPv4's form."""
        name = self._transport.get_extra_info("peername") if self._transport else None
        return address_of(name) if isinstance(name, tuple) else None

    @property
    def is_secured(self) -> bool:
        """True if the connection uses TLS."""
        return self._is_secured

    @property
    def cipher(self) -> tuple[str, str] | None:
        """The version of TLS and the cipher; None: the connection is in clear."""
        if self._transport is None or not self._is_secured:
            return None
        secured = self._transport.get_extra_info("ssl_object")
        used = secured.cipher()
        return (str(secured.version()), str(used[0])) if used else None

    @property
    def has_unread(self) -> bool:
        """True if octets have arrived that were not read."""
        return bool(self._buffer)

    async def write(self, data: bytes, timeout: timedelta, *, until_unread: bool = False) -> None:
        """Send; return when the system has it, or little waits to be sent. `until_unread`: return
        also when octets arrive, because a peer that refuses may have stopped reading. Raises:
        ConnectionLost, TooSlow."""
        if self._transport is None or self._transport.is_closing():
            raise ConnectionLost from self._lost
        self._transport.write(data)
        if self._is_writing_paused or self._is_closed:
            await self.flush(timeout, until_unread=until_unread)

    async def flush(self, timeout: timedelta, *, until_unread: bool = False) -> None:
        """Wait until little waits to be sent. Raises: ConnectionLost, TooSlow."""
        if self._is_writing_paused:
            async with deadline(timeout):
                while self._is_writing_paused and not self._is_closed:
                    if until_unread and self._buffer:
                        return
                    self._writer = self.loop.create_future()
                    await self._writer
        if self._is_closed:
            raise ConnectionLost from self._lost

    async def start_tls(
        self, context: ssl.SSLContext, timeout: timedelta, *, server_hostname: str | None = None
    ) -> None:
        """Start TLS; as the server without `server_hostname`. Raises: InjectedBeforeTLS,
        HandshakeFailed, ConnectionLost."""
        if self._transport is None:
            raise ConnectionLost
        if self._buffer:
            raise InjectedBeforeTLS
        self._is_securing = True
        # No await between the check of the buffer and start_tls, which pauses reading at once:
        # nothing can arrive in clear in between.
        try:
            secured = await self.loop.start_tls(
                self._transport,
                self,
                context,
                server_side=server_hostname is None,
                server_hostname=server_hostname,
                ssl_handshake_timeout=timeout.total_seconds(),
            )
        except (OSError, ssl.SSLError, EOFError, ValueError) as error:  # ValueError: an odd name
            raise HandshakeFailed(error) from error
        finally:
            self._is_securing = False
        if secured is None:
            raise HandshakeFailed(ConnectionResetError())
        self._transport, self._is_secured = secured, True

    async def close(self, timeout: timedelta) -> None:
        """Send what waits, and close; abort after `timeout`."""
        if self._transport is None:
            return
        self._transport.close()
        if self._is_closed:
            return
        if self._closer is None:
            self._closer = self.loop.create_future()
        if not self._is_secured and not self._transport.get_write_buffer_size():
            await self._closer  # without a timer: closing does not wait for the peer
            return
        abort = self.loop.call_later(timeout.total_seconds(), self.abort)
        try:
            await self._closer
        finally:
            abort.cancel()

    async def closed(self) -> None:
        """Wait until the connection has ended."""
        if not self._is_closed:
            if self._closer is None:
                self._closer = self.loop.create_future()
            await asyncio.shield(self._closer)

    def abort(self) -> None:
        """Close at once, and drop what waits to be sent. Idempotent."""
        self._at_end = True
        if self._transport is not None:
            self._transport.abort()

    def _consume(self, count: int) -> None:
        del self._buffer[:count]
        if self._is_reading_paused and len(self._buffer) <= self._most_unread // 2:
            self._resume_reading()

    def _pause_reading(self) -> None:
        if not self._is_reading_paused and self._transport:
            self._is_reading_paused = True
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._is_reading_paused and self._transport:
            self._is_reading_paused = False
            if not self._transport.is_closing():
                self._transport.resume_reading()

    async def _arrival(self, due: float) -> None:
        """Wait until octets arrive, at most until `due` on the loop's clock."""
        if self._at_end:
            raise ConnectionLost from self._lost
        self._reader = self.loop.create_future()
        self._due = due
        if due < self._watched_until:
            self._watch_until(due)
        try:
            await self._reader
        finally:
            self._reader = None

    def _watch_until(self, due: float) -> None:
        """Set the timer to `due`. A reader that gets its line in time leaves the timer as it is,
        because one timer for each line would cost more than the line."""
        if self._watch is not None:
            self._watch.cancel()
        self._watched_until = min(due, self.loop.time() + MAX_TIMER)
        self._watch = self.loop.call_at(self._watched_until, self._check_deadline)

    def _check_deadline(self) -> None:
        self._watch, self._watched_until = None, math.inf
        if self._reader is None or self._reader.done():
            return
        if self.loop.time() < self._due:
            self._watch_until(self._due)
        else:
            self._reader.set_exception(TooSlow())

    def _arrived(self) -> None:
        """Wake the reader and the writer: octets have arrived, or the connection has ended."""
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
        self._wake_writer()

    def _wake_writer(self) -> None:
        if self._writer is not None and not self._writer.done():
            self._writer.set_result(None)


@asynccontextmanager
async def deadline(timeout: timedelta) -> AsyncIterator[None]:
    """asyncio.timeout that raises TooSlow."""
    try:
        async with asyncio.timeout(timeout.total_seconds()):
            yield
    except TimeoutError as late:
        raise TooSlow from late
