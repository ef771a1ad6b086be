"""Finds the route of a recipient: by the rule that matches, else by the domain's MX records.

What DNS does not answer defers mail. Mail fails only where an answer shows that its domain takes
none, and never by what an administrator wrote into a rule.
Source: RFC 5321 5.1; RFC 3463 3 (enhanced codes); RFC 7505 4.1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import NamedTuple

from postroad.domain.durations import format_duration
from postroad.domain.internationalized import ascii_address, ascii_domain
from postroad.domain.mail import Outcome
from postroad.domain.next_hops import NextHop
from postroad.errors import InvalidInput
from postroad.routing.answers import Answer, AnswerKind, Asking, Question, RecordType
from postroad.routing.exchangers import Tiers, exchangers, is_address, is_null
from postroad.routing.hosts import HostAddresses, of_answers, of_literal, of_smart_host, shuffled
from postroad.routing.plans import AddressFamily, Pick, RoutingPlan
from postroad.routing.routes import Explanation, NoRoute, ResolvedHop, Route, RoutedSite
from postroad.routing.tables import RouteRequest, Rule, SmartHost

MOST_HOSTS = 20
"""Hosts of one domain whose addresses are looked up, so that a domain with a thousand MX records
costs no thousand questions."""

_LITERAL = re.compile(r"\[(?:ipv6:(?P<ipv6>[0-9a-f:.]+)|(?P<ipv4>[0-9.]+))\]")


class _FoundHops(NamedTuple):
    """The next hops as they are named, which make the site, and those that are tried."""

    named: tuple[tuple[NextHop, ...], ...]
    tiers: tuple[tuple[ResolvedHop, ...], ...]


class _Undeliverable(Exception):
    """Ends a search without a route."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome


def find_route(request: RouteRequest, plan: RoutingPlan, pick: Pick) -> Asking[Route | NoRoute]:
    """Find the route of one recipient; asks DNS by yielding questions, several at a time."""
    search = _Search(plan, pick)
    try:
        found = yield from search.run(request)
    except _Undeliverable as end:
        return NoRoute(end.outcome, search.ttl, tuple(search.explanations))
    return Route(RoutedSite.of(found.named), found.tiers, search.ttl, tuple(search.explanations))


class _Search:
    """One search: what explains it, and how long the answers that it got hold together. Every
    method may raise _Undeliverable."""

    def __init__(self, plan: RoutingPlan, pick: Pick) -> None:
        self._plan = plan
        self._pick = pick
        self.explanations: list[Explanation] = []
        self.ttl: timedelta | None = None

    def run(self, request: RouteRequest) -> Asking[_FoundHops]:
        domain = self._domain_of(request)
        sender = None if request.sender is None else ascii_address(request.sender.lower())
        found = self._plan.table.find(replace(request, domain=domain, sender=sender))
        if found is None:
            self._note("table", "no rule matches: the domain decides")
            return (yield from self._by_domain(domain, NextHop(domain)))
        rule, words = found
        self._note("table", f"rule {rule.name} matches: {', '.join(words) or 'all mail'}")
        if rule.tiers:
            return (yield from self._by_smart_hosts(rule))
        hop = NextHop(domain, rule.tls.default_port, rule.tls)
        return (yield from self._by_domain(domain, hop))

    def _domain_of(self, request: RouteRequest) -> str:
        """Return the domain as DNS and the table have it. Source: RFC 5891 5; RFC 5321 4.5.1."""
        if not request.domain:
            if self._plan.postmaster_domain is None:
                self._note("postmaster", "has no domain: postmasterDomain of the routes names it")
                raise _deferred("4.3.5", "no domain is configured for the bare postmaster")
            self._note("postmaster", f"has the domain {self._plan.postmaster_domain}")
            return self._plan.postmaster_domain
        if request.domain.startswith("["):
            return request.domain.lower()
        try:
            domain = ascii_domain(request.domain)
        except InvalidInput as error:
            self._note(request.domain, str(error))
            raise _failed("550 5.1.2", str(error)) from None
        if domain != request.domain.lower():
            self._note(request.domain, f"is {domain} in DNS")
        if is_address(domain):
            self._note(domain, "is no domain: write the address literal [...]")
            raise _failed("550 5.1.2", f"{domain} is no domain: an address stands in brackets")
        return domain

    def _by_domain(self, domain: str, hop: NextHop) -> Asking[_FoundHops]:
        if domain.startswith("["):
            return self._by_literal(domain, hop)
        return (yield from self._by_mx(domain, hop))

    def _by_literal(self, literal: str, hop: NextHop) -> _FoundHops:
        """Take the server that an address literal names. Source: RFC 5321 4.1.3, 5.1."""
        form = _LITERAL.fullmatch(literal)
        address = form and (form["ipv6"] or form["ipv4"])
        if not address or not is_address(address):
            self._note(literal, "is no address of IPv4 or IPv6")
            raise _failed("550 5.1.2", f"{literal} is no address literal of IPv4 or IPv6")
        host = of_literal(address, self._plan)
        self._note(literal, host.words)
        if not host.addresses:
            raise _no_server(literal, is_uncertain=False, is_own=host.is_own)
        hop = replace(hop, host=host.addresses[0])
        return _FoundHops(((hop,),), ((ResolvedHop(hop, host.addresses),),))

    def _by_mx(self, domain: str, hop: NextHop) -> Asking[_FoundHops]:
        """Take the servers that a domain's MX records name, or the domain itself."""
        (answer,) = yield from self._ask(Question(domain, RecordType.MX))
        tiers = self._tiers_in(domain, answer)
        better = self._before_own_name(tiers)
        chosen = [(rank, host) for rank, hosts in better for host in shuffled(hosts, self._pick)]
        found = yield from self._examined(chosen[:MOST_HOSTS])
        own = [rank for rank, _, each in found if each.is_own]
        if own:
            self._note(domain, f"this server has preference {min(own)}: only lower ones are used")
            chosen = [each for each in chosen if each[0] < min(own)]
            found = [each for each in found if each[0] < min(own)]
        left_out = len(chosen) - len(found)
        if left_out:
            self._note(domain, f"{left_out} more hosts are not looked up")
        usable = [
            tuple(
                ResolvedHop(replace(hop, host=host), each.addresses)
                for at, host, each in found
                if at == rank and each.addresses
            )
            for rank, _ in better
        ]
        if not any(usable):
            is_uncertain = left_out > 0 or any(each.is_uncertain for _, _, each in found)
            is_own = bool(own) or better != tiers
            raise _no_server(domain, is_uncertain=is_uncertain, is_own=is_own)
        named = tuple(tuple(replace(hop, host=host) for host in hosts) for _, hosts in tiers)
        return _FoundHops(named, tuple(filter(None, usable)))

    def _examined(
        self, chosen: Sequence[tuple[int, str]]
    ) -> Asking[list[tuple[int, str, HostAddresses]]]:
        """Look up hosts, each given and returned with its preference."""
        answers = yield from self._addresses_of([host for _, host in chosen])
        found = [
            (rank, host, of_answers(answers[host], self._plan, self._pick)) for rank, host in chosen
        ]
        for _, host, each in found:
            self._note(host, each.words)
        return found

    def _tiers_in(self, domain: str, answer: Answer) -> Tiers:
        """Return the hosts that an answer about MX records names, by preference.
        Source: RFC 5321 5.1; RFC 7505 4.1."""
        if answer.kind is AnswerKind.UNAVAILABLE:
            self._note(f"{domain} MX", answer.reason)
            raise _deferred("4.4.3", f"no name server answered for the MX records of {domain}")
        if answer.kind is AnswerKind.NO_NAME:
            self._note(f"{domain} MX", "the domain does not exist")
            raise _failed("550 5.1.2", f"the domain {domain} does not exist")
        if answer.kind is AnswerKind.NO_DATA:
            self._note(f"{domain} MX", "none: the domain is its own host")
            return ((0, (domain,)),)
        if is_null(answer.exchanges):
            self._note(f"{domain} MX", "null: the domain accepts no mail")
            raise _failed("556 5.1.10", f"the domain {domain} accepts no mail (null MX)")
        found = exchangers(answer.exchanges)
        listed = (f"{host} ({rank})" for rank, hosts in found.tiers for host in hosts)
        aliases = f"; by way of {', '.join(answer.aliases)}" if answer.aliases else ""
        kept = f"; for {format_duration(answer.ttl)}"
        self._note(f"{domain} MX", (", ".join(listed) or "no usable host") + aliases + kept)
        for host, reason in found.dropped:
            self._note(host, reason)
        return found.tiers

    def _before_own_name(self, tiers: Tiers) -> Tiers:
        """Return the tiers before the one that has a name of this server."""
        names = self._plan.own.hosts
        own = [(rank, host) for rank, hosts in tiers for host in hosts if host in names]
        if not own:
            return tiers
        rank, host = own[0]
        self._note(host, f"is this server, with preference {rank}: only lower ones are used")
        return tuple(tier for tier in tiers if tier[0] < rank)

    def _by_smart_hosts(self, rule: Rule) -> Asking[_FoundHops]:
        """Take the smart hosts of a rule. Whatever DNS answers about them, no mail fails."""
        plain = [each.next_hop.host for tier in rule.tiers for each in tier if not each.by_mx]
        answers = yield from self._addresses_of([host for host in plain if not is_address(host)])
        named: list[tuple[NextHop, ...]] = []
        tiers: list[tuple[ResolvedHop, ...]] = []
        for tier in rule.tiers:
            if tier[0].by_mx:
                found = yield from self._by_mx_of(tier[0].next_hop)
                named += found.named
                tiers += found.tiers
            else:
                named.append(tuple(each.next_hop for each in tier))
                tiers.append(self._resolved(tier, answers))
        if not any(tiers):
            raise _deferred("4.4.4", f"no smart host of rule {rule.name} has an address")
        return _FoundHops(tuple(named), tuple(filter(None, tiers)))

    def _by_mx_of(self, hop: NextHop) -> Asking[_FoundHops]:
        try:
            return (yield from self._by_mx(hop.host, hop))
        except _Undeliverable as end:
            self._note(hop.host, f"not used: {end.outcome.text}")
            return _FoundHops(((hop,),), ())

    def _resolved(
        self, tier: Sequence[SmartHost], answers: Mapping[str, Mapping[AddressFamily, Answer]]
    ) -> tuple[ResolvedHop, ...]:
        resolved: list[ResolvedHop] = []
        for each in shuffled(tier, self._pick):
            host = each.next_hop.host
            if is_address(host):
                self._note(host, "is an address")
                resolved.append(ResolvedHop(each.next_hop, (host,)))
                continue
            found = of_smart_host(answers[host], self._plan, self._pick)
            self._note(host, found.words)
            if found.addresses:
                resolved.append(ResolvedHop(each.next_hop, found.addresses))
        return tuple(resolved)

    def _addresses_of(
        self, hosts: Sequence[str]
    ) -> Asking[Mapping[str, Mapping[AddressFamily, Answer]]]:
        """Ask for the addresses of several hosts at once."""
        families = self._plan.families
        if not hosts:
            return {}
        asked = [(host, family) for host in hosts for family in families]
        answers = yield from self._ask(
            *(Question(host, family.record_type) for host, family in asked)
        )
        found: dict[str, dict[AddressFamily, Answer]] = {host: {} for host in hosts}
        for (host, family), answer in zip(asked, answers, strict=True):
            found[host][family] = answer
        return found

    def _ask(self, *questions: Question) -> Asking[tuple[Answer, ...]]:
        answers = yield questions
        kept = [each.ttl for each in answers]
        self.ttl = min(kept) if self.ttl is None else min(self.ttl, *kept)
        return answers

    def _note(self, subject: str, text: str) -> None:
        self.explanations.append(Explanation(subject, text))


def _no_server(domain: str, *, is_uncertain: bool, is_own: bool) -> _Undeliverable:
    """Return why none of a domain's servers can be tried."""
    if is_uncertain:
        return _deferred("4.4.3", f"no name server answered for a server of {domain}")
    if is_own:
        return _failed("554 5.4.6", f"mail for {domain} loops back to this server")
    return _failed("550 5.4.4", f"no server of {domain} has an address that can be used")


def _failed(codes: str, text: str) -> _Undeliverable:
    return _Undeliverable(Outcome.failed(f"{codes} {text}"))


def _deferred(enhanced: str, text: str) -> _Undeliverable:
    return _Undeliverable(Outcome.deferred(f"451 {enhanced} {text}"))
