"""Commands out and replies in, on one connection with a next hop: each reply answers one command.

SMTP numbers neither commands nor replies, so a reply that no command asked for shifts every answer
after it by one, and a mail would be called delivered by the reply to RCPT. The exchange therefore
refuses to send while an unread reply lies in the buffer.
Source: RFC 5321 4.2 (one reply for each command), 4.2.4 (421 at any time).
"""

from __future__ import annotations

from datetime import timedelta

from postroad.adapters.network.wire import ConnectionLost, TooSlow, Wire, WireError
from postroad.domain.replies import Reply, ReplyReader
from postroad.errors import InvalidInput

LONGEST_REPLY_LINE = 4096
"""Octets; RFC 5321 4.5.3.1.5 says 512, some servers send more."""

MOMENT = timedelta(seconds=2)
"""For the rest of a reply that has begun to arrive, or that a lost connection may have left."""


class SessionRefused(WireError):
    """The next hop does not want to talk now; the message is its reply or what went wrong."""


class OutOfStep(WireError):
    """A reply does not belong to the command it should answer: no answer of this transaction can
    be trusted any more."""


class Exchange:
    """One connection. Any error ends it; only `abort` makes sense afterwards."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self._replies = ReplyReader()

    async def send(self, commands: bytes, timeout: timedelta) -> None:
        """Write commands. Raises: OutOfStep, SessionRefused for a 421 that came unasked,
        WireError."""
        if self.wire.has_unread:
            stray = await self.reply(MOMENT)
            raise OutOfStep(f"451 4.5.0 the next hop sent a reply to no command: {stray.code}")
        await self.wire.write(commands, timeout)

    async def reply(self, timeout: timedelta) -> Reply:
        """Read one reply.

        Raises: SessionRefused for 421, with which the server ends the session; OutOfStep for what
        is no reply; WireError.
        """
        reply = await self._read(timeout)
        if reply.code == 421:
            raise SessionRefused(str(reply))
        return reply

    async def ask(self, command: bytes, timeout: timedelta) -> Reply:
        """Send one command and read its reply. Raises: as both."""
        await self.send(command, timeout)
        return await self.reply(timeout)

    async def left_behind(self) -> Reply | None:
        """Return the reply that the next hop gave before it, or the network, ended the connection;
        None when there is none. For content that could not be written to its end."""
        try:
            return await self._read(MOMENT)
        except WireError:
            return None

    async def _read(self, timeout: timedelta) -> Reply:
        while True:
            line = await self.wire.read_line(LONGEST_REPLY_LINE, timeout)
            try:
                reply = self._replies.feed(line)
            except InvalidInput as error:
                raise OutOfStep(f"451 4.5.0 {error}") from error
            if reply is not None:
                return reply


def text_of(error: WireError) -> str:
    """Return what a recipient's outcome says of an error of the exchange."""
    if isinstance(error, SessionRefused | OutOfStep):
        return str(error)
    if isinstance(error, TooSlow):
        return "451 4.4.2 the next hop did not answer in time"
    if isinstance(error, ConnectionLost) and not str(error):
        return "451 4.4.2 the connection was lost"
    return f"451 4.4.2 {error}"
