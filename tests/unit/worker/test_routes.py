"""Routes are kept for a while, by what of a request decides about them."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from postroad.domain.smtp.next_hops import NextHop
from postroad.routing.routes import NoRoute, RoutingPlan
from postroad.routing.tables import (
    RouteRequest,
    RoutingTable,
    Rule,
    SenderPatterns,
    SmartHost,
)
from postroad.worker import route_finder
from postroad.worker.route_finder import DeliveryRoute, FoundRoutes, RelayRoutes, RouteFinder
from support.memory.clock import ManualClock, SeededRandomness
from support.memory.connections import MemoryResolver

ONE = RouteRequest("one.example", "a@x.example", "acme")


def routes_by(table: RoutingTable) -> tuple[FoundRoutes, MemoryResolver, ManualClock]:
    clock, resolver = ManualClock(), MemoryResolver()
    resolver.add("one.example", (10, "mx.one.example"))
    resolver.add("mx.one.example", "192.0.2.1")
    finder = RouteFinder(RoutingPlan(table), resolver, SeededRandomness())
    return FoundRoutes(finder, clock), resolver, clock


async def test_a_route_is_found_once_for_all_senders_where_no_rule_asks_for_them() -> None:
    routes, resolver, clock = routes_by(RoutingTable())
    assert routes.known(ONE) is None

    found = await routes.find(ONE)

    asked = len(resolver.asked)
    assert isinstance(found, DeliveryRoute)
    assert routes.known(RouteRequest("one.example", "other@x.example")) is found
    assert len(resolver.asked) == asked
    clock.jump(route_finder.MAX_KEPT_FOR)
    assert routes.known(ONE) is None


async def test_a_rule_about_senders_keeps_their_routes_apart() -> None:
    smart = SmartHost(NextHop("192.0.2.9"))
    rule = Rule("some", senders=SenderPatterns.of(("a@x.example",)), tiers=((smart,),))
    routes, _, _ = routes_by(RoutingTable((rule,)))

    mine = await routes.find(ONE)
    other = await routes.find(RouteRequest("one.example", "other@x.example"))

    assert isinstance(mine, DeliveryRoute)
    assert isinstance(other, DeliveryRoute)
    assert mine.name != other.name
    assert routes.known(ONE) is mine


async def test_that_there_is_no_route_is_kept_no_longer_than_its_answer() -> None:
    routes, resolver, clock = routes_by(RoutingTable())
    resolver.fail("away.example")
    request = RouteRequest("away.example")

    assert isinstance(await routes.find(request), NoRoute)
    assert isinstance(routes.known(request), NoRoute)
    clock.jump(timedelta(seconds=31))
    assert routes.known(request) is None


async def test_no_more_routes_are_kept_than_there_is_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    routes, _, _ = routes_by(RoutingTable())
    monkeypatch.setattr(route_finder, "MAX_KEPT", 2)
    requests = [RouteRequest(f"{number}.example") for number in range(3)]

    await asyncio.gather(*map(routes.find, requests))

    assert [routes.known(each) is None for each in requests] == [True, False, False]


def test_a_relay_that_is_replaced_by_another_takes_all_mail_from_then_on() -> None:
    routes = RelayRoutes(NextHop("old.example", 25))

    assert not routes.replace(NextHop("old.example", 25))
    assert routes.replace(NextHop("new.example", 587))

    found = routes.known(ONE)
    assert isinstance(found, DeliveryRoute)
    assert (found.name, routes.site) == ("new.example", "new.example")


def test_a_relay_is_the_route_of_all_mail() -> None:
    routes = RelayRoutes(NextHop("smtp.relay.example", 2525))

    found = routes.known(ONE)

    assert isinstance(found, DeliveryRoute)
    assert found.name == "smtp.relay.example"
    assert [hop.addresses for hop in found.hops.values()] == [()]
    assert routes.known(RouteRequest("")) is found
