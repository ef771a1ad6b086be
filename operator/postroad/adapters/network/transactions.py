"""One mail transaction: sends MAIL, RCPT, DATA and the content; returns each recipient's outcome.

The commands take as few round trips as the next hop allows (PIPELINING). A recipient whose outcome
the transaction did not learn is deferred. Only a connection lost between the final dot and its
reply can cause a second copy: the mail is deferred, because a loss would be worse (RFC 1047).
Source: RFC 2920; AMB-20.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta

from postroad.adapters.network.commands import (
    Extensions,
    Needs,
    mail_command,
    recipient_command,
)
from postroad.adapters.network.content import Content
from postroad.adapters.network.exchange import Exchange, OutOfStep, SessionRefused, text_of
from postroad.adapters.network.timeouts import Timeouts
from postroad.adapters.network.wire import WireError
from postroad.domain.dot_stuffing import Stuffer
from postroad.domain.mail import Envelope, Outcome
from postroad.domain.next_hops import Protocol
from postroad.domain.replies import Reply

GROUP = 100
"""Commands sent before their replies are read. Bounds the buffers of both sides (RFC 2920 3.1)."""

LARGEST_END = 32 * 1024
"""Octets that are written together with the final dot. A larger piece goes before it, so that a
refusal that arrives while the next hop reads it is the outcome."""


class Transaction:
    """One transaction of a session. `run` once.

    `outcomes` has the recipients with a final or deferred outcome; those that are neither there nor
    `accepted` were not tried. An outcome is `delivered` only if the end of the content was written
    and answered with 2xx.
    """

    def __init__(
        self, exchange: Exchange, protocol: Protocol, extensions: Extensions, timeouts: Timeouts
    ) -> None:
        self._exchange = exchange
        self._protocol = protocol
        self._extensions = extensions
        self._timeouts = timeouts
        self._accepted: list[str] = []
        self.has_overflowed = False
        """Whether the next hop accepts fewer recipients than it was offered."""
        self.outcomes: dict[str, Outcome] = {}
        self.is_clean = False
        """Whether another transaction may follow on the same connection."""

    @property
    def accepted(self) -> int:
        """How many recipients the next hop accepted."""
        return len(self._accepted)

    async def run(
        self, envelope: Envelope, recipients: Sequence[str], needs: Needs, content: Content
    ) -> None:
        """Try to hand over one mail to these recipients of its envelope.

        Raises: WireError while MAIL, RCPT or DATA is under way (the caller then calls
        `interrupted`); what reading the content raises.
        """
        commands = [mail_command(envelope, needs, self._extensions)]
        commands += [recipient_command(each, envelope, self._extensions) for each in recipients]
        reply = await self._envelope(recipients, commands)
        if reply is None:
            await self._reset()
        elif not reply.is_intermediate:
            self._answer_accepted(reply.refusal)
            await self._reset()
        elif self._accepted:
            await self._content(content)
        elif self._protocol is Protocol.LMTP:
            self._exchange.wire.abort()  # LMTP has no reply to a mail for no recipient (RFC 2033)
        else:
            # DATA was pipelined after RCPTs that all failed: a lone dot ends it (RFC 2920 3.1).
            await self._exchange.ask(b".\r\n", self._timeouts.data_end)
            await self._reset()

    def interrupted(self, error: WireError) -> None:
        """Note an error before the content: refused recipients stay refused, unless the replies may
        belong to other commands."""
        if isinstance(error, OutOfStep):
            self.outcomes.clear()
        self._answer_accepted(Outcome.deferred(text_of(error)))

    async def _envelope(self, recipients: Sequence[str], commands: list[bytes]) -> Reply | None:
        """Send MAIL, RCPT and DATA. Return the reply to DATA, None when DATA was not sent."""
        commands.append(b"DATA\r\n")
        data = len(commands) - 1
        size = GROUP if "PIPELINING" in self._extensions else 1
        begun = asyncio.get_running_loop().time()
        start = 0
        while start <= data:
            late = (
                asyncio.get_running_loop().time() - begun > self._timeouts.envelope.total_seconds()
            )
            if late and 1 < start < data:
                start = data  # the other recipients go into another transaction
            if start == data and not self._accepted:
                return None
            group = commands[start : start + size]
            await self._exchange.send(b"".join(group), self._timeouts.command)
            for number in range(start, start + len(group)):
                if number == data:
                    return _go_ahead(await self._exchange.reply(self._timeouts.data_start))
                reply = _answer(await self._exchange.reply(self._timeouts.command))
                if number == 0 and not reply.is_positive:
                    self.outcomes.update(dict.fromkeys(recipients, reply.refusal))
                elif number > 0:
                    self._note(recipients[number - 1], reply)
            start += len(group)
            if len(self.outcomes) == len(recipients) and start <= data:
                return None  # no recipient is left for DATA
        raise AssertionError("DATA is the last command")

    def _note(self, recipient: str, reply: Reply) -> None:
        if recipient in self.outcomes:
            return  # MAIL was refused: the reply to a pipelined RCPT means nothing
        if reply.is_positive:
            self._accepted.append(recipient)
        elif self._accepted and reply.is_too_many_recipients:
            self.has_overflowed = True  # the next transaction has this recipient
        else:
            self.outcomes[recipient] = reply.recipient_refusal

    def _answer_accepted(self, outcome: Outcome) -> None:
        for recipient in self._accepted:
            self.outcomes.setdefault(recipient, outcome)

    async def _reset(self) -> None:
        reply = await self._exchange.ask(b"RSET\r\n", self._timeouts.command)
        self.is_clean = reply.is_positive

    async def _content(self, content: Content) -> None:
        wire, stuffer = self._exchange.wire, Stuffer(content.shape, folds=content.folds)
        held = b""  # the last piece goes together with the dot
        chunk: bytes | None = content.first
        # An error of reading the content leaves this method: the caller closes the session before
        # the dot, so that no next hop accepts half a mail.
        while chunk is not None:
            if held and not await self._write(held):
                return
            held = stuffer.feed(chunk)
            chunk = await content.more()
        if len(held) > LARGEST_END:
            if not await self._write(held):
                return
            held = b""
        if not wire.has_unread:
            await self._finish(held + stuffer.end())
        else:
            await self._stop_early("451 4.5.0 the next hop answered before the end of the mail")

    async def _write(self, block: bytes) -> bool:
        """Write a block of the content; return whether the next one may follow."""
        wire = self._exchange.wire
        try:
            if not wire.has_unread:
                await wire.write(block, self._timeouts.data_block, until_unread=True)
            if not wire.has_unread:
                return True
        except WireError as error:
            await self._stop_early(text_of(error))
        else:
            await self._stop_early("451 4.5.0 the next hop answered before the end of the mail")
        return False

    async def _stop_early(self, text: str) -> None:
        """Abort a content whose end was not written. A refusal that the next hop sent meanwhile is
        the outcome (the mail is too large, for example); a positive reply to half a mail is not."""
        reply = await self._exchange.left_behind()
        self._exchange.wire.abort()
        refused = reply is not None and not (reply.is_positive or reply.is_intermediate)
        self._answer_accepted(reply.refusal if reply and refused else Outcome.deferred(text))

    async def _finish(self, end: bytes) -> None:
        """Write the end of the mail and read its reply: only this sets `delivered`."""
        try:
            await self._exchange.send(end, self._timeouts.data_end)
        except WireError as error:
            await self._stop_early(_in_doubt(error))
            return
        try:
            if self._protocol is Protocol.LMTP:
                await self._read_each()
            else:
                reply = _answer(await self._exchange.reply(self._timeouts.data_end))
                self._answer_accepted(reply.final_outcome)
        except WireError as error:
            known = isinstance(error, SessionRefused)
            self._answer_accepted(Outcome.deferred(str(error) if known else _in_doubt(error)))
            return
        self.is_clean = True

    async def _read_each(self) -> None:
        """Read the reply for each recipient, in their order. Source: RFC 2033 4.2."""
        now, most = asyncio.get_running_loop().time, self._timeouts.data_end
        due = now() + self._timeouts.all_ends.total_seconds()
        for recipient in self._accepted:
            timeout = min(most, timedelta(seconds=due - now()))
            self.outcomes[recipient] = _answer(await self._exchange.reply(timeout)).final_outcome


def _in_doubt(error: WireError) -> str:
    """Return the text of an outcome that the reply to the end of a mail did not decide."""
    return f"{text_of(error)}; the end of the mail was sent, so it may be delivered"


def _answer(reply: Reply) -> Reply:
    """Refuse 3xx, which is a reply to DATA only. Raises: OutOfStep."""
    if reply.is_intermediate:
        raise OutOfStep(f"451 4.5.0 the next hop sent {reply.code} out of sequence")
    return reply


def _go_ahead(reply: Reply) -> Reply:
    """Refuse 2xx, which is no reply to DATA before the content. Raises: OutOfStep."""
    if reply.is_positive:
        raise OutOfStep(f"451 4.5.0 the next hop answered DATA with {reply.code}")
    return reply
