"""A client's side of a connection: its task reads a line when it expects a reply.

Sends commands to a next hop and matches its replies to them.

SMTP numbers neither commands nor replies: a reply without a command would shift every later one,
and a mail would count as delivered by the reply to RCPT. So the exchange refuses to send while a
reply is unread. Source: RFC 5321 4.2 (one reply for each command), 4.2.4 (421 at any time)."""

import asyncio
import ssl
from datetime import timedelta
from pathlib import Path

from postroad.domain.mail.mail import Outcome, Responder
from postroad.domain.smtp.replies import Reply, ReplyReader
from postroad.errors import InvalidInput
from postroad.smtp.wire import (
    ConnectionLost,
    LineTooLong,
    TooSlow,
    Wire,
    WireError,
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
        """True if neither side has ended the connection and nothing is unread."""
        return not self._at_end and not self._buffer and self._transport is not None

    async def read_line(self, limit: int, due: float) -> bytes:
        """Return the next line without its end, which is CRLF, or LF alone where a digit or nothing
        follows: an LF in a text is followed by more of that text. `due`: until when to wait, on the
        loop's clock. Raises: ConnectionLost, TooSlow; LineTooLong beyond `limit` octets."""
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
            await self._arrival(self.loop.time() + timeout.total_seconds())

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


MAX_REPLY_LINE = 64 * 1024
"""Octets of a line before the next hop is taken for broken. RFC 5321 4.5.3.1.5 allows 512, RFC 4954
4 a challenge of 12,288, and some servers send texts of more."""

MOMENT = timedelta(seconds=2)
"""For a reply that has begun to arrive, or that arrived before the connection was lost."""


class SessionRefused(WireError):
    """The next hop refuses the session; the message is its reply, or the error."""


class ServiceUnavailable(SessionRefused):
    """The next hop replied 421: it ends this session, or accepts no further one."""


class OutOfStep(WireError):
    """A reply does not belong to its command, so no reply of this transaction counts."""


class Exchange:
    """The commands and replies of one connection. After any error only `abort` makes sense."""

    def __init__(self, wire: ClientWire) -> None:
        self.wire = wire
        self._replies = ReplyReader()

    async def send(self, commands: bytes, timeout: timedelta) -> None:
        """Write commands. Raises: OutOfStep for an unread reply, ServiceUnavailable for an unread
        421, WireError."""
        if self.wire.has_unread:
            await self.expect_silence()
        await self.wire.write(commands, timeout)

    async def expect_silence(self) -> None:
        """Raise what an unread reply means where no command waits for one: OutOfStep,
        ServiceUnavailable, WireError."""
        if self.wire.has_unread:
            stray = await self.reply(MOMENT)
            raise OutOfStep(f"451 4.5.0 the next hop sent a reply to no command: {stray.code}")

    async def reply(self, timeout: timedelta, *, may_be_last: bool = False) -> Reply:
        """Read one reply. Raises: ServiceUnavailable for 421, unless that `may_be_last`; OutOfStep
        for what is no reply, or does not end; WireError."""
        due = self.wire.now() + timeout.total_seconds()  # of the whole reply, not of each line
        while True:
            try:
                reply = self._replies.feed(await self.wire.read_line(MAX_REPLY_LINE, due))
            except InvalidInput as error:
                raise OutOfStep(f"451 4.5.0 {error}") from error
            except LineTooLong as error:
                raise OutOfStep("451 4.5.0 a line of the next hop does not end") from error
            if reply is not None:
                break
        if reply.code == 421 and not may_be_last:
            raise ServiceUnavailable(str(reply))
        return reply

    async def ask(self, command: bytes, timeout: timedelta) -> Reply:
        """Send one command and read its reply. Raises: as `send` and `reply`."""
        await self.send(command, timeout)
        return await self.reply(timeout)

    async def left_behind(self) -> Reply | None:
        """Return the reply that arrived before the connection ended, or None. For content that
        could not be written to its end."""
        try:
            return await self.reply(MOMENT, may_be_last=True)
        except WireError:
            return None


def text_of(error: WireError) -> str:
    """Return the text of a recipient's outcome for an error of the exchange."""
    if isinstance(error, SessionRefused | OutOfStep):
        return str(error)
    if isinstance(error, TooSlow):
        return "451 4.4.2 the next hop did not answer in time"
    if isinstance(error, ConnectionLost):
        return "451 4.4.2 the connection was lost"
    return f"451 4.4.2 {error}"


def deferred_by(error: WireError, responder: Responder, text: str = "") -> Outcome:
    """Return a recipient's outcome for an error of the exchange: 421 is the next hop's reply, by
    which its site may be suspended. `text`: in place of the usual one."""
    outcome = Outcome.deferred(text or text_of(error))
    if isinstance(error, ServiceUnavailable):
        return outcome.from_responder(responder)
    return outcome
