"""Reroutes as a worker has them from the shared state, and routes by them.

A shared state that is away changes nothing: what was read last holds until it is over.
Source: ADR 0069.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from postroad.domain.delivery.sites import Reroute, RerouteTable, reroutes_in
from postroad.domain.mail.mail import Outcome
from postroad.domain.values.instants import rfc3339
from postroad.ports.clock import Clock
from postroad.routing.routes import Explanation, NoRoute, RoutingPlan
from postroad.routing.tables import RoutingTable, Rule, SmartHost


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
