"""The schema of the suppression list."""

from datetime import timedelta
from enum import StrEnum
from typing import Annotated

from pydantic import Field, StrictInt

from postroad.delivery_settings.patterns import Duration
from postroad.delivery_settings.sections import DeliverySection
from postroad.domain.delivery.suppressed import SuppressionRules
from postroad.domain.smtp.bounces import BounceClass
from postroad.domain.values.api_names import BY_API_NAME

MAX_LIFETIME = timedelta(days=3650)


class LastingBounce(StrEnum):
    """The classes of refusals that say something about an address, and not about a mail."""

    NO_MAILBOX = BounceClass.NO_MAILBOX.value
    NO_DOMAIN = BounceClass.NO_DOMAIN.value
    MAILBOX_UNAVAILABLE = BounceClass.MAILBOX_UNAVAILABLE.value
    SUPPRESSED = BounceClass.SUPPRESSED.value


class KeptAddresses(StrEnum):
    """Form of an address."""

    PLAIN = "plain"
    HASHED = "hashed"


class SuppressionSettings(DeliverySection):
    """The addresses that are not mailed, by tenant: `postroad suppression`."""

    bounces: Annotated[tuple[Annotated[LastingBounce, BY_API_NAME], ...], Field(max_length=4)] = ()
    """Permanent refusals that put a recipient on the list, by their class: NoMailbox, NoDomain,
    MailboxUnavailable, Suppressed. Empty: administrators alone do."""

    after: Annotated[StrictInt, Field(ge=1, le=100)] = 2
    """Such refusals that put a recipient on the list; until then it is mailed. 1: the first one."""

    apart: Annotated[Duration, Field(ge=timedelta(minutes=1), le=MAX_LIFETIME)] = timedelta(
        hours=48
    )
    """Time after a refusal within which the next one counts: a site may refuse all addresses for
    hours."""

    lifetime: Annotated[Duration, Field(ge=timedelta(hours=1), le=MAX_LIFETIME)] = timedelta(
        days=90
    )
    """Time that a recipient is on the list by refusals, and how long a refusal counts."""

    addresses: Annotated[KeptAddresses, BY_API_NAME] = KeptAddresses.PLAIN
    """Form of an address that a refusal put there. Plain: itself. Hashed: its SHA-256, which `list`
    and `export` show; who can guess the address can recognise it."""

    def rules(self) -> SuppressionRules:
        """Return the value that workers use."""
        bounces = frozenset(BounceClass(each) for each in self.bounces)
        is_hashed = self.addresses is KeptAddresses.HASHED
        return SuppressionRules(bounces, is_hashed, self.after, self.apart, self.lifetime)
