"""The scheduler drives deliveries over the distributed queue in memory; the test moves the clock,
and next hops answer as it says."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from postroad.bootstrap.targets import rules_of
from postroad.domain.delivery.retries import RetryPlan
from postroad.domain.mail.mail import Mail, Outcome
from postroad.domain.smtp.next_hops import NextHop
from postroad.routing.routes import NoRoute, RoutingPlan
from postroad.routing.securing import MxSecurity
from postroad.routing.tables import RouteRequest, RoutingTable, Rule, SmartHost
from postroad.scheduling.ranking import SchedulerRules
from postroad.settings import Settings
from postroad.worker.route_finder import DeliveryRoute, FoundRoutes, RelayRoutes, RouteFinder
from postroad.worker.runner import FAILING, Consumer
from support.in_memory_cluster import InMemoryCluster, Process
from support.memory.clock import SeededRandomness, settle
from support.memory.connections import Loss, MemoryConnector, MemoryResolver
from support.memory.fault_injection import Step
from support.workers import A_HOP, a_driving

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)


class ReplacedRoutes:
    """Routes that a test replaces."""

    def __init__(self, inner: FoundRoutes) -> None:
        self.inner = inner
        self.gate = asyncio.Event()
        """Cleared, it holds lookups back."""
        self.gate.set()

    def known(self, request: RouteRequest) -> DeliveryRoute | NoRoute | None:
        return self.inner.known(request)

    async def find(self, request: RouteRequest) -> DeliveryRoute | NoRoute:
        inner = self.inner
        await self.gate.wait()
        return await inner.find(request)


class Worker:
    """One worker over a queue in memory."""

    def __init__(
        self,
        cluster: InMemoryCluster,
        process: Process,
        window: int,
        *,
        has_relay: bool,
        rules: SchedulerRules | None,
        hops: MemoryConnector | None = None,
    ) -> None:
        self.cluster, self.process, self.queue = cluster, process, process.queue
        self.hops, self.resolver = hops or MemoryConnector(), MemoryResolver()
        randomness = SeededRandomness(7)
        self.routes = ReplacedRoutes(self._routes(RoutingTable()))
        self.driving = a_driving(
            self.hops,
            RetryPlan(),
            process.clock,
            randomness,
            routes=RelayRoutes(A_HOP) if has_relay else self.routes,
            rules=rules_of(Settings(), A_HOP) if has_relay else rules or SchedulerRules(),
            window=window,
        )
        self.consumer = Consumer(self.queue, self.driving, window=window)
        self.stop = asyncio.Event()

    def _routes(self, table: RoutingTable) -> FoundRoutes:
        finder = RouteFinder(RoutingPlan(table), self.resolver, SeededRandomness(7))
        return FoundRoutes(finder, self.process.clock)

    def reroute(self, host: SmartHost) -> None:
        """Let all mail go by a smart host from now on."""
        self.resolver.add(host.next_hop.host, "192.0.2.250")
        self.routes.inner = self._routes(RoutingTable((Rule("all", tiers=((host,),)),)))
        self.driving.route_again()

    def domain(self, name: str, *hosts: str) -> None:
        """Let a domain have these hosts."""
        self.resolver.add(name, *((10, host) for host in hosts or (f"mx.{name}",)))
        for host in hosts or (f"mx.{name}",):
            self.resolver.add(host, f"192.0.2.{len(self.resolver.asked) % 200 + 1}")

    async def enqueue(
        self, *recipients: str, sender: str = "a@origin.example", priority: int = 0
    ) -> None:
        content = b"Subject: x\r\n\r\nx\r\n"
        await self.queue.enqueue(Mail(sender, recipients, content, priority=priority))

    async def pass_time(self, duration: timedelta) -> None:
        await self.cluster.pass_time(duration)

    @property
    def delivered(self) -> Counter[str]:
        return Counter(each for mail, _ in self.hops.delivered for each in mail.recipients)

    async def waiting(self) -> dict[str, tuple[int, str | None]]:
        """Return the attempts and the last error by the first recipient of what waits."""
        return {
            view.mail.recipients[0]: (view.attempt, view.last_error)
            async for view in self.queue.browse()
        }


@asynccontextmanager
async def a_worker(
    window: int = 800,
    within: float = 0.05,
    *,
    has_relay: bool = False,
    rules: SchedulerRules | None = None,
    hops: MemoryConnector | None = None,
) -> AsyncIterator[Worker]:
    cluster = InMemoryCluster()
    process = await cluster.start()
    worker = Worker(cluster, process, window, has_relay=has_relay, rules=rules, hops=hops)
    running = asyncio.create_task(worker.consumer.run(worker.stop, timedelta(seconds=within)))
    try:
        yield worker
    finally:
        worker.stop.set()
        await running
        await cluster.close()


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it did not come to that")


async def test_the_first_connection_to_a_host_has_little_time_where_half_of_all_are_in_use() -> (
    None
):
    rules = SchedulerRules(4, least_for_new=1.0, least_for_failing=1.0)
    async with a_worker(rules=rules) as worker:
        worker.hops.gate.clear()
        for number in range(4):
            worker.domain(f"d{number}.example")
            await worker.enqueue(f"a@d{number}.example")
        await worker.pass_time(SECOND)
        worker.hops.gate.set()

        assert worker.hops.limits == [None, None, None, 5 * SECOND]


async def test_the_recipients_of_a_mail_go_to_their_sites_and_domains_of_one_site_go_together() -> (
    None
):
    async with a_worker() as worker:
        worker.domain("one.example")
        worker.domain("two.example", "mx.shared.example")
        worker.domain("three.example", "mx.shared.example")
        await worker.enqueue("w@two.example", "x@three.example")  # now the routes are known
        await worker.pass_time(SECOND)
        worker.hops.delivered.clear()
        await worker.enqueue("a@one.example", "b@two.example", "c@three.example")
        await worker.pass_time(SECOND)

        together = sorted(mail.recipients for mail, _ in worker.hops.delivered)
        assert together == [("a@one.example",), ("b@two.example", "c@three.example")]
        assert (await worker.queue.size()).size == 0


async def test_a_dead_hop_blocks_no_other_and_costs_three_connections_in_ten_minutes() -> None:
    async with a_worker() as worker:
        worker.domain("dead.example")
        worker.domain("well.example")
        worker.hops.away["mx.dead.example"] = "451 4.4.1 connection refused"
        for number in range(50):
            await worker.enqueue(f"r{number}@dead.example")
        for number in range(50):
            await worker.enqueue(f"r{number}@well.example")
        await worker.pass_time(SECOND)
        assert len(worker.delivered) == 50

        await worker.pass_time(10 * MINUTE)

        assert worker.hops.opened.count("mx.dead.example") <= 3
        waiting = await worker.waiting()
        assert len(waiting) == 50
        assert set(waiting.values()) == {(0, "451 4.4.1 connection refused")}

        worker.hops.away.clear()
        await worker.pass_time(10 * MINUTE)
        assert worker.delivered == Counter(
            f"r{number}@{site}.example" for number in range(50) for site in ("dead", "well")
        )


async def test_a_next_hop_that_restarts_has_its_mail_within_seconds() -> None:
    async with a_worker() as worker:
        worker.domain("brief.example")
        worker.hops.away["mx.brief.example"] = "451 4.4.1 connection refused"
        await worker.enqueue("a@brief.example")
        await worker.pass_time(5 * SECOND)
        worker.hops.away.clear()
        await worker.pass_time(15 * SECOND)

        assert worker.delivered == {"a@brief.example": 1}
        assert (await worker.queue.size()).size == 0


async def test_a_relay_that_was_away_for_hours_has_its_mail_within_minutes() -> None:
    async with a_worker(has_relay=True) as worker:
        worker.hops.away[A_HOP.host] = "451 4.4.1 connection refused"
        await worker.enqueue("a@one.example")
        await worker.pass_time(10 * 60 * MINUTE)
        assert (await worker.waiting())["a@one.example"][0] == 0

        worker.hops.away.clear()
        await worker.pass_time(11 * MINUTE)

        assert worker.delivered == {"a@one.example": 1}


async def test_what_waits_goes_by_other_routes_as_soon_as_there_are_some() -> None:
    """What a connection has, stays there: it may have been transmitted."""
    async with a_worker() as worker:
        for name in ("slow.example", "dead.example", "well.example"):
            worker.domain(name)
        worker.hops.stuck.add("mx.slow.example")
        worker.hops.away["mx.dead.example"] = "451 4.4.1 connection refused"
        for number in range(100):
            await worker.enqueue(f"s{number}@slow.example", f"d{number}@dead.example")
        await worker.pass_time(5 * SECOND)
        begun = sum(each.connection is not None for each in worker.driving._jobs)
        assert worker.delivered == {}

        worker.reroute(SmartHost(NextHop("other.example")))
        await worker.pass_time(30 * SECOND)

        slow = {each: count for each, count in worker.delivered.items() if each[0] == "s"}
        dead = {each: count for each, count in worker.delivered.items() if each[0] == "d"}
        assert (len(slow), len(dead)) == (100 - begun, 100)
        assert set(worker.delivered.values()) == {1}
        assert {*worker.hops.opened} == {"mx.slow.example", "mx.dead.example", "other.example"}
        await worker.pass_time(30 * MINUTE)
        assert (await worker.waiting()).keys() <= {
            f"s{number}@slow.example" for number in range(100)
        }


async def test_a_look_up_that_is_under_way_is_asked_anew_by_other_routes() -> None:
    async with a_worker() as worker:
        worker.domain("one.example")
        worker.routes.gate.clear()
        await worker.enqueue("a@one.example")
        await settle()

        worker.reroute(SmartHost(NextHop("other.example")))
        worker.routes.gate.set()
        await worker.pass_time(SECOND)

        assert worker.hops.opened == ["other.example"]
        assert worker.delivered == {"a@one.example": 1}


async def test_the_recipients_of_a_dead_hop_wait_alone_and_the_others_never_come_again() -> None:
    async with a_worker() as worker:
        worker.domain("dead.example")
        worker.domain("well.example")
        worker.hops.away["mx.dead.example"] = "451 4.4.1 connection refused"
        worker.hops.outcomes["no@well.example"] = Outcome.failed("550 5.1.1 unknown")
        await worker.enqueue("yes@well.example", "no@well.example", "later@dead.example")
        await worker.pass_time(2 * MINUTE)
        assert await worker.waiting() == {"later@dead.example": (0, "451 4.4.1 connection refused")}

        worker.hops.away.clear()
        await worker.pass_time(30 * MINUTE)

        assert worker.delivered == {"yes@well.example": 1, "later@dead.example": 1}
        dead_letters = [each async for each in worker.queue.dead_letters()]
        assert [(each.mail.recipients, each.reason) for each in dead_letters] == [
            (("no@well.example",), "550 5.1.1 unknown")
        ]


async def test_an_outcome_is_recorded_while_another_site_of_the_mail_is_slow() -> None:
    """A worker that is killed now delivers to the first one no second time."""
    async with a_worker() as worker:
        worker.domain("slow.example")
        worker.domain("well.example")
        worker.hops.stuck.add("mx.slow.example")
        await worker.enqueue("a@well.example", "b@slow.example")
        await until(lambda: bool(worker.delivered))
        await settle()

        [records] = worker.cluster.tables.records.values()
        assert set(records) == {"a@well.example"}


async def test_what_a_connection_says_nothing_about_is_no_attempt() -> None:
    async with a_worker() as worker:
        worker.domain("one.example")
        worker.hops.losses["lost@origin.example"] = Loss.BEFORE
        worker.hops.gate.clear()
        for _ in range(2):
            await worker.enqueue("a@one.example")
        await worker.enqueue("b@one.example", sender="lost@origin.example")
        await settle()
        worker.hops.gate.set()
        await until(lambda: len(worker.hops.opened) == 2)
        worker.hops.losses.clear()
        await worker.pass_time(30 * SECOND)

        assert worker.delivered == {"a@one.example": 2, "b@one.example": 1}


async def test_a_domain_that_does_not_exist_fails_and_one_that_dns_does_not_answer_waits() -> None:
    async with a_worker() as worker:
        worker.resolver.fail("away.example")
        await worker.enqueue("a@none.example", "b@away.example")
        await worker.pass_time(SECOND)

        waiting = await worker.waiting()
        assert set(waiting) == {"b@away.example"}
        assert waiting["b@away.example"][0] == 1
        records = next(iter(worker.cluster.tables.records.values()))
        assert records["a@none.example"].outcome.text.startswith("550 5.1.2")
        assert worker.hops.opened == []


async def test_a_mail_is_out_of_hand_before_rabbitmq_takes_its_consumer_for_broken() -> None:
    """The next hop never answers the end of a mail: it is in doubt; what waits behind it is put
    off, and no attempt is counted."""
    async with a_worker() as worker:
        worker.domain("slow.example")
        worker.hops.stuck.add("mx.slow.example")
        for number in range(100):
            await worker.enqueue(f"r{number}@slow.example")
        await worker.pass_time(24 * MINUTE)
        assert len(worker.driving) == 100

        await worker.pass_time(2 * MINUTE)

        waiting = await worker.waiting()
        assert len(waiting) == 100
        attempts = Counter(attempt for attempt, _ in waiting.values())
        assert 1 <= attempts[1] <= 20  # connections at a time
        assert attempts[0] == 100 - attempts[1]
        assert len(worker.driving) < 100


async def test_mails_of_a_slow_site_do_not_keep_others_from_being_seen() -> None:
    async with a_worker(window=300) as worker:
        worker.domain("slow.example")
        worker.domain("well.example")
        worker.hops.stuck.add("mx.slow.example")
        for number in range(400):
            await worker.enqueue(f"r{number}@slow.example")
        await worker.enqueue("a@well.example")
        await worker.pass_time(SECOND)
        assert not worker.delivered

        await worker.pass_time(2 * MINUTE)

        assert worker.delivered == {"a@well.example": 1}


async def test_sites_failing_leave_the_window_to_others_within_seconds() -> None:
    """One that is slow, and ten that refuse. Their mail does not get less than its share."""
    async with a_worker(window=160) as worker:
        worker.domain("well.example")
        worker.domain("slow.example")
        worker.hops.stuck.add("mx.slow.example")
        for number in range(10):
            worker.domain(f"dead{number}.example")
            worker.hops.away[f"mx.dead{number}.example"] = "451 4.4.1 connection refused"
        for number in range(300):
            name = "slow" if number % 2 else f"dead{number % 10}"
            await worker.enqueue(f"r{number}@{name}.example")
        for number in range(100):
            await worker.enqueue(f"a{number}@well.example")

        await worker.pass_time(15 * SECOND)

        assert len(worker.delivered) == 100
        (slow,) = [each for each in worker.driving.sites() if each.site == "mx.slow.example"]
        assert slow.waiting + slow.at_work >= 20
        reasons = {text for _, text in (await worker.waiting()).values()}
        assert FAILING in reasons


async def test_what_gets_a_connection_while_others_leave_the_window_keeps_it() -> None:
    """Mails for a slow site let an urgent one for a site that failed go first; once that one is put
    off, the connection to the slow site has them."""
    async with a_worker(window=8, rules=SchedulerRules(1, per_destination=1)) as worker:
        for name in ("dead", "failed", "slow"):
            worker.domain(f"{name}.example")
        worker.hops.away["mx.dead.example"] = "451 4.4.1 connection refused"
        worker.hops.unavailable["mx.failed.example"] = "421 4.3.2 later"
        worker.hops.gate.clear()
        await worker.enqueue("first@failed.example")
        await worker.pass_time(5 * SECOND)
        await worker.enqueue("r@dead.example")
        await worker.enqueue("r@failed.example", priority=1)
        await worker.enqueue("r1@slow.example")
        await worker.pass_time(10 * SECOND)
        for number in range(2, 5):
            await worker.enqueue(f"r{number}@slow.example")
        await worker.pass_time(2 * SECOND)
        worker.hops.gate.set()
        await worker.pass_time(MINUTE)

        slow = [f"r{number}@slow.example" for number in range(1, 5)]
        assert [worker.delivered[each] for each in slow] == [1, 1, 1, 1]


async def test_a_next_hop_is_not_failing_because_records_take_long() -> None:
    """Ends of mails wait for the records of those before them."""
    async with a_worker(window=16, rules=SchedulerRules(2)) as worker:
        worker.domain("well.example")
        is_recording = asyncio.Event()

        async def before(step: Step) -> None:
            if step.operation == "mark_delivered":
                await is_recording.wait()

        worker.process.faults.before = before
        for number in range(16):
            await worker.enqueue(f"r{number}@well.example")
        await worker.pass_time(10 * SECOND)
        is_recording.set()
        await worker.pass_time(SECOND)

        assert len(worker.delivered) == 16
        assert not await worker.waiting()


async def test_mails_that_wait_in_flight_cost_few_transactions() -> None:
    """What a mail costs that waits for ten minutes: its claim, which is renewed. No more than 25
    lightweight transactions a second are for as many mails as are in flight by default."""
    in_flight = 150
    async with a_worker(2 * in_flight) as worker:
        worker.domain("slow.example")
        worker.hops.stuck.add("mx.slow.example")
        for number in range(in_flight):
            await worker.enqueue(f"r{number}@slow.example")
        await until(lambda: len(worker.driving) == in_flight)
        before = len(worker.process.faults.steps)
        await worker.pass_time(10 * MINUTE)

        assert len(worker.driving) == in_flight
        steps = Counter(step.operation for step in worker.process.faults.steps[before:])
        assert in_flight <= steps["claim"] <= 25 * 600 * in_flight / Settings().worker.window


async def test_a_stop_finishes_what_connections_have_and_leaves_the_rest_leased() -> None:
    async with a_worker(within=30) as worker:
        worker.domain("one.example")
        worker.hops.gate.clear()
        for number in range(200):
            await worker.enqueue(f"r{number}@one.example")
        await until(lambda: len(worker.driving) == 200)
        await settle()
        worker.stop.set()
        await settle()
        worker.hops.gate.set()
        await until(lambda: len(worker.driving) == 0)

        assert 0 < len(worker.delivered) < 200
        assert (await worker.queue.size()).size == 200 - len(worker.delivered)


@pytest.mark.parametrize(
    ("sender", "sizes"), [("a@origin.example", [1, 1, 1]), (None, [3])], ids=["mail", "report"]
)
async def test_each_recipient_has_a_transmission_where_reverse_paths_name_them(
    sender: str | None, sizes: list[int]
) -> None:
    async with a_worker() as worker:
        worker.domain("one.example")
        plan = RoutingPlan(RoutingTable(), security=MxSecurity(verp=True))
        finder = RouteFinder(plan, worker.resolver, SeededRandomness(7))
        worker.routes.inner = FoundRoutes(finder, worker.process.clock)
        names = tuple(f"{name}@one.example" for name in "abc")
        await worker.queue.enqueue(Mail(sender, names, b"Subject: x\r\n\r\nx\r\n"))
        await worker.pass_time(SECOND)

        assert worker.delivered == Counter(names)
        assert [len(mail.recipients) for mail, _ in worker.hops.delivered] == sizes


@pytest.mark.parametrize("recipients", [1, 250])
async def test_a_mail_for_many_goes_over_its_share_of_connections(recipients: int) -> None:
    async with a_worker() as worker:
        worker.domain("one.example")
        names = [f"r{number}@one.example" for number in range(recipients)]
        await worker.enqueue(*names)
        await worker.pass_time(SECOND)

        assert worker.delivered == Counter(names)
        assert max(len(mail.recipients) for mail, _ in worker.hops.delivered) <= 100
