"""The schema of the suppression list."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from postroad.delivery_settings.sections import DeliverySection
from postroad.domain.bounces import BounceClass
from postroad.domain.suppressed import SuppressionRules


class LastingBounce(StrEnum):
    """The classes of refusals that say something about an address, and not about a mail."""

    NO_MAILBOX = BounceClass.NO_MAILBOX.value
    NO_DOMAIN = BounceClass.NO_DOMAIN.value
    MAILBOX_UNAVAILABLE = BounceClass.MAILBOX_UNAVAILABLE.value
    SUPPRESSED = BounceClass.SUPPRESSED.value


class KeptAddresses(StrEnum):
    """What is kept of an address."""

    PLAIN = "plain"
    HASHED = "hashed"


class SuppressionSettings(DeliverySection):
    """The addresses that are not mailed, by tenant: `postroad suppression`."""

    bounces: Annotated[tuple[LastingBounce, ...], Field(max_length=4)] = ()
    """Permanent refusals that put a recipient on the list, by their class: no-mailbox, no-domain,
    mailbox-unavailable, suppressed. Empty: administrators alone do."""

    addresses: KeptAddresses = KeptAddresses.PLAIN
    """What is kept of an address that a refusal put there. plain: itself. hashed: its SHA-256,
    which `list` and `export` show; who can guess the address can recognise it."""

    def rules(self) -> SuppressionRules:
        """Return the value that workers use."""
        bounces = frozenset(BounceClass(each) for each in self.bounces)
        return SuppressionRules(bounces, self.addresses is KeptAddresses.HASHED)
