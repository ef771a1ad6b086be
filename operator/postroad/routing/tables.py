"""The routing table: rules in order, of which the first that matches decides."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from postroad.domain.mail.mail import domain_of
from postroad.domain.smtp.next_hops import NextHop
from postroad.domain.values.domain_patterns import DomainPatterns, parents_of
from postroad.domain.values.frozen import value
from postroad.routing.securing import USUAL_SECURITY, MxSecurity

NULL_SENDER = "<>"


@value
class RouteRequest:
    """Whose mail is to be routed: the recipient's domain (empty for the bare `postmaster`), the
    reverse-path (None: the null one) and the tenant, if one is known."""

    domain: str
    sender: str | None = None
    tenant: str | None = None


@dataclass(frozen=True, slots=True)
class SmartHost:
    """A next hop that a rule names. `by_mx`: the host is a domain whose MX records lead to the
    servers; otherwise it is a server itself."""

    next_hop: NextHop
    by_mx: bool = False

    @property
    def is_looked_up(self) -> bool:
        """True if the host's addresses are asked for."""
        return not self.by_mx and self.next_hop.socket is None


@dataclass(frozen=True, slots=True)
class SenderPatterns:
    """Reverse-paths: single mailboxes, domains of mailboxes, and `<>`. Compared without case."""

    mailboxes: frozenset[str] = frozenset()
    domains: DomainPatterns = DomainPatterns()  # noqa: RUF009 - it is frozen

    @classmethod
    def of(cls, patterns: Iterable[str]) -> SenderPatterns:
        """Read `a@example.org`, `@example.org`, `@*.example.org` and `<>`, in lower case."""
        listed = tuple(patterns)
        return cls(
            frozenset(each for each in listed if not each.startswith("@")),
            DomainPatterns.of(each[1:] for each in listed if each.startswith("@")),
        )

    def match(self, sender: str | None) -> str | None:
        """Return the pattern that a reverse-path matches; None for none."""
        address = NULL_SENDER if sender is None else sender.lower()
        if address in self.mailboxes:
            return address
        found = None if sender is None else self.domains.match(domain_of(address))
        return None if found is None else f"@{found}"


@dataclass(frozen=True, slots=True)
class Rule:
    """Rule for the destination of some mail. A condition that is None holds for all mail. `tiers`:
    the smart hosts that are tried first, the next and so on; without any, mail goes by the MX
    records of its domain, with `security`."""

    name: str
    domains: DomainPatterns | None = None
    senders: SenderPatterns | None = None
    tenants: frozenset[str] | None = None
    tiers: tuple[tuple[SmartHost, ...], ...] = ()
    security: MxSecurity = USUAL_SECURITY

    def match(self, request: RouteRequest) -> tuple[str, ...] | None:
        """Return what of the mail matches, as words; None when the rule does not match."""
        found: list[str] = []
        if self.domains is not None:
            domain = self.domains.match(request.domain)
            if domain is None:
                return None
            found.append(f"domain {domain}")
        if self.senders is not None:
            sender = self.senders.match(request.sender)
            if sender is None:
                return None
            found.append(f"sender {sender}")
        if self.tenants is not None:
            if request.tenant not in self.tenants:
                return None
            found.append(f"tenant {request.tenant}")
        return tuple(found)

    def covers(self, other: Rule) -> bool:
        """True if this rule matches all mail that the other one matches."""
        return (
            (self.domains is None or self.domains.cover(other.domains or _EVERY_DOMAIN))
            and (self.senders is None or self.senders == other.senders)
            and (self.tenants is None or self.tenants >= (other.tenants or {None}))
        )


@dataclass(frozen=True)
class RoutingTable:
    """Rules in order. A table of thousands of domains costs a few lookups in dictionaries."""

    rules: tuple[Rule, ...] = ()

    @cached_property
    def has_senders(self) -> bool:
        """True if a rule asks for the reverse-path."""
        return any(each.senders is not None for each in self.rules)

    @cached_property
    def has_tenants(self) -> bool:
        return any(each.tenants is not None for each in self.rules)

    def find(self, request: RouteRequest) -> tuple[Rule, tuple[str, ...]] | None:
        """Return the first rule that matches, with what of the mail it matches."""
        for number in sorted(self._candidates(request.domain)):
            words = self.rules[number].match(request)
            if words is not None:
                return self.rules[number], words
        return None

    def hidden(self) -> Iterator[tuple[Rule, Rule]]:
        """Yield each rule that no mail reaches, with one before it that matches all its mail."""
        for number, rule in enumerate(self.rules):
            for before in sorted(self._candidates(_sample(rule))):
                if before < number and self.rules[before].covers(rule):
                    yield rule, self.rules[before]
                    break

    def _candidates(self, domain: str) -> set[int]:
        by_name, by_parent, anywhere = self._index
        found = {*anywhere, *by_name.get(domain, ())}
        for parent in parents_of(domain):
            found.update(by_parent.get(parent, ()))
        return found

    @cached_property
    def _index(self) -> tuple[Mapping[str, list[int]], Mapping[str, list[int]], list[int]]:
        by_name: dict[str, list[int]] = {}
        by_parent: dict[str, list[int]] = {}
        anywhere: list[int] = []
        for number, rule in enumerate(self.rules):
            if rule.domains is None:
                anywhere.append(number)
                continue
            for name in rule.domains.names:
                by_name.setdefault(name, []).append(number)
            for parent in rule.domains.parents:
                by_parent.setdefault(parent, []).append(number)
        return by_name, by_parent, anywhere


_EVERY_DOMAIN = DomainPatterns.of(("*",))


def _sample(rule: Rule) -> str:
    """Return a domain that the rule matches; where it matches all below one, a child of that."""
    domains = rule.domains or _EVERY_DOMAIN
    if domains.names:
        return next(iter(domains.names))
    return f"*.{next(iter(domains.parents))}".removesuffix(".")
