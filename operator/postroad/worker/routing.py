"""Routes recipients: carries the questions of `routing` to a resolver."""

from __future__ import annotations

from postroad.ports.clock import Randomness
from postroad.ports.resolver import Resolver
from postroad.ports.sts import StsPolicies
from postroad.routing.finding import find_route, sts_domain
from postroad.routing.plans import RoutingPlan
from postroad.routing.routes import NoRoute, Route
from postroad.routing.sts import DomainPolicy
from postroad.routing.tables import RouteRequest


class RouteFinder:
    """Finds routes by one plan. Safe to use concurrently. `sts` finds the policies of domains;
    None: there are none."""

    def __init__(
        self,
        plan: RoutingPlan,
        resolver: Resolver,
        randomness: Randomness,
        sts: StsPolicies | None = None,
    ) -> None:
        self._plan = plan
        self._resolver = resolver
        self._randomness = randomness
        self._sts = sts

    async def route(self, request: RouteRequest) -> Route | NoRoute:
        """Find the route of one recipient."""
        asking = find_route(request, self._plan, self._pick, await self._policy(request))
        try:
            questions = next(asking)
            while True:
                questions = asking.send(await self._resolver.look_up(*questions))
        except StopIteration as end:
            found: Route | NoRoute = end.value
            return found

    async def _policy(self, request: RouteRequest) -> DomainPolicy | None:
        if self._sts is None or (domain := sts_domain(request, self._plan)) is None:
            return None
        return await self._sts.find(domain)

    def _pick(self, count: int) -> int:
        return int(self._randomness.uniform() * count)
