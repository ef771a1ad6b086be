"""The schema of routing: what a file of routes says, checked as a whole before any of it is used.

Names of fields are written as in resources (`postmasterDomain`).
"""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Annotated

from pydantic import (
    Field,
    model_validator,
)

from postroad.delivery_settings.hops import ByMx, Hop, HostLookUp
from postroad.delivery_settings.patterns import (
    AbsolutePath,
    DomainPattern,
    NameServerAddress,
    NetworkText,
    SenderPattern,
    ServerName,
)
from postroad.delivery_settings.sections import DeliverySection, DomainName
from postroad.domain.networks import Networks
from postroad.domain.next_hops import (
    parse_host_port,
)
from postroad.routing.answers import DNS_PORT
from postroad.routing.exchangers import is_address
from postroad.routing.plans import AddressFamily, OwnNames, RoutingPlan
from postroad.routing.securing import MxSecurity
from postroad.routing.tables import (
    DomainPatterns,
    RoutingTable,
    Rule,
    SenderPatterns,
)
from postroad.settings.values import Duration

Hops = Annotated[tuple[Hop, ...], Field(min_length=1)]


class RouteRule(DeliverySection):
    """Which mail goes where: `mx`, or smart hosts. Conditions that are left out hold for all mail;
    of the values of one condition, one must match."""

    name: Annotated[
        str, Field(min_length=1, max_length=63, pattern=r"^[A-Za-z0-9][-A-Za-z0-9_.]*$")
    ]
    """Stands in explanations and logs."""

    domains: Annotated[tuple[DomainPattern, ...], Field(min_length=1)] | None = None
    """Domains of recipients: `example.org`, `*.example.org` for all below it, `*`, or an address
    literal."""

    senders: Annotated[tuple[SenderPattern, ...], Field(min_length=1)] | None = None
    """Reverse-paths: `a@example.org`, `@example.org`, `@*.example.org`, or `<>`."""

    tenants: Annotated[tuple[str, ...], Field(min_length=1)] | None = None

    mx: ByMx | None = None

    primary: Hops | None = None
    """Tried first, in random order."""

    secondary: Hops | None = None
    """Tried where no primary one can be."""

    tertiary: Hops | None = None
    """Tried where no secondary one can be."""

    @model_validator(mode="after")
    def _names_one_way(self) -> RouteRule:
        if (self.mx is None) == (self.primary is None):
            raise ValueError(
                "give either mx ({} for the defaults) or primary, a list of smart hosts"
            )
        if self.primary is None and (self.secondary or self.tertiary):
            raise ValueError("secondary and tertiary stand beside primary only")
        if self.tertiary and not self.secondary:
            raise ValueError("tertiary stands beside secondary: rename it")
        for each in self._tiers():
            if len(each) > 1 and any(hop.look_up is HostLookUp.MX for hop in each):
                raise ValueError("a smart host with lookUp: mx stands alone in its list")
        return self

    def rule(self) -> Rule:
        """Return the value that routing uses."""
        return Rule(
            self.name,
            None if self.domains is None else DomainPatterns.of(self.domains),
            None if self.senders is None else SenderPatterns.of(self.senders),
            None if self.tenants is None else frozenset(self.tenants),
            tuple(tuple(hop.smart_host() for hop in tier) for tier in self._tiers()),
            MxSecurity() if self.mx is None else self.mx.value(),
        )

    def _tiers(self) -> list[tuple[Hop, ...]]:
        return [tier for tier in (self.primary, self.secondary, self.tertiary) if tier]


class Own(DeliverySection):
    """What this server is known by, so that it finds itself among the servers of a domain, and mail
    does not loop. Loopback addresses always count."""

    hosts: tuple[ServerName, ...] = ()
    """Names in MX records."""

    networks: tuple[NetworkText, ...] = ()
    """Its public addresses, also those of a load balancer before it."""


class NameServers(DeliverySection):
    """Which name servers are asked, and for how long."""

    servers: tuple[NameServerAddress, ...] = ()
    """Addresses of recursive name servers, with a port where it is not 53. None: those of
    /etc/resolv.conf."""

    timeout: Duration = timedelta(seconds=10)
    """For one question, all servers and repetitions together."""

    def addresses(self) -> list[tuple[str, int]]:
        """Return address and port of each."""
        return [
            (each, DNS_PORT) if is_address(each) else parse_host_port(each, DNS_PORT)
            for each in self.servers
        ]


class StsSettings(DeliverySection):
    """MTA-STS."""

    folder: AbsolutePath | None = None
    """Where policies are kept, so that they survive a restart; it is created where it is missing.
    None: in memory alone."""


class RoutingSettings(DeliverySection):
    """Where mail goes."""

    rules: tuple[RouteRule, ...] = ()
    """The first that matches decides. Where none does, the MX records of the domain."""

    mx: ByMx = ByMx()
    """How mail is secured that no rule is about."""

    sts: StsSettings = StsSettings()

    own: Own = Own()

    skip: tuple[NetworkText, ...] = ()
    """Networks that MX records lead to in vain, such as those of this cluster. Smart hosts may lie
    in them."""

    families: Annotated[tuple[AddressFamily, ...], Field(min_length=1)] = (
        AddressFamily.IPV4,
        AddressFamily.IPV6,
    )
    """Which addresses are used; of a host that has both, one of the first family is tried first,
    then in turns."""

    postmaster_domain: DomainName | None = None
    """The domain of the address `postmaster` without one. None: such mail is deferred."""

    resolver: NameServers = NameServers()

    @model_validator(mode="after")
    def _every_rule_is_reached(self) -> RoutingSettings:
        names = Counter(each.name for each in self.rules)
        twice = [name for name, count in names.items() if count > 1]
        if twice:
            raise ValueError(f"two rules have the name {twice[0]}: rename one")
        for rule, before in self._table().hidden():
            raise ValueError(
                f"rule {rule.name} is never reached, because {before.name} before it matches all"
                " its mail: put it before that rule, or remove it"
            )
        return self

    def ways_by_mx(self) -> list[ByMx]:
        """Return every way by MX records that mail may take."""
        return [self.mx, *(each.mx for each in self.rules if each.mx is not None)]

    def _table(self) -> RoutingTable:
        return RoutingTable(tuple(each.rule() for each in self.rules))

    def plan(self) -> RoutingPlan:
        """Return the value that routing uses."""
        return RoutingPlan(
            self._table(),
            OwnNames(frozenset(self.own.hosts), Networks.of(self.own.networks)),
            Networks.of(self.skip),
            tuple(dict.fromkeys(self.families)),
            self.postmaster_domain,
            self.mx.value(),
        )
