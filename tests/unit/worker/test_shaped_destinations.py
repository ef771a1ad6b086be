"""Destinations with a schedule, rules of suspension and source addresses of their own."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import timedelta

from postroad.delivery_settings.delivery import DeliverySettings
from postroad.domain.delivery.retries import RetryPlan
from postroad.domain.mail.mail import Outcome, OutcomeKind, Responder
from postroad.domain.smtp.next_hops import NextHop, SourceAddresses
from postroad.routing.routes import RoutingPlan
from postroad.routing.securing import MxSecurity
from postroad.routing.tables import RoutingTable
from postroad.worker.route_finder import FoundRoutes, RelayRoutes, RouteFinder
from support.memory.clock import SeededRandomness
from unit.worker.test_driving import MINUTE, SECOND, Worker, a_worker
from unit.worker.test_suspended_sites import BUSY, ONE, a_controlled_worker

LATER = Outcome.deferred("451 4.3.0 later")
PLAN = RetryPlan()


def retry(worker: Worker, *entries: dict[str, object]) -> None:
    settings = DeliverySettings.model_validate({"retries": entries})
    worker.driving.retry(settings.retry_rules(PLAN))


async def attempts(worker: Worker, recipient: str) -> int:
    return (await worker.waiting())[recipient][0]


async def test_a_server_has_lanes_of_its_own_whatever_the_domain() -> None:
    async with a_worker() as worker:
        retry(worker, {"servers": ["*.provider.example"], "lanes": ["10m", "2h"]})
        worker.domain("one.example", "mx.provider.example")
        worker.domain("two.example")
        for recipient in ("a@one.example", "b@two.example"):
            worker.hops.outcomes[recipient] = LATER
            await worker.enqueue(recipient)
        await worker.pass_time(8 * MINUTE)
        assert await attempts(worker, "a@one.example") == 1
        assert await attempts(worker, "b@two.example") == 3
        await worker.pass_time(5 * MINUTE)
        assert await attempts(worker, "a@one.example") == 2
        await worker.pass_time(60 * MINUTE)
        assert await attempts(worker, "a@one.example") == 2


async def test_a_mail_to_several_destinations_comes_again_when_the_first_of_them_has_it() -> None:
    async with a_worker() as worker:
        retry(worker, {"domains": ["one.example"], "lanes": ["3h"]})
        worker.domain("one.example")
        worker.domain("two.example")
        for recipient in ("a@one.example", "b@two.example"):
            worker.hops.outcomes[recipient] = LATER
        await worker.enqueue("a@one.example", "b@two.example")
        await worker.pass_time(2 * MINUTE)

        assert set((await worker.waiting()).values()) == {(2, LATER.text)}


async def test_recipients_of_a_destination_are_given_up_at_its_age_and_others_go_on() -> None:
    async with a_worker() as worker:
        retry(worker, {"domains": ["*.one.example", "one.example"], "maxAge": "10m"})
        for domain in ("one.example", "two.example"):
            worker.domain(domain)
        for recipient in ("a@one.example", "b@two.example", "c@one.example"):
            worker.hops.outcomes[recipient] = LATER
        await worker.enqueue("a@one.example", "b@two.example")
        await worker.enqueue("c@one.example")
        worker.hops.away["mx.one.example"] = "451 4.4.1 connection refused"
        await worker.pass_time(70 * MINUTE)

        waiting = [view.mail.recipients async for view in worker.queue.browse()]
        assert waiting == [("b@two.example",)]
        (dead,) = [each async for each in worker.queue.dead_letters()]
        assert dead.mail.recipients == ("c@one.example",)
        assert (dead.reason or "").startswith("554 5.4.7 not delivered within 10m: 451 4.4.1")
        worker.hops.outcomes.clear()
        await worker.pass_time(timedelta(hours=5))
        assert worker.delivered == {"b@two.example": 1}


async def test_replies_of_a_server_suspend_by_its_own_rule_or_never() -> None:
    rules = [
        {"servers": ["mx.two.example"], "reason": "Rate", "duration": "0s"},
        {"servers": ["*.one.example"], "code": 451, "reason": "Rate", "duration": "3h"},
    ]
    slow = Outcome(OutcomeKind.DEFERRED, "451 4.7.0 too many messages", responder=Responder(ONE))
    two = replace(BUSY, responder=Responder("mx.two.example"))
    async with a_controlled_worker() as controlled:
        worker, control = controlled.worker, controlled.control
        control.use(DeliverySettings.model_validate({"suspensions": rules}).reply_rules())
        worker.hops.outcomes |= {"a@one.example": slow, "b@two.example": two}
        await worker.enqueue("a@one.example")
        await worker.enqueue("b@two.example")
        await worker.pass_time(6 * SECOND)

        assert control.suspended("mx.two.example") is None
        suspension = control.suspended(ONE)
        assert suspension is not None
        assert suspension.until > worker.process.clock.now() + timedelta(hours=2)


POOL = SourceAddresses(
    ("192.0.2.1",), "a.example", 9, (SourceAddresses(("192.0.2.2",), "b.example", 1),)
)


async def test_mails_go_from_the_sources_of_a_pool_by_weight_and_again_from_the_same() -> None:
    async with a_worker() as worker:
        plan = RoutingPlan(RoutingTable(), security=MxSecurity(source=POOL))
        finder = RouteFinder(plan, worker.resolver, SeededRandomness(7))
        worker.routes.inner = FoundRoutes(finder, worker.process.clock)
        worker.domain("one.example")
        names = [f"r{number}@one.example" for number in range(200)]
        worker.hops.outcomes |= dict.fromkeys(names, LATER)
        for each in names:
            await worker.enqueue(each)
        await worker.pass_time(20 * SECOND)
        first = dict(worker.hops.sources)
        (site,) = worker.driving.sites()
        assert site.connections == len(worker.hops.opened) >= 2, "those from both"
        worker.hops.outcomes.clear()
        await worker.pass_time(5 * MINUTE)

        assert len(worker.delivered) == 200
        counts = Counter(first[each] for each in names)
        assert set(counts) == {"192.0.2.1", "192.0.2.2"}
        assert 5 <= counts["192.0.2.2"] <= 40
        assert {each: worker.hops.sources[each] for each in names} == first


def test_a_relay_may_have_a_pool_and_keeps_its_name() -> None:
    routes = RelayRoutes(NextHop("relay.example", source=POOL))
    assert routes.site == "relay.example"
