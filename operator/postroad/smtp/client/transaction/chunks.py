"""A mail that is sent as one chunk, with its commands and behind other mails: the next hop has all
of it before any of it is answered.

SMTP numbers no replies, and those to RCPT and to a chunk have one code. So a reply too many, or too
few, shifts all later ones, and a refused mail would count as delivered. A mail that follows by DATA
shows it: its 354 comes where it is expected, and where it is refused, the reply to EHLO; else the
replies before it were not in step.
Until then no outcome counts, with one exception: where the connection ends, or the next hop ends it
by 421, positive replies count, as else each such end would repeat mails that were taken.
Source: RFC 3030 2, 4; RFC 2920; ADR 0066."""

from collections.abc import Sequence

from postroad.domain.mail.dot_stuffing import LineEnds
from postroad.domain.mail.mail import Outcome, OutcomeKind
from postroad.smtp.client.client import (
    Exchange,
    OutOfStep,
    ServiceUnavailable,
    deferred_by,
)
from postroad.smtp.client.connecting import Timeouts
from postroad.smtp.client.transaction.transactions import (
    RESET,
    MailReplies,
    Outgoing,
    expect_reset,
    in_doubt,
    in_sequence,
)
from postroad.smtp.wire import ConnectionLost, WireError

MAX_CHUNKED = 64 * 1024
"""Octets of a content that is sent as a chunk. A larger one would be in memory whole, and in vain
where its recipients are refused."""

MAX_RECIPIENTS = 20
"""Of such a mail: the replies of a series of them fit into the buffers of both sides."""

_NOT_UNDERSTOOD = range(500, 505)
"""Replies about a command, which say nothing about the mail. Source: RFC 5321 4.2.2."""


def fits(mail: Outgoing) -> bool:
    """True if a mail may be sent as a chunk: all of it is in memory, and small."""
    content = mail.content
    return (
        content.is_held
        and content.size_bytes <= MAX_CHUNKED
        and len(mail.recipients) <= MAX_RECIPIENTS
    )


def octets_of(mail: Outgoing, commands: Sequence[bytes]) -> bytes:
    """Return a mail with its commands; RSET first, which clears what a refused mail before left."""
    lines = LineEnds(mail.content.shape, folds=mail.content.folds)
    content = lines.feed(mail.content.first) + lines.end()
    return b"".join((RESET, *commands, b"BDAT %d LAST\r\n" % len(content), content))


class ChunkTransaction(MailReplies):
    """One mail of a series, which was sent with `commands` commands before its content: `read` is
    called when all mails before have their replies, and `ended` where no mail behind it showed that
    those were in step."""

    def __init__(
        self, exchange: Exchange, timeouts: Timeouts, mail: Outgoing, commands: int
    ) -> None:
        super().__init__(mail)
        self._exchange = exchange
        self._timeouts = timeouts
        self._count = commands
        self._awaits_end = False

    async def read(self) -> None:
        """Read the replies. Raises: WireError."""
        expect_reset(await self._exchange.reply(self._timeouts.command))
        for number in range(self._count):
            self._note_command(
                number, in_sequence(await self._exchange.reply(self._timeouts.command))
            )
        self._awaits_end = True
        end = in_sequence(await self._exchange.reply(self._timeouts.data_end))
        if end.code in _NOT_UNDERSTOOD and self._accepted:
            raise OutOfStep(f"451 4.5.0 the next hop offers CHUNKING, and answered: {end}")
        if end.is_positive and not (self._accepted or self._is_unclear):
            raise OutOfStep("451 4.5.0 the next hop took a mail without recipients")
        self._end_accepted(self._outcome_of_mail(end.final_outcome))
        self.is_clean = True

    def ended(self, error: WireError) -> bool:
        """Note that a connection ended before the replies could count. Return False where the mail
        was certainly not taken, because 421 came before its turn."""
        is_end = isinstance(error, ConnectionLost | ServiceUnavailable)
        if not self.is_clean and isinstance(error, ServiceUnavailable):
            if not self._awaits_end:
                return False
            doubt = deferred_by(error, self._responder)
        else:
            doubt = Outcome.deferred(in_doubt(error))
        kept = self.outcomes if is_end and self.is_clean else {}
        self.outcomes = {
            each: outcome for each, outcome in kept.items() if outcome.kind is OutcomeKind.DELIVERED
        }
        for recipient in self._recipients:
            self.outcomes.setdefault(recipient, doubt)
        self.is_clean = False
        return True
