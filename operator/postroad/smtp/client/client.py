"""A client's side of a connection: its task reads a line when it expects a reply."""

from __future__ import annotations

import asyncio
import ssl
from datetime import timedelta
from pathlib import Path

from postroad.smtp.wire import (
    ConnectionLost,
    LineTooLong,
    Wire,
    address_of,
    deadline,
)


class ClientWire(Wire):
    """A connection to a next hop."""

    @property
    def local_address(self) -> str:
        """This side's address, without its port. Raises: ConnectionLost."""
        name = self._transport.get_extra_info("sockname") if self._transport else None
        if not isinstance(name, tuple):
            raise ConnectionLost from self._lost
        return address_of(name)

    def certificates(self) -> list[bytes]:
        """Return the certificates that the peer showed for TLS, its own first, in DER, whether they
        were verified or not. Raises: ConnectionLost."""
        secured = self._transport.get_extra_info("ssl_object") if self._transport else None
        if secured is None:
            raise ConnectionLost from self._lost
        if hasattr(secured, "get_unverified_chain"):
            return [bytes(each) for each in secured.get_unverified_chain()]
        # Python before 3.13 has the chain under a private name alone.
        chain = secured._sslobj.get_unverified_chain() or ()
        return [ssl.PEM_cert_to_DER_cert(each.public_bytes()) for each in chain]

    @property
    def is_open(self) -> bool:
        """Whether neither side has ended the connection and nothing is unread."""
        return not self._at_end and not self._buffer and self._transport is not None

    async def read_line(self, limit: int, due: float) -> bytes:
        """Return the next line without its end, which is CRLF, or LF alone where a digit or nothing
        follows: an LF in a text is followed by more of that text. `due`: until when to wait, on the
        loop's clock.

        Raises: ConnectionLost, TooSlow; LineTooLong beyond `limit` octets.
        """
        searched = 0
        while True:
            end = self._end_of_line(searched)
            if (end if end >= 0 else len(self._buffer)) > limit:
                raise LineTooLong
            if end >= 0:
                line = bytes(self._buffer[:end]).rstrip(b"\r")
                self._consume(end + 1)
                return line
            searched = len(self._buffer)
            await self._arrival(due)

    def _end_of_line(self, start: int) -> int:
        """Return where the LF that ends the next line is; -1: it has not arrived."""
        buffer = self._buffer
        while (end := buffer.find(b"\n", start)) >= 0:
            follows = buffer[end + 1 : end + 2]
            if not follows or follows.isdigit() or buffer[end - 1 : end] == b"\r":
                break
            start = end + 1
        return end

    async def arrival(self, timeout: timedelta) -> None:
        """Wait until octets are unread, or `wake` is called. Raises: ConnectionLost, TooSlow."""
        if not self._buffer:
            await self._arrival(self._loop.time() + timeout.total_seconds())

    def wake(self) -> None:
        """Let `arrival` return."""
        self._arrived()


async def connect_to_socket(path: Path, timeout: timedelta) -> ClientWire:
    """Connect to a Unix socket. Raises: ConnectionLost with the cause, TooSlow."""
    async with deadline(timeout):
        try:
            loop = asyncio.get_running_loop()
            _, wire = await loop.create_unix_connection(ClientWire, str(path))
        except OSError as error:
            raise ConnectionLost(f"no connection: {error}") from error
    return wire


async def connect(
    host: str, port: int, timeout: timedelta, source: str | None = None
) -> ClientWire:
    """Connect, from an address of this machine where one is given. Raises: ConnectionLost with the
    cause, TooSlow."""
    loop = asyncio.get_running_loop()
    local = None if source is None else (source, 0)
    async with deadline(timeout):
        try:
            _, wire = await loop.create_connection(ClientWire, host, port, local_addr=local)
        except (OSError, UnicodeError) as error:  # UnicodeError: a name that IDNA cannot encode
            raise ConnectionLost(f"no connection: {error}") from error
    return wire
