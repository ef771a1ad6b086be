"""The schema of limits by rate."""

from typing import Annotated

from pydantic import Field, StrictInt

from postroad.delivery_settings.patterns import TenantName
from postroad.delivery_settings.sections import DeliverySection, DomainName
from postroad.domain.delivery.paces import LimitedBy, LimitRule
from postroad.domain.values.api_names import BY_API_NAME


class RateLimitSettings(DeliverySection):
    """One limit: how many mails a minute go to what it matches, by all workers of the queue
    together."""

    name: Annotated[
        str, Field(min_length=1, max_length=63, pattern=r"^[A-Za-z0-9][-A-Za-z0-9_.]*$")
    ]
    """Stands in what workers let each other know. No two limits have the same."""

    per_minute: Annotated[StrictInt, Field(ge=1, le=1_000_000)]
    """Mails, each of which may have up to 100 recipients at a site."""

    per: Annotated[LimitedBy, BY_API_NAME] = LimitedBy.RULE
    """Key that has the limit for itself. Rule: all mail that it matches shares it. With Site,
    Tenant or Source, each site, each tenant or each source address has one of its own."""

    burst: Annotated[StrictInt, Field(ge=1, le=1000)] = 1
    """Mails that may go at once after a pause."""

    domains: Annotated[tuple[DomainName, ...], Field(min_length=1, max_length=1000)] | None = None
    """Mail to a recipient in one of these domains. Absent: to all."""

    tenants: Annotated[tuple[TenantName, ...], Field(min_length=1, max_length=1000)] | None = None
    """Mail of these tenants. Absent: of all."""

    def rule(self) -> LimitRule:
        """Return the value that workers use."""
        return LimitRule(
            self.name,
            self.per,
            self.per_minute,
            self.burst,
            None if self.domains is None else frozenset(self.domains),
            None if self.tenants is None else frozenset(self.tenants),
        )
