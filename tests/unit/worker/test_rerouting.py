"""Mail of a site or a domain goes elsewhere while an administrator wants it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial

import pytest

from postroad.domain.delivery.sites import Reroute, RerouteOf, RerouteTable
from postroad.domain.smtp.next_hops import NextHop, TlsMode
from postroad.domain.values.domain_patterns import DomainPatterns
from postroad.errors import InvalidInput
from postroad.ports.delivery import Topic
from postroad.routing.routes import NoRoute, Route, RoutingPlan
from postroad.routing.tables import RouteRequest, RoutingTable, Rule, SmartHost
from postroad.worker.route_finder import (
    DeliveryRoute,
    FoundRoutes,
    RelayRoutes,
    Reroutes,
    RouteFinder,
)
from postroad.worker.sites.control import SharedStateReader
from support.memory.clock import SeededRandomness
from support.memory.fault_injection import Fault
from support.workers import running
from unit.worker.test_driving import SECOND, Worker, a_worker

ONE, OTHER = "mx.one.example", "other.example"
HOUR = timedelta(hours=1)
RULE = Rule("backup", DomainPatterns.of(("x.example",)), tiers=((SmartHost(NextHop(OTHER, 587)),),))


class Rerouted:
    """A worker that obeys reroutes, beside a shared state that the test writes on."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.shared_state, self.clock = worker.queue.shared_state, worker.process.clock
        self.reroutes, self.reader = self.anew()
        self.finder = RouteFinder(
            RoutingPlan(RoutingTable((RULE,))),
            worker.resolver,
            SeededRandomness(7),
            reroutes=lambda: self.reroutes.table,
        )
        worker.routes.inner = FoundRoutes(self.finder, self.clock)
        worker.domain("one.example")
        worker.domain("two.example", ONE)
        worker.domain("three.example")
        worker.resolver.add(OTHER, "192.0.2.250")

    def anew(self) -> tuple[Reroutes, SharedStateReader]:
        """Return the reroutes of a worker that starts, and what reads them."""
        made = Reroutes(self.clock)
        obey = partial(made.obey, self.changed)
        return made, SharedStateReader(self.shared_state, self.clock, {Topic.REROUTES: obey})

    def made(self, of: RerouteOf, name: str, duration: timedelta, **target: str) -> Reroute:
        hop = NextHop(OTHER, 2525, TlsMode.ENCRYPTED) if not target else None
        until = self.clock.now() + duration
        return Reroute(of, name, until, "it is broken", hop=hop, rule=target.get("rule"))

    async def publish(self, made: Reroute) -> None:
        await self.shared_state.publish(
            Topic.REROUTES, made.key, made.text(), made.until - self.clock.now()
        )

    def changed(self) -> None:
        self.worker.routes.inner.forget()
        self.worker.driving.route_again()


@asynccontextmanager
async def a_rerouted_worker() -> AsyncIterator[Rerouted]:
    async with a_worker() as worker:
        found = Rerouted(worker)
        async with running(found.reader.run()):
            yield found


async def test_the_mail_of_a_site_goes_elsewhere_until_its_time_is_over() -> None:
    async with a_rerouted_worker() as rerouted:
        worker = rerouted.worker
        await worker.enqueue("a@one.example")
        await worker.pass_time(SECOND)
        await rerouted.publish(rerouted.made(RerouteOf.SITE, ONE, HOUR))
        await worker.pass_time(6 * SECOND)
        await worker.enqueue("b@one.example", "c@two.example")
        await worker.enqueue("d@three.example")
        await worker.pass_time(SECOND)
        assert rerouted.worker.hops.taken_by.get("a@one.example") == ONE
        assert (
            rerouted.worker.hops.taken_by.get("b@one.example")
            == rerouted.worker.hops.taken_by.get("c@two.example")
            == OTHER
        )
        assert rerouted.worker.hops.taken_by.get("d@three.example") == "mx.three.example"

        await worker.pass_time(HOUR)
        await worker.enqueue("e@one.example")
        await worker.pass_time(SECOND)
        assert rerouted.worker.hops.taken_by.get("e@one.example") == ONE


async def test_mail_that_waits_for_a_site_goes_the_other_way_at_once() -> None:
    async with a_rerouted_worker() as rerouted:
        worker = rerouted.worker
        worker.hops.away = {ONE: "451 4.4.1 connection refused"}
        await worker.enqueue("a@one.example")
        await worker.pass_time(SECOND)
        assert not worker.delivered
        await rerouted.publish(rerouted.made(RerouteOf.SITE, ONE, HOUR))
        await worker.pass_time(6 * SECOND)
        assert rerouted.worker.hops.taken_by.get("a@one.example") == OTHER


async def test_a_domain_is_rerouted_whatever_dns_has_about_it() -> None:
    async with a_rerouted_worker() as rerouted:
        worker = rerouted.worker
        await rerouted.publish(rerouted.made(RerouteOf.DOMAIN, "xn--bcher-kva.example", HOUR))
        await rerouted.publish(rerouted.made(RerouteOf.DOMAIN, "one.example", HOUR, rule="backup"))
        await worker.pass_time(6 * SECOND)
        await worker.enqueue("a@BÜCHER.example")
        await worker.enqueue("b@one.example")
        await worker.enqueue("c@two.example")
        await worker.pass_time(SECOND)
        assert (
            rerouted.worker.hops.taken_by.get("a@BÜCHER.example")
            == rerouted.worker.hops.taken_by.get("b@one.example")
            == OTHER
        )
        assert rerouted.worker.hops.taken_by.get("c@two.example") == ONE
        found = await rerouted.finder.route(RouteRequest("one.example"))
        assert isinstance(found, Route)
        ((hop,),) = found.tiers
        assert hop.next_hop.port == 587
        assert found.explanations[0].subject == "domain one.example"
        assert "rerouted to rule backup until" in found.explanations[0].text
        assert "by an administrator: it is broken" in found.explanations[0].text


async def test_mail_waits_for_a_rule_that_there_is_not() -> None:
    async with a_rerouted_worker() as rerouted:
        await rerouted.publish(rerouted.made(RerouteOf.DOMAIN, "one.example", HOUR, rule="gone"))
        await rerouted.reader.read()
        found = await rerouted.finder.route(RouteRequest("one.example"))

        assert isinstance(found, NoRoute)
        assert found.outcome.text == "451 4.3.5 rerouted to the rule gone, which there is not"


async def test_a_way_that_is_rerouted_itself_is_followed_once() -> None:
    async with a_rerouted_worker() as rerouted:
        await rerouted.publish(rerouted.made(RerouteOf.SITE, ONE, HOUR))
        found = await _site(rerouted)
        await rerouted.publish(rerouted.made(RerouteOf.SITE, found, HOUR, rule="gone"))
        assert await _site(rerouted) == found


async def _site(rerouted: Rerouted) -> str:
    await rerouted.reader.read()
    found = await rerouted.finder.route(RouteRequest("one.example"))
    assert isinstance(found, Route)
    return found.site.name


async def test_what_was_read_holds_while_the_shared_state_is_away_and_ends_in_time() -> None:
    async with a_rerouted_worker() as rerouted:
        worker = rerouted.worker
        await rerouted.publish(rerouted.made(RerouteOf.SITE, ONE, HOUR))
        await worker.pass_time(6 * SECOND)
        worker.process.faults.plan = lambda step: (
            Fault.AWAY if step.operation == "published" else None
        )
        await worker.enqueue("a@one.example")
        await worker.pass_time(SECOND)
        assert rerouted.worker.hops.taken_by.get("a@one.example") == OTHER
        await worker.pass_time(HOUR)
        assert rerouted.reroutes.table.is_empty


async def test_a_worker_that_starts_anew_obeys_before_its_first_mail() -> None:
    async with a_rerouted_worker() as rerouted:
        await rerouted.publish(rerouted.made(RerouteOf.SITE, ONE, HOUR))
        anew, reader = rerouted.anew()
        await reader.read()
        found = anew.table.of_site(ONE)
        assert found is not None
        assert (found.hop, found.reason) == (
            NextHop(OTHER, 2525, TlsMode.ENCRYPTED),
            "it is broken",
        )


async def test_the_mail_of_a_relay_goes_elsewhere() -> None:
    async with a_rerouted_worker() as rerouted:
        relay = NextHop("smtp.relay.example", 2525)
        routes = RelayRoutes(relay, reroutes=lambda: rerouted.reroutes.table)
        request = RouteRequest("one.example")
        await rerouted.publish(rerouted.made(RerouteOf.DOMAIN, "one.example", HOUR))
        await rerouted.reader.read()
        found = routes.known(request)
        assert isinstance(found, DeliveryRoute)
        assert [each.next_hop.host for each in found.hops.values()] == [OTHER]
        assert all(each.next_hop.chunking for each in found.hops.values())
        without = RelayRoutes(replace(relay, chunking=False), None, lambda: rerouted.reroutes.table)
        found = without.known(request)
        assert isinstance(found, DeliveryRoute)
        assert not any(each.next_hop.chunking for each in found.hops.values())
        usual = routes.known(RouteRequest("two.example"))
        assert isinstance(usual, DeliveryRoute)
        assert usual.name == "smtp.relay.example"

        made = rerouted.made(RerouteOf.SITE, "smtp.relay.example", HOUR, rule="backup")
        await rerouted.publish(made)
        await rerouted.reader.read()
        assert isinstance(routes.known(RouteRequest("two.example")), NoRoute)


async def test_a_route_that_was_being_found_when_mail_was_rerouted_is_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with a_rerouted_worker() as rerouted:
        routes, request = FoundRoutes(rerouted.finder, rerouted.clock), RouteRequest("one.example")
        find, goes_on = rerouted.finder.route, asyncio.Event()

        async def late(request: RouteRequest) -> Route | NoRoute:
            found = await find(request)
            await goes_on.wait()
            return found

        monkeypatch.setattr(rerouted.finder, "route", late)
        finding = asyncio.create_task(routes.find(request))
        await asyncio.sleep(0)
        routes.forget()
        goes_on.set()
        await finding
        assert routes.known(request) is None
        await routes.find(request)
        assert routes.known(request) is not None


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", '"x"',
        '{"of": "host", "name": "a", "until": "2030-01-01T00:00:00Z", "reason": "", "rule": "r"}',
        '{"of": "site", "name": "a", "until": "soon", "reason": "", "rule": "r"}',
        '{"of": "site", "name": "a", "until": "2030-01-01T00:00:00Z", "reason": "", "hop": "a b"}',
        '{"of": "site", "name": "a", "until": "2030-01-01T00:00:00Z", "hop": "a:1", "tls": "odd"}',
    ],
)  # fmt: skip
def test_what_is_no_reroute_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="cannot be read"):
        Reroute.read(text)


async def test_no_site_is_taken_for_a_domain() -> None:
    async with a_rerouted_worker() as rerouted:
        made = rerouted.made(RerouteOf.DOMAIN, "one.example", HOUR)
        table = RerouteTable.of([made])

        assert table.of_site("one.example") is None
        assert table.of_domain("one.example") == made
        assert Reroute.read(made.text()) == made
