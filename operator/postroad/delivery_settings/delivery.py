"""All that a file of delivery holds: its sections, and what holds between them."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

from pydantic import Field, model_validator

from postroad.delivery_settings.hops import Hop, HostLookUp
from postroad.delivery_settings.rate_limits import RateLimitSettings
from postroad.delivery_settings.routing import RoutingSettings, relay_rule
from postroad.delivery_settings.sections import DeliverySection
from postroad.delivery_settings.signing import DomainSigning
from postroad.delivery_settings.suppression import SuppressionSettings
from postroad.domain.delivery.paces import LimitRule
from postroad.domain.delivery.suppressed import SuppressionRules
from postroad.domain.smtp.bounces import BounceRule


class DeliverySettings(DeliverySection):
    """Decisions about delivery: `spec.delivery` of a MailQueue, or a file of delivery."""

    routing: RoutingSettings | None = None
    """Destinations to which mail goes, in place of a relay; `{}`: to the servers that the MX
    records of each domain name. In a MailQueue it goes with the handler mx. Absent: nothing is
    decided about it."""

    signing: Annotated[tuple[DomainSigning, ...], Field(max_length=1000)] = ()
    """DKIM signatures (RFC 6376), by the domain of the field `From`. Mail of other domains is not
    signed."""

    limits: Annotated[tuple[RateLimitSettings, ...], Field(max_length=100)] = ()
    """Number of mails that go in a minute, by all workers of the queue together. A mail is under
    each limit that matches it."""

    suppression: SuppressionSettings | None = None
    """The suppression list: addresses on it are not mailed; their mail fails, and its sender gets a
    report. Absent: the list is not looked at."""

    bounce_rules: Annotated[tuple[BounceRule, ...], Field(max_length=100)] = ()
    """Rows that decide what refusals are counted as, before those of this release; the first one
    that fits does."""

    def suppression_rules(self) -> SuppressionRules | None:
        """Return what workers do with the suppression list; None: nothing."""
        return None if self.suppression is None else self.suppression.rules()

    def limit_rules(self) -> tuple[LimitRule, ...]:
        return tuple(each.rule() for each in self.limits)

    @model_validator(mode="after")
    def _has_each_limit_once(self) -> DeliverySettings:
        counts = Counter(each.name for each in self.limits)
        if twice := [name for name, count in counts.items() if count > 1]:
            raise ValueError(f"two limits have the name {twice[0]}: rename one")
        return self

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


class DeliveryFileSettings(DeliverySettings):
    """A file of delivery, which in the pods of a MailQueue has the relay of its handler too."""

    relay: Hop | None = None
    """All mail goes there, in place of `routing`. Its host is looked up by the system's resolver,
    unless `lookUp: MX` leads to its servers."""

    @model_validator(mode="after")
    def _names_one_target(self) -> DeliveryFileSettings:
        if self.relay is not None and self.routing is not None:
            raise ValueError(
                "mail goes either to the relay or by the routing: leave one of them out; a rule of"
                " routing can name a relay in hops"
            )
        return self

    def routes(self) -> RoutingSettings | None:
        """Return how mail is routed; None where it goes to a relay that is a server, or nothing is
        decided about it."""
        if self.relay is None or self.relay.look_up is not HostLookUp.MX:
            return self.routing
        return RoutingSettings(rules=(relay_rule(self.relay),))

    def hops(self) -> list[Hop]:
        rules = () if self.routing is None else self.routing.rules
        found: list[Hop] = [hop for rule in rules for hop in rule.hops or ()]
        return found if self.relay is None else [self.relay, *found]
