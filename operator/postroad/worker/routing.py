"""Routes recipients: carries the questions of `routing` to a resolver."""

from __future__ import annotations

from postroad.ports.clock import Randomness
from postroad.ports.resolver import Resolver
from postroad.routing.finding import find_route
from postroad.routing.plans import RoutingPlan
from postroad.routing.routes import NoRoute, Route
from postroad.routing.tables import RouteRequest


class RouteFinder:
    """Finds routes by one plan. Safe to use concurrently."""

    def __init__(self, plan: RoutingPlan, resolver: Resolver, randomness: Randomness) -> None:
        self._plan = plan
        self._resolver = resolver
        self._randomness = randomness

    async def route(self, request: RouteRequest) -> Route | NoRoute:
        """Find the route of one recipient."""
        asking = find_route(request, self._plan, self._pick)
        try:
            questions = next(asking)
            while True:
                questions = asking.send(await self._resolver.look_up(*questions))
        except StopIteration as end:
            found: Route | NoRoute = end.value
            return found

    def _pick(self, count: int) -> int:
        return int(self._randomness.uniform() * count)
