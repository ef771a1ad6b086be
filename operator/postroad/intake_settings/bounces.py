"""The schema of what comes back: reports to signed reverse-paths, and complaints."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, Field

from postroad.delivery_settings.delivery import LastingBounce
from postroad.delivery_settings.secret_references import VerpSecret
from postroad.domain.delivery.suppressed import compared
from postroad.domain.smtp.bounces import BounceClass
from postroad.domain.values.text import BY_API_NAME
from postroad.errors import InvalidInput
from postroad.intake_settings.listeners import IntakeSection

_MAILBOX = r"^[^@\s]+@[^@\s]+$"


def _mailbox(text: str) -> str:
    try:
        return compared(text)
    except InvalidInput as error:
        raise ValueError(str(error)) from error


class ReturnedClass(StrEnum):
    """Reports that suppress their recipient: bounces by their class, and complaints."""

    NO_MAILBOX = LastingBounce.NO_MAILBOX.value
    NO_DOMAIN = LastingBounce.NO_DOMAIN.value
    MAILBOX_UNAVAILABLE = LastingBounce.MAILBOX_UNAVAILABLE.value
    SUPPRESSED = LastingBounce.SUPPRESSED.value
    COMPLAINT = "complaint"


class Bounces(IntakeSection):
    """Reports that come back, which the listeners of role mx take."""

    verp_secret: VerpSecret
    """Secrets that sign the reverse-paths of the queue's mail, where its next hop has `verp`, so
    that a report to such an address shows that its author had the mail. One a line, any text of 24
    octets or more (`openssl rand -hex 32`); the first one signs, and up to three more are accepted,
    so that a new one can be put above the old one for the 30 days in which reports come back."""

    suppress: Annotated[tuple[Annotated[ReturnedClass, BY_API_NAME], ...], Field(max_length=5)] = ()
    """Reports that put a recipient on the suppression list, by the rules of `suppression` of
    delivery: NoMailbox, NoDomain, MailboxUnavailable, Suppressed, and Complaint, of which one is
    enough. Empty: none."""

    complaints: Annotated[
        tuple[
            Annotated[
                str, Field(min_length=3, max_length=254, pattern=_MAILBOX), AfterValidator(_mailbox)
            ],
            ...,
        ],
        Field(max_length=100),
    ] = ()
    """Addresses at which feedback loops were registered: complaints in the form of RFC 5965 are
    taken there. What else comes goes on to the mailbox, where `domains` has one."""

    @property
    def classes(self) -> frozenset[BounceClass]:
        """The classes of bounces that suppress."""
        own = (each for each in self.suppress if each is not ReturnedClass.COMPLAINT)
        return frozenset(BounceClass(each) for each in own)

    @property
    def by_complaints(self) -> bool:
        """True if complaints suppress."""
        return ReturnedClass.COMPLAINT in self.suppress
