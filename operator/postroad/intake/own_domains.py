"""Domains whose mail the intake takes from all clients, and their recipients. Pure.

The local part is compared without case, as all mailboxes do that are in use, although a server may
tell cases apart (RFC 5321 2.4)."""

from collections.abc import Mapping

from postroad.domain.mail.mail import domain_of
from postroad.domain.mail.seven_bits import ascii_domain
from postroad.domain.smtp.replies import Reply
from postroad.errors import InvalidInput
from postroad.intake.clients import RecipientRule
from postroad.intake.reply_texts import NO_RELAYING

UNKNOWN_RECIPIENT = Reply(550, ("5.1.1 no such recipient here",))

_ALWAYS = "postmaster"
"""Each domain that takes mail has it. Source: RFC 5321 4.5.1."""


Recipients = frozenset[str] | RecipientRule | None
"""Those of a domain: local parts in lower case, those that a rule lets pass, or every one."""


class OwnDomains:
    """Recipients of the intake's own domains, by domain."""

    def __init__(self, recipients: Mapping[str, Recipients]) -> None:
        self._recipients = recipients

    def refusal(self, recipient: str) -> Reply | None:
        """Return the reply that refuses a recipient, or None."""
        local, _, _ = recipient.rpartition("@")
        try:
            domain = ascii_domain(domain_of(recipient))
        except InvalidInput:
            return NO_RELAYING
        if domain not in self._recipients:
            return NO_RELAYING
        known = self._recipients[domain]
        name = local.lower()
        if known is None or name == _ALWAYS:
            return None
        if not isinstance(known, frozenset):
            return known.refusal(recipient)
        return None if name in known else UNKNOWN_RECIPIENT

    async def look_up(self, recipient: str) -> Reply | None:
        """Find out about a recipient that is UNVERIFIED (see `RecipientRule`)."""
        rule = self._recipients[ascii_domain(domain_of(recipient))]
        assert rule is not None
        assert not isinstance(rule, frozenset)
        return await rule.look_up(recipient)
