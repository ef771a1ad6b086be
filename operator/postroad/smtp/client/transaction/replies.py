"""What a next hop's replies to one mail mean for its recipients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from postroad.domain.mail.mail import Envelope, Outcome, OutcomeKind, Responder
from postroad.domain.smtp.replies import Reply
from postroad.smtp.client.exchange import OutOfStep, text_of
from postroad.smtp.client.transaction.commands import (
    Extensions,
    Needs,
    mail_command,
    recipient_command,
)
from postroad.smtp.client.transaction.content import OpenContent
from postroad.smtp.wire import WireError

RESET = b"RSET\r\n"


class Outgoing(NamedTuple):
    """A mail for one transaction."""

    envelope: Envelope
    recipients: Sequence[str]
    """Those of its envelope that are offered in this transaction."""

    needs: Needs
    content: OpenContent
    responder: Responder
    is_first: bool
    """Whether its transaction is the first one of its session."""

    def commands(self, extensions: Extensions) -> list[bytes]:
        """Return MAIL and RCPT."""
        return [
            mail_command(self.envelope, self.needs, extensions),
            *(recipient_command(each, self.envelope, extensions) for each in self.recipients),
        ]


class MailReplies:
    """The replies to one mail.

    `outcomes` has the recipients with a final or deferred outcome; those that are neither there nor
    `accepted` were not tried.
    """

    def __init__(self, mail: Outgoing) -> None:
        self.is_first = mail.is_first
        """Whether it is the first one of its session."""
        self._recipients = mail.recipients
        self._responder = mail.responder
        self._accepted: list[str] = []
        self.has_overflowed = False
        """Whether the next hop accepts fewer recipients than it was offered."""
        self.outcomes: dict[str, Outcome] = {}
        self.is_clean = False
        """Whether another transaction may follow on the same connection."""
        self._is_unclear = False
        """Whether the next hop may have accepted recipients that are not `accepted`."""

    @property
    def accepted(self) -> int:
        """How many recipients the next hop accepted."""
        return len(self._accepted)

    def _note_command(self, number: int, reply: Reply) -> None:
        """Note the reply to MAIL, which is the first command, or to RCPT."""
        self._is_unclear |= reply.is_unclear
        if number > 0:
            self._note(self._recipients[number - 1], reply)
        elif not reply.is_positive:
            self.outcomes.update(
                dict.fromkeys(self._recipients, self._heard_of_mail(reply.refusal))
            )

    def _note(self, recipient: str, reply: Reply) -> None:
        if recipient in self.outcomes:
            return  # MAIL was refused: the reply to a pipelined RCPT means nothing
        if reply.is_positive:
            self._accepted.append(recipient)
        elif self._accepted and reply.is_too_many_recipients:
            self.has_overflowed = True  # the next transaction has this recipient
        else:
            self.outcomes[recipient] = self._heard(reply.recipient_refusal)

    def _heard(self, outcome: Outcome) -> Outcome:
        return outcome.from_responder(self._responder)

    def _heard_of_mail(self, outcome: Outcome) -> Outcome:
        if outcome.kind is not OutcomeKind.FAILED:
            return self._heard(outcome)
        return outcome.from_responder(replace(self._responder, is_of_mail=True))

    def _answer_accepted(self, outcome: Outcome) -> None:
        for recipient in self._accepted:
            self.outcomes.setdefault(recipient, outcome)


def in_doubt(error: WireError) -> str:
    """Return the text of an outcome that the reply to the end of a mail did not decide."""
    return f"{text_of(error)}; the end of the mail was sent, so it may be delivered"


def answer(reply: Reply) -> Reply:
    """Refuse 3xx, which is a reply to DATA only. Raises: OutOfStep."""
    if reply.is_intermediate:
        raise OutOfStep(f"451 4.5.0 the next hop sent {reply.code} out of sequence")
    return reply


def expect_reset(reply: Reply) -> None:
    """Refuse what RSET is never answered with. Raises: OutOfStep."""
    if not reply.is_positive:
        raise OutOfStep(f"451 4.5.0 the next hop answered RSET with {reply.code}")
