"""The schema of routing: the section `routing`, checked as a whole before any of it is used.

Names of fields are written as in resources (`postmasterDomain`)."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Annotated, TypeVar

from pydantic import Field, model_validator

from postroad.delivery_settings import patterns
from postroad.delivery_settings.hops import ByMx, Hop, HostLookUp, TieredHop
from postroad.delivery_settings.patterns import DeliverySection, DomainName
from postroad.domain.delivery.sites import RULE_NAME_PATTERN
from postroad.domain.smtp.next_hops import parse_host_port
from postroad.domain.values.domain_patterns import DomainPatterns
from postroad.domain.values.networks import Networks
from postroad.domain.values.text import BY_API_NAME
from postroad.routing import tables
from postroad.routing.answers import DNS_PORT, is_address
from postroad.routing.routes import AddressFamily, OwnNames, RoutingPlan
from postroad.routing.securing import MxSecurity, PublishedSecurity
from postroad.settings.documents import repeated

MAX_RULES = 1000
MAX_VALUES = 10_000
"""Of one condition: so that a MailQueue stays small enough to be stored."""

_T = TypeVar("_T")
_Values = Annotated[tuple[_T, ...], Field(min_length=1, max_length=MAX_VALUES)]


class RouteRule(DeliverySection):
    """Rule for the destination of some mail: `mx`, or smart hosts. Conditions that are left out
    hold for all mail; of the values of one condition, one must match."""

    name: Annotated[str, Field(min_length=1, max_length=63, pattern=RULE_NAME_PATTERN)]
    """Stands in explanations and logs. No two rules have the same."""

    domains: _Values[patterns.DomainPattern] | None = None
    """Domains of recipients: `example.org`, `*.example.org` for all below it, `*`, or an address
    literal. Absent: all."""

    senders: _Values[patterns.SenderPattern] | None = None
    """Reverse-paths: `a@example.org`, `@example.org`, `@*.example.org`, or `<>`. Absent: all."""

    tenants: _Values[patterns.TenantName] | None = None
    """Tenants, by the attribute `postroad.tenant`. Absent: all."""

    mx: ByMx | None = None
    """The servers that the MX records of the domain name, secured in this way; in place of smart
    hosts."""

    hops: Annotated[tuple[TieredHop, ...], Field(min_length=1, max_length=60)] | None = None
    """Smart hosts."""

    @model_validator(mode="after")
    def _names_one_target(self) -> RouteRule:
        if (self.mx is None) == (self.hops is None):
            raise ValueError("give either mx ({} for the defaults) or hops, a list of smart hosts")
        for each in self.tiers():
            if len(each) > 1 and any(hop.look_up is HostLookUp.MX for hop in each):
                raise ValueError("a smart host with lookUp: MX stands alone in its tier")
        return self

    def conditions(self) -> tables.Rule:
        """Return which mail it is about, with no next hop."""
        return tables.Rule(
            self.name,
            None if self.domains is None else DomainPatterns.of(self.domains),
            None if self.senders is None else tables.SenderPatterns.of(self.senders),
            None if self.tenants is None else frozenset(self.tenants),
        )

    def rule(self) -> tables.Rule:
        """Return the value that routing uses, of a rule whose logins are in files."""
        tiers = tuple(tuple(hop.smart_host() for hop in tier) for tier in self.tiers())
        security = MxSecurity() if self.mx is None else self.mx.value()
        return replace(self.conditions(), tiers=tiers, security=security)

    def tiers(self) -> list[list[TieredHop]]:
        """Return the smart hosts that are tried first, then the others."""
        tiers = {hop.tier: list[TieredHop]() for hop in self.hops or ()}
        for hop in self.hops or ():
            tiers[hop.tier].append(hop)
        return [tiers[number] for number in sorted(tiers)]


def relay_rule(hop: Hop) -> RouteRule:
    """Return the rule by which all mail goes to one smart host."""
    return RouteRule(name="relay", hops=(TieredHop.model_validate(hop.model_dump(by_alias=True)),))


class Own(DeliverySection):
    """Names that this server is known by, so that it finds itself among the servers of a domain,
    and mail does not loop. Loopback addresses always count."""

    hosts: Annotated[tuple[patterns.ServerName, ...], Field(max_length=100)] = ()
    """Names in MX records."""

    networks: Annotated[tuple[patterns.NetworkText, ...], Field(max_length=100)] = ()
    """Its public addresses, also those of a load balancer before it."""


class NameServers(DeliverySection):
    """Name servers and their timeout."""

    servers: Annotated[tuple[patterns.NameServerAddress, ...], Field(max_length=10)] = ()
    """Addresses of recursive name servers, with a port where it is not 53. Empty: those of
    /etc/resolv.conf."""

    timeout: Annotated[patterns.Duration, Field(gt=timedelta(0))] = timedelta(seconds=10)
    """For one question, all servers and repetitions together."""

    def addresses(self) -> list[tuple[str, int]]:
        return [
            (each, DNS_PORT) if is_address(each) else parse_host_port(each, DNS_PORT)
            for each in self.servers
        ]


class StsSettings(DeliverySection):
    """MTA-STS."""

    folder: patterns.AbsolutePath | None = None
    """Directory where policies are kept, so that they survive a restart; it is created where it is
    missing. Absent: in memory alone; in the pods of a MailQueue in a folder that lasts as long
    as the pod."""


class RoutingSettings(DeliverySection):
    """Routes by which mail goes."""

    rules: Annotated[tuple[RouteRule, ...], Field(max_length=MAX_RULES)] = ()
    """The first that matches decides. Where none does, the MX records of the domain."""

    mx: ByMx = ByMx()
    """Security of mail that no rule is about."""

    sts: StsSettings = StsSettings()
    """MTA-STS, where it is honoured."""

    own: Own = Own()
    """Names that this server is known by, so that it finds itself among the servers of a domain,
    and mail does not loop."""

    skip: Annotated[tuple[patterns.NetworkText, ...], Field(max_length=1000)] = ()
    """Networks that MX records lead to in vain, such as those of the cluster. Smart hosts may lie
    in them."""

    families: Annotated[
        tuple[Annotated[AddressFamily, BY_API_NAME], ...], Field(min_length=1, max_length=2)
    ] = (AddressFamily.IPV4, AddressFamily.IPV6)
    """Address families that are used; of a host that has both, one of the first family is tried
    first, then in turns."""

    postmaster_domain: DomainName | None = None
    """The domain of the address `postmaster` without one. Absent: such mail is deferred."""

    resolver: NameServers = NameServers()
    """Name servers and their timeout."""

    @model_validator(mode="after")
    def _every_rule_is_reached(self) -> RoutingSettings:
        if twice := repeated(each.name for each in self.rules):
            raise ValueError(f"two rules have the name {twice[0]}: rename one")
        for rule, before in tables.RoutingTable(
            tuple(each.conditions() for each in self.rules)
        ).hidden():
            raise ValueError(
                f"rule {rule.name} is never reached, because {before.name} before it matches all"
                " its mail: put it before that rule, or remove it"
            )
        return self

    @property
    def honours_sts(self) -> bool:
        """True if any mail is secured by the MTA-STS policies of domains."""
        ways = (self.mx, *(each.mx for each in self.rules))
        return any(each is not None and PublishedSecurity.STS in each.tls.honours for each in ways)

    def plan(self) -> RoutingPlan:
        return RoutingPlan(
            tables.RoutingTable(tuple(each.rule() for each in self.rules)),
            OwnNames(frozenset(self.own.hosts), Networks.of(self.own.networks)),
            Networks.of(self.skip),
            tuple(dict.fromkeys(self.families)),
            self.postmaster_domain,
            self.mx.value(),
        )
