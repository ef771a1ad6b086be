"""Routes recipients: carries the questions of `routing` to a resolver, and keeps the answers;
routes by the reroutes of the shared state.

A shared state that is away changes nothing: what was read last holds until it is over.
Source: ADR 0069."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Protocol
from uuid import UUID

from postroad.domain.delivery.sites import Reroute, RerouteTable, reroutes_in
from postroad.domain.mail.mail import Outcome
from postroad.domain.mail.seven_bits import ascii_domain
from postroad.domain.smtp.next_hops import NextHop, SourceAddresses
from postroad.domain.values.domain_patterns import server_name
from postroad.domain.values.instants import rfc3339
from postroad.errors import InvalidInput
from postroad.ports.clock import Clock, Randomness
from postroad.ports.delivery import Resolver, StsPolicies
from postroad.routing.finding import find_route, sts_domain
from postroad.routing.routes import (
    Explanation,
    NoRoute,
    ResolvedHop,
    Route,
    RoutingPlan,
    written_hop,
)
from postroad.routing.securing import DomainPolicy
from postroad.routing.tables import RouteRequest, RoutingTable, Rule, SmartHost
from postroad.scheduling.events import Site
from postroad.scheduling.ranking import LimitsOf


class Reroutes:
    """The reroutes of a queue that hold now: `table`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._published: Mapping[str, str] = {}
        self.table = RerouteTable()

    async def obey(
        self, on_changed: Callable[[], None], published: Mapping[str, str] | None
    ) -> None:
        """Take the reroutes of all, and call `on_changed` where others hold than before. None: the
        shared state is away."""
        if published is not None:
            self._published = published
        before = self.table
        self.table = RerouteTable.of(reroutes_in(self._published, self._clock.now()))
        if self.table != before:
            on_changed()


def plan_by(reroute: Reroute, plan: RoutingPlan) -> RoutingPlan | NoRoute:
    """Return the plan by which all mail goes where a reroute leads. No route: the plan has no such
    rule; mail waits for it, since its usual route is what the administrator does not want."""
    if reroute.hop is not None:
        rule = Rule(f"rerouted-{reroute.of}", tiers=((SmartHost(reroute.hop),),))
    else:
        named = [each for each in plan.table.rules if each.name == reroute.rule]
        if not named:
            return no_rule(reroute)
        rule = replace(named[0], domains=None, senders=None, tenants=None)
    return replace(plan, table=RoutingTable((rule,)))


def no_rule(reroute: Reroute) -> NoRoute:
    """Return what becomes of mail whose reroute names a rule that a worker does not have."""
    text = f"451 4.3.5 rerouted to the rule {reroute.rule}, which there is not"
    return NoRoute(Outcome.deferred(text), None, (explained(reroute),))


def explained(reroute: Reroute) -> Explanation:
    """Return why mail goes elsewhere."""
    until = rfc3339(reroute.until)
    return Explanation(
        f"{reroute.of} {reroute.name}",
        f"rerouted to {reroute.target} until {until} by an administrator: {reroute.reason}",
    )


MAX_KEPT_FOR = timedelta(minutes=1)
"""Of a found route. The resolver keeps answers for longer; this saves the search alone, and orders
the addresses of a host anew often enough to spread connections over them."""

MAX_RECIPIENTS = 100
"""Per transmission. Every server accepts so many; it may refuse more (RFC 5321 4.5.3.1.8)."""

MAX_KEPT = 10_000
"""Routes; the oldest ones go first."""


class RouteFinder:
    """Finds routes by one plan. Safe to use concurrently. `sts` finds the policies of domains;
    None: there are none. `reroutes`: the mail that goes elsewhere now."""

    def __init__(
        self,
        plan: RoutingPlan,
        resolver: Resolver,
        randomness: Randomness,
        sts: StsPolicies | None = None,
        reroutes: Callable[[], RerouteTable] = RerouteTable,
    ) -> None:
        self._plan = plan
        self._resolver = resolver
        self._randomness = randomness
        self._sts = sts
        self._reroutes = reroutes

    async def route(self, request: RouteRequest) -> Route | NoRoute:
        """Find the route of one recipient. That of a site that is rerouted is found anew, once, and
        that of a domain is, whatever DNS has about it."""
        table = self._reroutes()
        reroute, usual = table.of_domain(self._domain(request)), None
        if reroute is None:
            usual = await self._find(request, self._plan)
            if isinstance(usual, Route):
                reroute = table.of_site(usual.site.name)
        if reroute is None:
            assert usual is not None
            return usual
        plan = plan_by(reroute, self._plan)
        if isinstance(plan, NoRoute):
            return plan
        found = await self._find(request, plan)
        return replace(found, explanations=(explained(reroute), *found.explanations))

    def _domain(self, request: RouteRequest) -> str:
        return _as_in_dns(request.domain or self._plan.postmaster_domain or "")

    async def _find(self, request: RouteRequest, plan: RoutingPlan) -> Route | NoRoute:
        asking = find_route(request, plan, self._pick, await self._policy(request, plan))
        try:
            questions = next(asking)
            while True:
                questions = asking.send(await self._resolver.look_up(*questions))
        except StopIteration as end:
            found: Route | NoRoute = end.value
            return found

    def decisive(self, request: RouteRequest) -> RouteRequest:
        """Return what of a request decides about its route."""
        table = self._plan.table
        return replace(
            request,
            sender=request.sender if table.has_senders else None,
            tenant=request.tenant if table.has_tenants else None,
        )

    async def _policy(self, request: RouteRequest, plan: RoutingPlan) -> DomainPolicy | None:
        if self._sts is None or (domain := sts_domain(request, plan)) is None:
            return None
        return await self._sts.find(domain)

    def _pick(self, count: int) -> int:
        return int(self._randomness.uniform() * count)


@dataclass(frozen=True, slots=True, eq=False)
class DeliveryRoute:
    """A route as delivery uses it: the site as the scheduler has it, its name for people, and the
    next hops by the scheduler's names of destinations."""

    site: Site
    name: str
    hops: Mapping[str, ResolvedHop]
    variants: dict[tuple[SourceAddresses | None, ...], DeliveryRoute] | None = None
    """By the sources that a mail has of pools; None: there is no pool. All variants share it."""

    def of_mail(self, mail_id: UUID) -> DeliveryRoute:
        """Return the variant that a mail goes by; of a route with pools."""
        assert self.variants is not None
        hops = {name: _from_pool(hop, mail_id) for name, hop in self.hops.items()}
        sources = tuple(each.next_hop.source for each in hops.values())
        if sources not in self.variants:
            names = {name: written_hop(hop.next_hop) for name, hop in hops.items()}
            tiers = tuple(tuple(names[each] for each in tier) for tier in self.site.tiers)
            by_name = {names[name]: hop for name, hop in hops.items()}
            self.variants[sources] = replace(self, site=Site(tiers), hops=by_name)
        return self.variants[sources]

    @property
    def destinations(self) -> Iterable[str]:
        """The destinations of the route, those of all variants that were used."""
        routes = (self,) if self.variants is None else self.variants.values()
        return dict.fromkeys(name for each in routes for name in each.hops)

    @property
    def first_servers(self) -> tuple[str, ...]:
        """The hosts that are tried first, as patterns match them."""
        first = (self.hops[each].next_hop.host for each in self.site.tiers[0])
        return tuple(map(server_name, first))

    def most_recipients(self, sender: str | None, limits_of: LimitsOf | None = None) -> int:
        """Return how many recipients a transmission of such mail may have, as the destination has
        it that takes the fewest."""
        is_named = sender is not None and any(each.next_hop.verp for each in self.hops.values())
        if is_named or limits_of is None:
            return 1 if is_named else MAX_RECIPIENTS
        return min(limits_of(each).recipients or MAX_RECIPIENTS for each in self.hops)

    @classmethod
    def of(cls, route: Route) -> DeliveryRoute:
        hops = {written_hop(each.next_hop): each for tier in route.tiers for each in tier}
        tiers = (sorted({written_hop(each.next_hop) for each in tier}) for tier in route.tiers)
        return cls(Site(tuple(map(tuple, tiers))), route.site.name, hops, _variants(hops))


class Routes(Protocol):
    """Destinations of a worker's mail."""

    def known(self, request: RouteRequest) -> DeliveryRoute | NoRoute | None:
        """Return the route if it can be given at once; else None."""

    async def find(self, request: RouteRequest) -> DeliveryRoute | NoRoute: ...


class RelayRoutes:
    """All mail goes to one next hop, whose name the system's resolver looks up: it may be in
    /etc/hosts, or be a name that the search domains of a pod complete. `name`: of what is no
    server of mail. `reroutes`: the mail that goes elsewhere now; there are no rules."""

    def __init__(
        self,
        hop: NextHop,
        name: str | None = None,
        reroutes: Callable[[], RerouteTable] = RerouteTable,
    ) -> None:
        self._hop, self._route = hop, _route_to(hop, name)
        self._reroutes = reroutes

    def replace(self, hop: NextHop) -> bool:
        """Let mail go to another next hop from now on; return whether it is another one."""
        if hop == self._hop:
            return False
        self._hop, self._route = hop, _route_to(hop)
        return True

    @property
    def site(self) -> str:
        """The site that all mail goes to, but what is rerouted."""
        return self._route.name

    def known(self, request: RouteRequest) -> DeliveryRoute | NoRoute:
        table = self._reroutes()
        if table.is_empty:
            return self._route
        found = table.of_domain(_as_in_dns(request.domain)) or table.of_site(self._route.name)
        if found is None:
            return self._route
        if found.hop is None:
            return no_rule(found)
        return _route_to(replace(found.hop, chunking=self._hop.chunking))

    async def find(self, request: RouteRequest) -> DeliveryRoute | NoRoute:
        return self.known(request)

    def forget(self) -> None:
        """Keep no route (none is kept)."""


def _route_to(hop: NextHop, name: str | None = None) -> DeliveryRoute:
    site = name or (hop.host if hop.socket is None else str(hop))
    name = name or written_hop(hop)
    hops = {name: ResolvedHop(hop, ())}
    return DeliveryRoute(Site(((name,),)), site, hops, _variants(hops))


def _from_pool(hop: ResolvedHop, mail_id: UUID) -> ResolvedHop:
    source = hop.next_hop.source
    if source is None or not source.others:
        return hop
    return replace(hop, next_hop=replace(hop.next_hop, source=source.for_mail(mail_id)))


def _variants(
    hops: Mapping[str, ResolvedHop],
) -> dict[tuple[SourceAddresses | None, ...], DeliveryRoute] | None:
    sources = (each.next_hop.source for each in hops.values())
    return {} if any(each is not None and each.others for each in sources) else None


def _as_in_dns(domain: str) -> str:
    try:
        return ascii_domain(domain)
    except InvalidInput:
        return domain.lower()


class FoundRoutes:
    """Routes that a finder finds, kept for a while."""

    def __init__(self, finder: RouteFinder, clock: Clock) -> None:
        self._finder = finder
        self._clock = clock
        self._kept: dict[RouteRequest, tuple[DeliveryRoute | NoRoute, timedelta]] = {}

    def forget(self) -> None:
        """Find all routes anew: mail goes elsewhere now."""
        self._kept = {}  # another one: see `find`

    def known(self, request: RouteRequest) -> DeliveryRoute | NoRoute | None:
        """Return a route that was found not long ago (see `Routes`)."""
        key = self._finder.decisive(request)
        found, until = self._kept.get(key, (None, timedelta(0)))
        if found is not None and until <= self._clock.elapsed():
            del self._kept[key]
            return None
        return found

    async def find(self, request: RouteRequest) -> DeliveryRoute | NoRoute:
        """Find a route, and keep it (see `Routes`)."""
        # The table of before the wait: what is found by old routes is not kept behind `forget`.
        key, kept = self._finder.decisive(request), self._kept
        route = await self._finder.route(key)
        found = route if isinstance(route, NoRoute) else DeliveryRoute.of(route)
        ttl = MAX_KEPT_FOR if route.ttl is None else min(route.ttl, MAX_KEPT_FOR)
        kept[key] = found, self._clock.elapsed() + ttl
        while len(kept) > MAX_KEPT:
            del kept[next(iter(kept))]
        return found
