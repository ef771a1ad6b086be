"""Finds the route of a recipient: by the rule that matches, else by the domain's MX records.

What DNS does not answer defers mail. Mail fails only where an answer shows that its domain takes
none, and never by what an administrator wrote into a rule.
Source: RFC 5321 5.1; RFC 3463 3 (enhanced codes); RFC 7505 4.1."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from postroad.domain.mail.seven_bits import ascii_address, ascii_domain
from postroad.domain.smtp.next_hops import NextHop
from postroad.domain.values.instants import format_duration
from postroad.errors import InvalidInput
from postroad.routing.answers import (
    Answer,
    AnswerKind,
    Asking,
    Question,
    RecordType,
    Tiers,
    exchangers,
    is_address,
    is_null,
)
from postroad.routing.hosts import (
    ExaminedHost,
    Search,
    Undeliverable,
    deferred,
    failed,
    no_server,
    of_answers,
    of_literal,
    of_smart_host,
    shuffled,
)
from postroad.routing.routes import (
    AddressFamily,
    NoRoute,
    Pick,
    ResolvedHop,
    Route,
    RoutedSite,
    RoutingPlan,
)
from postroad.routing.securing import DomainPolicy, PublishedSecurity, SecuredHop, secured
from postroad.routing.tables import RouteRequest, Rule, SmartHost

MAX_HOSTS = 20
"""Hosts of one domain whose addresses are looked up, so that a domain with a thousand MX records
costs no thousand questions."""

_LITERAL = re.compile(r"\[(?:ipv6:(?P<ipv6>[0-9a-f:.]+)|(?P<ipv4>[0-9.]+))\]")


class _FoundHops(NamedTuple):
    """The next hops as they are named, which make the site, and those that are tried."""

    named: tuple[tuple[NextHop, ...], ...]
    tiers: tuple[tuple[ResolvedHop, ...], ...]


def find_route(
    request: RouteRequest, plan: RoutingPlan, pick: Pick, sts: DomainPolicy | None = None
) -> Asking[Route | NoRoute]:
    """Find the route of one recipient; asks DNS by yielding questions, several at a time. `sts`:
    what is known of the domain that `sts_domain` returns."""
    search = _Search(plan, pick, sts)
    try:
        found = yield from search.run(request)
    except Undeliverable as end:
        return NoRoute(end.outcome, search.ttl, tuple(search.explanations))
    return Route(RoutedSite.of(found.named), found.tiers, search.ttl, tuple(search.explanations))


def sts_domain(request: RouteRequest, plan: RoutingPlan) -> str | None:
    """Return the domain whose MTA-STS policy the route of a recipient depends on, None for none."""
    search = _Search(plan, lambda _: 0)
    try:
        domain, rule, _ = search.rule_of(request)
    except Undeliverable:
        return None
    if (rule is not None and rule.tiers) or domain.startswith("["):
        return None
    security = plan.security if rule is None else rule.security
    return domain if PublishedSecurity.STS in security.honoured else None


class _Search(Search):
    """The search for one recipient."""

    def __init__(self, plan: RoutingPlan, pick: Pick, sts: DomainPolicy | None = None) -> None:
        super().__init__(plan, pick)
        self._sts = sts

    def run(self, request: RouteRequest) -> Asking[_FoundHops]:
        domain, rule, words = self.rule_of(request)
        if rule is None:
            self.note("table", "no rule matches: the domain decides")
            security = self._plan.security
        else:
            self.note("table", f"rule {rule.name} matches: {', '.join(words) or 'all mail'}")
            if rule.tiers:
                return (yield from self._by_smart_hosts(rule))
            security = rule.security
        hop = NextHop(
            domain,
            security.tls.default_port,
            security.tls,
            oldest_tls=security.oldest_tls,
            source=security.source,
            chunking=security.chunking,
            verp=security.verp,
        )
        if domain.startswith("["):
            return self._by_literal(domain, hop)
        if self._sts is not None:
            self.note(f"{domain} MTA-STS", self._sts.words)
        return (yield from self._by_mx(domain, hop, self._sts, security.honoured))

    def rule_of(self, request: RouteRequest) -> tuple[str, Rule | None, tuple[str, ...]]:
        """Return the recipient's domain, and the rule that matches, with what it matches."""
        domain = self._domain_of(request)
        sender = None if request.sender is None else ascii_address(request.sender.lower())
        found = self._plan.table.find(replace(request, domain=domain, sender=sender))
        return (domain, None, ()) if found is None else (domain, *found)

    def _domain_of(self, request: RouteRequest) -> str:
        """Return the domain as DNS and the table have it. Source: RFC 5891 5; RFC 5321 4.5.1."""
        if not request.domain:
            if self._plan.postmaster_domain is None:
                self.note("postmaster", "has no domain: postmasterDomain of the routes names it")
                raise deferred("4.3.5", "no domain is configured for the bare postmaster")
            self.note("postmaster", f"has the domain {self._plan.postmaster_domain}")
            return self._plan.postmaster_domain
        if request.domain.startswith("["):
            return request.domain.lower()
        try:
            domain = ascii_domain(request.domain)
        except InvalidInput as error:
            self.note(request.domain, str(error))
            raise failed("550 5.1.2", str(error)) from None
        if domain != request.domain.lower():
            self.note(request.domain, f"is {domain} in DNS")
        if is_address(domain):
            self.note(domain, "is no domain: write the address literal [...]")
            raise failed("550 5.1.2", f"{domain} is no domain: an address stands in brackets")
        return domain

    def _by_literal(self, literal: str, hop: NextHop) -> _FoundHops:
        """Take the server that an address literal names. Source: RFC 5321 4.1.3, 5.1."""
        form = _LITERAL.fullmatch(literal)
        address = form and (form["ipv6"] or form["ipv4"])
        if not address or not is_address(address):
            self.note(literal, "is no address of IPv4 or IPv6")
            raise failed("550 5.1.2", f"{literal} is no address literal of IPv4 or IPv6")
        host = of_literal(address, self._plan)
        self.note(literal, host.words)
        if not host.addresses:
            raise no_server(literal, is_uncertain=False, is_own=host.is_own)
        hop = replace(hop, host=host.addresses[0])
        return _FoundHops(((hop,),), ((ResolvedHop(hop, host.addresses),),))

    def _by_mx(
        self,
        domain: str,
        hop: NextHop,
        sts: DomainPolicy | None = None,
        honoured: Collection[PublishedSecurity] = (),
    ) -> Asking[_FoundHops]:
        """Take the servers that a domain's MX records name, or the domain itself."""
        (answer,) = yield from self.ask(Question(domain, RecordType.MX))
        tiers = self._tiers_in(domain, answer)
        better = self._before_own_name(tiers)
        chosen = [(rank, host) for rank, hosts in better for host in shuffled(hosts, self._pick)]
        found = yield from self._examined(chosen[:MAX_HOSTS])
        own = [each.rank for each in found if each.addresses.is_own]
        if own:
            self.note(domain, f"this server has preference {min(own)}: only lower ones are used")
            chosen = [each for each in chosen if each[0] < min(own)]
            found = [each for each in found if each.rank < min(own)]
        left_out = len(chosen) - len(found)
        if left_out:
            self.note(domain, f"{left_out} more hosts are not looked up")
        by_dane = PublishedSecurity.DANE in honoured and answer.is_validated
        if PublishedSecurity.DANE in honoured and not by_dane:
            self.note(f"{domain} DANE", "no name server on this machine validated the MX records")
        secure = yield from self._secured(found, hop, sts, is_asked=by_dane)
        usable = [
            tuple(
                ResolvedHop(secure[each.host].hop, each.addresses.addresses, secure[each.host].tlsa)
                for each in found
                if each.rank == rank and each.host in secure and not secure[each.host].refusal
            )
            for rank, _ in better
        ]
        if not any(usable):
            if secure:
                raise deferred("4.7.5", f"no server of {domain} may get mail: its TLS is in doubt")
            is_uncertain = left_out > 0 or any(each.addresses.is_uncertain for each in found)
            is_own = bool(own) or better != tiers
            raise no_server(domain, is_uncertain=is_uncertain, is_own=is_own)
        named = tuple(
            tuple((secure.get(host) or secured(replace(hop, host=host), sts)).hop for host in hosts)
            for _, hosts in tiers
        )
        return _FoundHops(named, tuple(filter(None, usable)))

    def _secured(
        self,
        found: Sequence[ExaminedHost],
        hop: NextHop,
        sts: DomainPolicy | None,
        *,
        is_asked: bool,
    ) -> Asking[Mapping[str, SecuredHop]]:
        """Decide how each host with addresses is connected to; `is_asked`: by its TLSA records,
        too, which are asked for where its addresses are validated. Source: RFC 7672 2.2.2."""
        usable = [each for each in found if each.addresses.addresses]
        names = {
            each.host: each.tlsa_names if is_asked and each.is_validated else () for each in usable
        }
        asked = [(host, name) for host, listed in names.items() for name in listed]
        answers = yield from self.ask_all(
            [Question(f"_{hop.port}._tcp.{name}", RecordType.TLSA) for _, name in asked]
        )
        result: dict[str, SecuredHop] = {}
        for host in names:
            tlsa = [
                (name, answer)
                for (of, name), answer in zip(asked, answers, strict=True)
                if of == host
            ]
            result[host] = secured(replace(hop, host=host), sts, tlsa)
            if text := result[host].refusal or result[host].words:
                self.note(host, text)
        return result

    def _examined(self, chosen: Sequence[tuple[int, str]]) -> Asking[list[ExaminedHost]]:
        """Look up hosts, each given and returned with its preference."""
        answers = yield from self.addresses_of([host for _, host in chosen])
        found = []
        for rank, host in chosen:
            addresses = of_answers(answers[host], self._plan, self._pick)
            found.append(ExaminedHost(rank, host, addresses, tuple(answers[host].values())))
            self.note(host, addresses.words)
        return found

    def _tiers_in(self, domain: str, answer: Answer) -> Tiers:
        """Return the hosts that an answer about MX records names, by preference.
        Source: RFC 5321 5.1; RFC 7505 4.1."""
        if answer.kind is AnswerKind.UNAVAILABLE:
            self.note(f"{domain} MX", answer.reason)
            raise deferred("4.4.3", f"no name server answered for the MX records of {domain}")
        if answer.kind is AnswerKind.NO_NAME:
            self.note(f"{domain} MX", "the domain does not exist")
            raise failed("550 5.1.2", f"the domain {domain} does not exist")
        if answer.kind is AnswerKind.NO_DATA:
            self.note(f"{domain} MX", "none: the domain is its own host")
            return ((0, (domain,)),)
        if is_null(answer.exchanges):
            self.note(f"{domain} MX", "null: the domain accepts no mail")
            raise failed("556 5.1.10", f"the domain {domain} accepts no mail (null MX)")
        found = exchangers(answer.exchanges)
        listed = (f"{host} ({rank})" for rank, hosts in found.tiers for host in hosts)
        aliases = f"; by way of {', '.join(answer.aliases)}" if answer.aliases else ""
        kept = f"; for {format_duration(answer.ttl)}"
        self.note(f"{domain} MX", (", ".join(listed) or "no usable host") + aliases + kept)
        for host, reason in found.dropped:
            self.note(host, reason)
        return found.tiers

    def _before_own_name(self, tiers: Tiers) -> Tiers:
        """Return the tiers before the one that has a name of this server."""
        names = self._plan.own.hosts
        own = [(rank, host) for rank, hosts in tiers for host in hosts if host in names]
        if not own:
            return tiers
        rank, host = own[0]
        self.note(host, f"is this server, with preference {rank}: only lower ones are used")
        return tuple(tier for tier in tiers if tier[0] < rank)

    def _by_smart_hosts(self, rule: Rule) -> Asking[_FoundHops]:
        """Take the smart hosts of a rule. Whatever DNS answers about them, no mail fails."""
        plain = [each.next_hop.host for tier in rule.tiers for each in tier if each.is_looked_up]
        answers = yield from self.addresses_of([host for host in plain if not is_address(host)])
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
            raise deferred("4.4.4", f"no smart host of rule {rule.name} has an address")
        return _FoundHops(tuple(named), tuple(filter(None, tiers)))

    def _by_mx_of(self, hop: NextHop) -> Asking[_FoundHops]:
        try:
            return (yield from self._by_mx(hop.host, hop))
        except Undeliverable as end:
            self.note(hop.host, f"not used: {end.outcome.text}")
            return _FoundHops(((hop,),), ())

    def _resolved(
        self, tier: Sequence[SmartHost], answers: Mapping[str, Mapping[AddressFamily, Answer]]
    ) -> tuple[ResolvedHop, ...]:
        resolved: list[ResolvedHop] = []
        for each in shuffled(tier, self._pick):
            host = each.next_hop.host
            if each.next_hop.socket is not None:
                self.note(str(each.next_hop), "is a socket")
                resolved.append(ResolvedHop(each.next_hop, ()))
                continue
            if is_address(host):
                self.note(host, "is an address")
                resolved.append(ResolvedHop(each.next_hop, (host,)))
                continue
            found = of_smart_host(answers[host], self._plan, self._pick)
            self.note(host, found.words)
            if found.addresses:
                resolved.append(ResolvedHop(each.next_hop, found.addresses))
        return tuple(resolved)
