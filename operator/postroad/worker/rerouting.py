"""Reroutes as a worker reads them from the board, and routes by them.

A board that is away changes nothing: what was read last holds until it is over.
Source: ADR 0069.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from postroad.domain.instants import rfc3339
from postroad.domain.mail import Outcome
from postroad.domain.reroutes import Reroute, RerouteTable, reroutes_in
from postroad.ports.board import Board, Topic
from postroad.ports.clock import Clock
from postroad.routing.plans import RoutingPlan
from postroad.routing.routes import Explanation, NoRoute
from postroad.routing.tables import RoutingTable, Rule, SmartHost
from postroad.worker.board_use import BoardUse
from postroad.worker.site_control import READ_EVERY


class Reroutes:
    """The reroutes of a queue that hold now: `table`."""

    def __init__(self, board: Board, clock: Clock) -> None:
        self._board, self._clock = board, clock
        self._use = BoardUse()
        self._posted: Mapping[str, str] = {}
        self.table = RerouteTable()

    async def run(self, on_changed: Callable[[], None]) -> None:
        """Read, until cancelled."""
        while True:
            await self._clock.sleep(READ_EVERY)
            before = self.table
            await self.read()
            if self.table != before:
                on_changed()

    async def read(self) -> None:
        """Read the reroutes of all."""
        with self._use.unless_away():
            self._posted = await self._board.posted(Topic.REROUTES)
        self.table = RerouteTable.of(reroutes_in(self._posted, self._clock.now()))


def plan_by(reroute: Reroute, plan: RoutingPlan) -> RoutingPlan | NoRoute:
    """Return the plan by which all mail goes the way of a reroute. No route: the plan has no such
    rule; mail waits for it, since its usual way is what the administrator does not want."""
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
    """Return why mail goes another way."""
    until = rfc3339(reroute.until)
    return Explanation(
        f"{reroute.of} {reroute.name}",
        f"rerouted to {reroute.way} until {until} by an administrator: {reroute.reason}",
    )
