"""Sends commands to a next hop and matches its replies to them.

SMTP numbers neither commands nor replies: a reply without a command would shift every later one,
and a mail would count as delivered by the reply to RCPT. So the exchange refuses to send while a
reply is unread. Source: RFC 5321 4.2 (one reply for each command), 4.2.4 (421 at any time).
"""

from __future__ import annotations

from datetime import timedelta

from postroad.domain.smtp.replies import Reply, ReplyReader
from postroad.errors import InvalidInput
from postroad.smtp.client.client import ClientWire
from postroad.smtp.wire import ConnectionLost, LineTooLong, TooSlow, WireError

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
        """Read one reply.

        Raises: ServiceUnavailable for 421, unless that `may_be_last`; OutOfStep for what is no
        reply, or does not end; WireError.
        """
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
