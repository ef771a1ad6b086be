"""Finds the routes of a worker's mail by settings that may change while it runs."""

from collections.abc import Callable, Sequence
from pathlib import Path

from postroad.adapters.machine.clocks import MachineClock, SystemRandomness
from postroad.bootstrap.delivery.resolvers import open_resolver, open_sts
from postroad.delivery_settings.routing import RoutingSettings, StsSettings
from postroad.domain.delivery.sites import RerouteTable
from postroad.ports.delivery import Resolver, StsPolicies
from postroad.routing.answers import Answer, Question
from postroad.routing.routes import NoRoute
from postroad.routing.tables import RouteRequest
from postroad.worker.route_finder import DeliveryRoute, FoundRoutes, RouteFinder


class RoutesBySettings:
    """Routes by the routing of a file of delivery (the port `Routes`). What was found in DNS, and
    policies of MTA-STS, stay over changes of all else. `ca_file` verifies the web servers of
    policies. `reroutes`: the mail that goes elsewhere now. Needs a running event loop; asks on
    first use.

    Raises: InvalidSettings, as where there is no name server.
    """

    def __init__(
        self,
        routing: RoutingSettings,
        ca_file: Path | None,
        reroutes: Callable[[], RerouteTable] = RerouteTable,
    ) -> None:
        self._reroutes = reroutes
        self._ca_file = ca_file
        self._clock = MachineClock()
        self._resolver = open_resolver(routing.resolver)
        self._sts: tuple[StsSettings, StsPolicies] | None = None
        self._use(routing, self._resolver)

    def replace(self, routing: RoutingSettings) -> bool:
        """Find routes by other settings from now on; return whether they differ. Raises:
        InvalidSettings; then all stays as it is."""
        if routing == self._routing:
            return False
        same = routing.resolver == self._routing.resolver
        self._use(routing, self._resolver if same else open_resolver(routing.resolver))
        return True

    def _use(self, routing: RoutingSettings, resolver: Resolver) -> None:
        sts = self._sts
        if routing.honours_sts and (sts is None or sts[0] != routing.sts):
            opened = open_sts(routing.sts, self, self._may_reach, self._ca_file)
            sts = routing.sts, opened
        self._routing, self._plan, self._resolver, self._sts = (
            routing,
            routing.plan(),
            resolver,
            sts,
        )
        honoured = sts[1] if sts is not None and routing.honours_sts else None
        finder = RouteFinder(self._plan, resolver, SystemRandomness(), honoured, self._reroutes)
        self._found = FoundRoutes(finder, self._clock)

    def forget(self) -> None:
        """Find all routes anew: mail goes elsewhere now."""
        self._found.forget()

    @property
    def rule_names(self) -> Sequence[str]:
        return [each.name for each in self._routing.rules]

    def _may_reach(self, address: str) -> bool:
        return self._plan.may_reach(address)

    async def look_up(self, *questions: Question) -> tuple[Answer, ...]:
        """Ask the name servers of the settings as they are now (the port `Resolver`)."""
        return await self._resolver.look_up(*questions)

    def known(self, request: RouteRequest) -> DeliveryRoute | NoRoute | None:
        """Return a route that was found not long ago (see `Routes`)."""
        return self._found.known(request)

    async def find(self, request: RouteRequest) -> DeliveryRoute | NoRoute:
        return await self._found.find(request)
