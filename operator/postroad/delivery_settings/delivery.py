"""All that a file of delivery holds: its sections, and what holds between them."""

from __future__ import annotations

from pydantic import model_validator

from postroad.delivery_settings.routing import RoutingSettings
from postroad.delivery_settings.sections import DeliverySection
from postroad.delivery_settings.signing import DomainSigning


class DeliverySettings(DeliverySection):
    """All that a file of delivery holds."""

    routing: RoutingSettings | None = None
    """Where mail goes, in place of a relay; `routing: {}`: to the servers that the MX records of
    each domain name. None: this file decides nothing about it."""

    signing: tuple[DomainSigning, ...] = ()
    """Mail of other domains is not signed."""

    @model_validator(mode="after")
    def _every_entry_is_reached(self) -> DeliverySettings:
        taken: dict[str, set[str | None]] = {}
        for each in self.signing:
            tenants: set[str | None] = set(each.tenants or (None,))
            before = taken.setdefault(each.domain, set())
            if None in before or tenants <= before:
                raise ValueError(
                    f"an entry for {each.domain} is never reached: one before it has all its mail"
                )
            before |= tenants
        return self
