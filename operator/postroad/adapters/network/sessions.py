"""An SMTP or LMTP session with a next hop, as the client.

A transaction goes out in as few round trips as the next hop allows (PIPELINING): MAIL, RCPT and
DATA in one group, then the content as a stream.
What the session could not find out is deferred. Between the final dot and its reply lies the one
moment in which a lost connection can lead to a second copy: the mail is deferred, because a loss
would be worse (RFC 1047).
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from datetime import timedelta

from postroad.adapters.network.commands import (
    Needs,
    mail_command,
    recipient_command,
    refusal,
)
from postroad.adapters.network.content import Content
from postroad.adapters.network.timeouts import Timeouts
from postroad.adapters.network.wire import Wire, WireError, connect
from postroad.domain.mail import Envelope, Outcome
from postroad.domain.nexthops import NextHop, Protocol, TlsMode
from postroad.domain.replies import Reply, ReplyReader
from postroad.domain.transparency import Stuffer
from postroad.errors import InvalidInput

LONGEST_REPLY_LINE = 4096
"""Octets; RFC 5321 4.5.3.1.5 says 512, some servers send more."""

GROUP = 100
"""Commands sent before their replies are read. Bounds what both sides must hold (RFC 2920 3.1)."""

_NOTHING_YET = Reply(250)

IN_DOUBT = "451 4.4.2 the connection was lost after the end of the mail: it may have been taken"


class SessionRefused(WireError):
    """The next hop does not want to talk now; the message is its reply or what went wrong."""


class SecuringFailed(SessionRefused):
    """TLS was offered and could not be used; the message says why."""


class SessionStale(WireError):
    """A session that was open for a while turned out to be closed before anything was said."""


class Session:
    """One open session. Not for concurrent use."""

    def __init__(self, wire: Wire, next_hop: NextHop, timeouts: Timeouts) -> None:
        self._wire = wire
        self._next_hop = next_hop
        self._timeouts = timeouts
        self._replies = ReplyReader()
        self._extensions: dict[str, str] = {}
        self._is_broken = False
        self.transactions = 0
        """How many mails were tried on it."""

    @classmethod
    async def open(
        cls, next_hop: NextHop, ehlo_name: str, context: ssl.SSLContext | None, timeouts: Timeouts
    ) -> Session:
        """Connect, greet, and secure the connection as the next hop's mode says.

        Raises: SessionRefused.
        """
        try:
            wire = await connect(next_hop.host, next_hop.port, timeouts.connect)
        except WireError as error:
            raise SessionRefused(f"451 4.4.1 {error}") from error
        session = cls(wire, next_hop, timeouts)
        try:
            await session._greet(ehlo_name)
            if next_hop.tls is not TlsMode.NONE:
                await session._secure(ehlo_name, context)
        except BaseException as error:
            wire.abort()
            if isinstance(error, WireError | InvalidInput) and not isinstance(
                error, SessionRefused
            ):
                raise SessionRefused(_text_of(error)) from error
            raise
        return session

    @property
    def is_reusable(self) -> bool:
        """Whether another transaction can be tried."""
        return not self._is_broken and self._wire.is_open

    async def transmit(
        self, envelope: Envelope, content: Content, size_bytes: int
    ) -> dict[str, Outcome]:
        """Hand over one mail; return an outcome for every recipient.

        Raises: SessionStale when nothing was said and nothing read of the content beyond its
        beginning, so that another session can be tried; what reading the content raises.
        """
        needs = Needs.of(
            envelope,
            size_bytes,
            has_8bit=content.has_8bit,
            may_have_8bit=content.seen_bytes < size_bytes,
        )
        if refused := refusal(needs, self._extensions):
            return dict.fromkeys(envelope.recipients, refused)
        self.transactions += 1
        self._is_broken = True  # until this transaction has come to a clean end
        outcomes: dict[str, Outcome] = {}
        try:
            accepted = await self._send_envelope(envelope, needs, outcomes)
        except (WireError, InvalidInput) as error:
            if self.transactions > 1 and not outcomes:
                raise SessionStale from error
            return _defer_rest(envelope, outcomes, _text_of(error))
        if accepted:
            await self._send_content(accepted, content, outcomes)
        return _defer_rest(envelope, outcomes, "451 4.3.0 the next hop gave no answer")

    async def quit(self) -> None:
        """Say goodbye and close, within a moment. Never raises."""
        try:
            if self.is_reusable:
                await self._ask(b"QUIT\r\n", self._timeouts.goodbye)
            await self._wire.close(self._timeouts.goodbye)
        except (WireError, InvalidInput):
            self._wire.abort()

    def abort(self) -> None:
        """Close at once."""
        self._is_broken = True
        self._wire.abort()

    async def _greet(self, ehlo_name: str) -> None:
        greeting = await self._reply(self._timeouts.greeting)
        if not greeting.is_positive:
            raise SessionRefused(str(greeting))
        await self._hello(ehlo_name)

    async def _hello(self, name: str) -> None:
        verb = "LHLO" if self._next_hop.protocol is Protocol.LMTP else "EHLO"
        reply = await self._ask(f"{verb} {name}\r\n".encode(), self._timeouts.command)
        self._extensions = {}
        if reply.is_positive:
            for line in reply.lines[1:]:
                keyword, _, parameters = line.strip().partition(" ")
                self._extensions[keyword.upper()] = parameters
            return
        if verb == "EHLO" and reply.is_permanent:
            reply = await self._ask(f"HELO {name}\r\n".encode(), self._timeouts.command)
        if not reply.is_positive:
            raise SessionRefused(str(reply))

    async def _secure(self, ehlo_name: str, context: ssl.SSLContext | None) -> None:
        if context is None or "STARTTLS" not in self._extensions:
            if self._next_hop.tls is TlsMode.REQUIRED:
                raise SessionRefused("451 4.7.5 the next hop does not offer STARTTLS")
            return
        reply = await self._ask(b"STARTTLS\r\n", self._timeouts.command)
        if reply.is_positive:
            try:
                await self._wire.start_tls(
                    context, self._timeouts.command, server_hostname=self._next_hop.host
                )
            except WireError as error:
                raise SecuringFailed(f"451 4.7.5 {error}") from error
            await self._hello(ehlo_name)
        elif self._next_hop.tls is TlsMode.REQUIRED:
            raise SecuringFailed(str(reply))

    async def _send_envelope(
        self, envelope: Envelope, needs: Needs, outcomes: dict[str, Outcome]
    ) -> Sequence[str]:
        """Send MAIL, RCPT and DATA. Return the recipients that wait for the content, and put what
        became of the others into `outcomes`."""
        recipients = envelope.recipients
        commands = [mail_command(envelope, needs, self._extensions)]
        commands += [recipient_command(each, envelope, self._extensions) for each in recipients]
        commands.append(b"DATA\r\n")
        data = len(commands) - 1
        size = GROUP if "PIPELINING" in self._extensions else 1
        accepted: list[str] = []
        reply = _NOTHING_YET
        for start in range(0, len(commands), size):
            group = commands[start : start + size]
            if start == data and not accepted:
                break  # nobody is left to send it to
            await self._wire.write(b"".join(group), self._timeouts.command)
            for number in range(start, start + len(group)):
                if number == data:
                    reply = await self._reply(self._timeouts.data_start)
                    break
                reply = await self._reply(self._timeouts.command)
                if number > 0:
                    self._note(recipients[number - 1], reply, accepted, outcomes)
                elif not reply.is_positive:
                    outcomes.update(dict.fromkeys(recipients, reply.outcome))
            if len(outcomes) == len(recipients) and start == 0 and len(group) < len(commands):
                break
        if accepted and reply.is_intermediate:
            return accepted
        await self._leave_transaction(accepted, reply, outcomes)
        return ()

    @staticmethod
    def _note(
        recipient: str, reply: Reply, accepted: list[str], outcomes: dict[str, Outcome]
    ) -> None:
        if recipient in outcomes:
            return  # MAIL was refused; what the server says to RCPT then means nothing
        if reply.is_positive:
            accepted.append(recipient)
        else:
            outcomes[recipient] = reply.recipient_outcome

    async def _leave_transaction(
        self, accepted: Sequence[str], reply: Reply, outcomes: dict[str, Outcome]
    ) -> None:
        """Go on after a reply to DATA (or the last one, when DATA was not sent) with which no
        content can follow."""
        if reply.is_intermediate:
            # DATA was pipelined after RCPTs that all failed: a lone dot ends it (RFC 2920 3.1).
            await self._ask(b".\r\n", self._timeouts.data_end)
        else:
            outcomes.update(dict.fromkeys(accepted, reply.outcome))
        await self._reset()

    async def _reset(self) -> None:
        self._is_broken = not (await self._ask(b"RSET\r\n", self._timeouts.command)).is_positive

    async def _send_content(
        self, accepted: Sequence[str], content: Content, outcomes: dict[str, Outcome]
    ) -> None:
        stuffer = Stuffer()
        held = b""  # the last piece goes together with the dot
        problem: Outcome | None = None
        takes_8bit = "8BITMIME" in self._extensions
        chunk: bytes | None = content.first
        # An error of the content itself is the caller's; the session is broken then and is closed
        # before the dot, so that no next hop takes half a mail.
        while chunk is not None:
            if not takes_8bit and not chunk.isascii():
                problem = Outcome.failed("554 5.6.3 the next hop does not offer 8BITMIME")
                break
            try:
                if held:
                    await self._wire.write(held, self._timeouts.data_block)
            except WireError as error:
                problem = Outcome.deferred(f"451 4.4.2 {error}")
                break
            held = stuffer.feed(chunk)
            chunk = await content.more()
        if problem is not None:
            self._wire.abort()
            outcomes.update(dict.fromkeys(accepted, problem))
            return
        await self._finish(accepted, held + stuffer.end(), outcomes)

    async def _finish(
        self, accepted: Sequence[str], end: bytes, outcomes: dict[str, Outcome]
    ) -> None:
        try:
            await self._wire.write(end, self._timeouts.data_end)
            if self._next_hop.protocol is Protocol.LMTP:
                for recipient in accepted:  # one reply each, in their order (RFC 2033 4.2)
                    outcomes[recipient] = (await self._reply(self._timeouts.data_end)).outcome
            else:
                outcome = (await self._reply(self._timeouts.data_end)).outcome
                outcomes.update(dict.fromkeys(accepted, outcome))
        except (WireError, InvalidInput) as error:
            text = str(error) if isinstance(error, SessionRefused) else IN_DOUBT
            for recipient in accepted:
                outcomes.setdefault(recipient, Outcome.deferred(text))
            return
        self._is_broken = False

    async def _ask(self, command: bytes, timeout: timedelta) -> Reply:
        await self._wire.write(command, timeout)
        return await self._reply(timeout)

    async def _reply(self, timeout: timedelta) -> Reply:
        """Read a reply. Raises: SessionRefused for 421, with which the server ends the session."""
        while True:
            line = await self._wire.read_line(LONGEST_REPLY_LINE, timeout)
            reply = self._replies.feed(line)
            if reply is not None:
                break
        if reply.code == 421:
            self._is_broken = True
            raise SessionRefused(str(reply))
        return reply


def _text_of(error: Exception) -> str:
    return str(error) if isinstance(error, SessionRefused) else f"451 4.4.2 {error}"


def _defer_rest(envelope: Envelope, outcomes: dict[str, Outcome], text: str) -> dict[str, Outcome]:
    """Return outcomes for all, in the envelope's order."""
    if len(envelope.recipients) == len(outcomes) == 1:
        return outcomes
    deferred = Outcome.deferred(text)
    return {recipient: outcomes.get(recipient, deferred) for recipient in envelope.recipients}
