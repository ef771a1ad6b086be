"""One mail transaction: sends MAIL, RCPT, DATA and the content; returns each recipient's outcome.

The commands take as few round trips as the next hop allows (PIPELINING). A recipient whose outcome
the transaction did not learn is deferred. Only a connection lost between the final dot and its
reply can cause a second copy: the mail is deferred, because a loss would be worse (RFC 1047).
Source: RFC 2920; AMB-20.

Meaning of a next hop's replies to one mail for its recipients."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import NamedTuple

from postroad.domain.mail.dot_stuffing import Stuffer
from postroad.domain.mail.mail import Envelope, Outcome, OutcomeKind, Responder
from postroad.domain.smtp.next_hops import Protocol
from postroad.domain.smtp.replies import Reply
from postroad.domain.values.instants import duration
from postroad.ports.delivery import BeforeEnd
from postroad.smtp.client.client import (
    MOMENT,
    Exchange,
    OutOfStep,
    ServiceUnavailable,
    SessionRefused,
    deferred_by,
    text_of,
)
from postroad.smtp.client.connecting import Timeouts
from postroad.smtp.client.opening import extensions_of
from postroad.smtp.client.transaction.commands import (
    Extensions,
    Needs,
    mail_command,
    recipient_command,
)
from postroad.smtp.client.transaction.content import OpenContent
from postroad.smtp.wire import ConnectionLost, WireError

RESET = b"RSET\r\n"


class Outgoing(NamedTuple):
    envelope: Envelope
    recipients: Sequence[str]
    """Those of its envelope that are offered in this transaction."""

    needs: Needs
    content: OpenContent
    responder: Responder
    is_first: bool
    """True if its transaction is the first one of its session."""

    def commands(self, extensions: Extensions) -> list[bytes]:
        return [
            mail_command(self.envelope, self.needs, extensions),
            *(recipient_command(each, self.envelope, extensions) for each in self.recipients),
        ]


class MailReplies:
    """The replies to one mail. `outcomes` has the recipients with a final or deferred outcome;
    those that are neither there nor `accepted` were not tried."""

    def __init__(self, mail: Outgoing) -> None:
        self.is_first = mail.is_first
        """True if it is the first one of its session."""
        self._recipients = mail.recipients
        self._responder = mail.responder
        self._accepted: list[str] = []
        self.has_overflowed = False
        """True if the next hop accepts fewer recipients than it was offered."""
        self.outcomes: dict[str, Outcome] = {}
        self.is_clean = False
        """True if another transaction may follow on the same connection."""
        self._is_unclear = False
        """True if the next hop may have accepted recipients that are not `accepted`."""
        self._is_contradicted = False
        """True if it accepted a recipient of a mail that it had refused at MAIL."""

    @property
    def accepted(self) -> int:
        """Number of recipients the next hop accepted."""
        return len(self._accepted)

    def _note_command(self, number: int, reply: Reply) -> None:
        """Note the reply to MAIL, which is the first command, or to RCPT."""
        self._is_unclear |= reply.is_unclear
        if number > 0:
            self._note(self._recipients[number - 1], reply)
        elif not reply.is_positive:
            self.outcomes.update(
                dict.fromkeys(self._recipients, self._outcome_of_mail(reply.refusal))
            )

    def _note(self, recipient: str, reply: Reply) -> None:
        if recipient in self.outcomes:  # MAIL was refused: the reply means nothing for it
            self._is_contradicted |= reply.is_positive
            return
        if reply.is_positive:
            self._accepted.append(recipient)
        elif self._accepted and reply.is_too_many_recipients:
            self.has_overflowed = True  # the next transaction has this recipient
        else:
            self.outcomes[recipient] = self._by_hop(reply.recipient_refusal)

    def _by_hop(self, outcome: Outcome) -> Outcome:
        return outcome.from_responder(self._responder)

    def _outcome_of_mail(self, outcome: Outcome) -> Outcome:
        if outcome.kind is not OutcomeKind.FAILED:
            return self._by_hop(outcome)
        return outcome.from_responder(replace(self._responder, is_of_mail=True))

    def _end_accepted(self, outcome: Outcome) -> None:
        for recipient in self._accepted:
            self.outcomes.setdefault(recipient, outcome)


def in_doubt(error: WireError) -> str:
    """Return the text of an outcome that the reply to the end of a mail did not decide."""
    return f"{text_of(error)}; the end of the mail was sent, so it may be delivered"


def in_sequence(reply: Reply) -> Reply:
    """Refuse 3xx, which is a reply to DATA only. Raises: OutOfStep."""
    if reply.is_intermediate:
        raise OutOfStep(f"451 4.5.0 the next hop sent {reply.code} out of sequence")
    return reply


def expect_reset(reply: Reply) -> None:
    """Refuse what RSET is never answered with. Raises: OutOfStep."""
    if not reply.is_positive:
        raise OutOfStep(f"451 4.5.0 the next hop answered RSET with {reply.code}")


GROUP = 100
"""Commands sent before their replies are read. Bounds the buffers of both sides (RFC 2920 3.1)."""

MAX_END = 32 * 1024
"""Octets that are written together with the final dot. A larger piece goes before it, so that a
refusal that arrives while the next hop reads it is the outcome."""

ANSWERED_EARLY = "451 4.5.0 the next hop answered before the end of the mail"


class ClientTransaction(MailReplies):
    """One transaction of a session: `first_group` is sent, then `offer`; where that returns True,
    `send_content`; where that does, `send_end` and `conclude`. An outcome is `delivered` only if
    the end of the content was written and answered with 2xx."""

    def __init__(
        self,
        exchange: Exchange,
        protocol: Protocol,
        extensions: Extensions,
        timeouts: Timeouts,
        mail: Outgoing,
        *,
        behind_chunks: bytes | None = None,
    ) -> None:
        super().__init__(mail)
        self._behind_chunks = behind_chunks
        """EHLO, where mails sent as chunks are before this one. RSET clears what a refused one
        left. Where this mail is refused, too, EHLO does, as its reply is like no other: those to
        refused commands are like those to chunks."""
        self._exchange = exchange
        self._is_lmtp = protocol is Protocol.LMTP
        self._timeouts = timeouts
        self._content_of_mail = mail.content
        self._commands = [*mail.commands(extensions), b"DATA\r\n"]
        self._group = GROUP if "PIPELINING" in extensions else 1
        self._end = b""
        self._ended_at = 0.0
        self.is_ahead = False
        """True if the first group was sent before the mail before was answered: then a reply too
        many would shift those of this transaction, so a refusal counts only once RSET is answered
        as it must be."""
        self.is_ended = False
        """True if the end of the content was sent, or may have been."""
        self.ended_by: WireError | None = None
        """Cause that ended the session before there was a reply to the end."""

    @property
    def is_answered(self) -> bool:
        """True if the next hop answered about a recipient, or may have the mail."""
        return bool(self.outcomes or self._accepted or self.is_ended)

    @property
    def first_group(self) -> bytes:
        """The commands to send first, perhaps before the mail before is answered (RFC 2920 3.1)."""
        reset = [RESET] if self._behind_chunks else []
        return b"".join(reset + self._commands[: self._group])

    async def offer(self) -> bool:
        """Read the replies to the first group, and send the rest of MAIL, RCPT and DATA. Return
        whether the content is to be sent; either way, all replies until then were in step where the
        transaction `is_ahead`. Raises: WireError (the caller then calls `interrupted`)."""
        if self._behind_chunks:
            expect_reset(await self._exchange.reply(self._timeouts.command))
        reply = await self._envelope()
        if reply is None:
            await self._reset()
        elif not reply.is_intermediate:
            self._end_accepted(self._outcome_of_mail(reply.refusal))
            if reply.is_unclear:
                self._exchange.wire.abort()  # it may wait for the content
            else:
                await self._reset()
        elif self._accepted:
            return True
        elif self._is_lmtp or self._is_unclear or self._is_contradicted:
            # LMTP has no reply to a mail for no recipient (RFC 2033), and a next hop that did
            # accept one would deliver an empty mail.
            self._exchange.wire.abort()
        else:
            # DATA was pipelined after RCPTs that all failed: a lone dot ends it (RFC 2920 3.1).
            await self._exchange.ask(b".\r\n", self._timeouts.data_end)
            await self._reset()
        return False

    async def send_end(self, behind: bytes = b"") -> bool:
        """Send the end of the content, and behind it the first commands of the next mail. Return
        whether the end is answered, by replies that `conclude` reads."""
        self.is_ended = True
        self._ended_at = self._exchange.wire.now()
        try:
            await self._exchange.send(self._end + behind, self._timeouts.data_end)
        except WireError as error:
            await self._stop_early(in_doubt(error))
            return False
        return True

    async def conclude(self) -> None:
        """Read the reply to the end of the mail: only this sets `delivered`."""
        try:
            if self._is_lmtp:
                await self._read_each()
            else:
                reply = in_sequence(await self._exchange.reply(self.time_left))
                self._end_accepted(self._outcome_of_mail(reply.final_outcome))
        except WireError as error:
            self.ended_by = error
            text = str(error) if isinstance(error, SessionRefused) else in_doubt(error)
            self._end_accepted(deferred_by(error, self._responder, text))
            return
        self.is_clean = True

    @property
    def time_left(self) -> timedelta:
        """Time that the next hop may still take to answer the end of the mail."""
        passed = self._exchange.wire.now() - self._ended_at
        return self._timeouts.data_end - duration(round(passed * 1_000_000))

    def interrupted(self, error: WireError) -> None:
        """Note an error that `run` or `conclude` did not turn into outcomes: refused recipients
        stay refused, unless the replies may belong to other commands."""
        if isinstance(error, OutOfStep):
            self.outcomes.clear()
        text = in_doubt(error) if self.is_ended else text_of(error)
        self._end_accepted(deferred_by(error, self._responder, text))

    async def _envelope(self) -> Reply | None:
        """Read the replies to the first group, send the rest of MAIL, RCPT and DATA. Return the
        reply to DATA, None when DATA was not sent."""
        data = len(self._commands) - 1
        begun = self._exchange.wire.now()
        start, end = 0, min(self._group, data + 1)
        while True:
            reply = await self._replies(start, end)
            if reply is not None or len(self.outcomes) == len(self._recipients):
                return reply  # without a reply to DATA, no recipient is left for it
            start = end
            passed = self._exchange.wire.now() - begun
            if passed > self._timeouts.envelope.total_seconds() and 1 < start < data:
                start = data  # the other recipients go into another transaction
            if start == data and not self._accepted:
                return None
            end = min(start + self._group, data + 1)
            await self._exchange.send(b"".join(self._commands[start:end]), self._timeouts.command)

    async def _replies(self, start: int, end: int) -> Reply | None:
        """Read the replies to these commands; return that to DATA if it is one of them."""
        for number in range(start, end):
            if number == len(self._commands) - 1:
                return _go_ahead(await self._exchange.reply(self._timeouts.data_start))
            reply = in_sequence(await self._exchange.reply(self._timeouts.command))
            self._note_command(number, reply)
        return None

    async def _reset(self) -> None:
        reply = await self._exchange.ask(self._behind_chunks or RESET, self._timeouts.command)
        if self._behind_chunks and "CHUNKING" not in extensions_of(reply):
            raise OutOfStep(f"451 4.5.0 the next hop answered EHLO with {reply.code}")
        if self.is_ahead:
            expect_reset(reply)
        self.is_clean = reply.is_positive

    async def send_content(self, before_end: BeforeEnd) -> bool:
        """Send the content but for its end, and await `before_end`; return whether the end is to be
        sent. Raises: what reading the content raises."""
        content = self._content_of_mail
        wire, stuffer = self._exchange.wire, Stuffer(content.shape, folds=content.folds)
        held = b""  # the last piece goes together with the dot
        chunk: bytes | None = content.first
        # An error of reading the content leaves this method: the caller closes the session before
        # the dot, so that no next hop accepts half a mail.
        while chunk is not None:
            if held and not await self._write(held):
                return False
            held = stuffer.feed(chunk)
            chunk = await content.more()
        if len(held) > MAX_END:
            if not await self._write(held):
                return False
            held = b""
        await before_end()
        if not wire.is_open:
            await self._stop_early(ANSWERED_EARLY if wire.has_unread else text_of(ConnectionLost()))
            return False
        self._end = held + stuffer.end()
        return True

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
            await self._stop_early(ANSWERED_EARLY)
        return False

    async def _stop_early(self, text: str) -> None:
        """Abort a content whose end was not written. A refusal that the next hop sent meanwhile is
        the outcome (the mail is too large, for example); a positive reply to half a mail is not."""
        reply = await self._exchange.left_behind()
        self._exchange.wire.abort()
        if reply is None or reply.code == 421:
            self.ended_by = ConnectionLost() if reply is None else ServiceUnavailable(str(reply))
        refused = reply is not None and not (reply.is_positive or reply.is_intermediate)
        outcome = (
            self._outcome_of_mail(reply.refusal) if reply and refused else Outcome.deferred(text)
        )
        self._end_accepted(outcome)

    async def _read_each(self) -> None:
        """Read the reply for each recipient, in their order. Those that come with 421 count: a
        proxy passes on that of one of its back ends. Source: RFC 2033 4.2."""
        wire, most = self._exchange.wire, self._timeouts.data_end
        due = wire.now() + self._timeouts.all_ends.total_seconds()
        end: WireError | None = None
        for recipient in self._accepted:
            timeout = min(most, timedelta(seconds=due - wire.now())) if end is None else MOMENT
            try:
                reply = in_sequence(await self._exchange.reply(timeout, may_be_last=True))
            except WireError as error:
                raise end or error from None
            if reply.code == 421:
                end = end or ServiceUnavailable(str(reply))
            self.outcomes[recipient] = self._by_hop(reply.final_outcome)
        if end is not None:
            raise end


def _go_ahead(reply: Reply) -> Reply:
    """Refuse 2xx, which is no reply to DATA before the content. Raises: OutOfStep."""
    if reply.is_positive:
        raise OutOfStep(f"451 4.5.0 the next hop answered DATA with {reply.code}")
    return reply
