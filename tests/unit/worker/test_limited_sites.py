"""A worker keeps to limits by rate, and blocks no mail that is under none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from postroad.delivery_settings.delivery import DeliverySettings
from postroad.delivery_settings.shaping import ServerLimits
from postroad.domain.delivery.paces import LimitedBy, LimitRule
from postroad.domain.smtp.next_hops import HopTimeouts
from postroad.domain.values.domain_patterns import DomainPatterns
from postroad.worker.jobs.admission import UNSHARED, AdmissionGate
from postroad.worker.sites.rate_limiter import RateLimiter, held_of
from support.memory.fault_injection import Fault
from unit.worker.test_driving import MINUTE, SECOND, Worker, a_worker

LIMIT = LimitRule("one", LimitedBy.SITE, 60, 1, frozenset({"one.example"}))


@asynccontextmanager
async def a_limited_worker(
    most_held: int, window: int = 800, limit: LimitRule = LIMIT
) -> AsyncIterator[Worker]:
    async with a_worker(window) as worker:
        worker.domain("one.example")
        worker.domain("two.example")
        clock = worker.process.clock
        pacer = RateLimiter((limit,), worker.queue.shared_state, clock, "w", most_held)
        worker.driving._gate = AdmissionGate(clock, pacer=pacer)
        running = asyncio.create_task(pacer.run())
        try:
            yield worker
        finally:
            running.cancel()
            await asyncio.wait((running,))


def to(worker: Worker, domain: str) -> int:
    return sum(count for each, count in worker.delivered.items() if each.endswith(domain))


async def test_a_limited_site_gets_its_mails_evenly_and_others_at_once() -> None:
    async with a_limited_worker(most_held=200) as worker:
        for number in range(150):
            await worker.enqueue(f"r{number}@one.example", f"r{number}@two.example")
        await worker.pass_time(6 * SECOND)
        assert to(worker, "two.example") == 150
        for minute in (1, 2):
            await worker.pass_time(MINUTE)
            assert abs(to(worker, "one.example") - 60 * minute) <= 6
        await worker.pass_time(MINUTE)

        assert set(worker.delivered.values()) == {1}
        assert to(worker, "one.example") == 150
        assert (await worker.queue.size()).size == 0


async def test_a_limit_of_a_provider_holds_for_all_domains_with_its_servers() -> None:
    limit = LimitRule(
        "provider", LimitedBy.RULE, 60, 1, servers=DomainPatterns.of(["*.provider.example"])
    )
    async with a_limited_worker(most_held=200, limit=limit) as worker:
        customers = "three.example", "four.example"
        for domain in customers:
            worker.domain(domain, f"{domain.partition('.')[0]}.mx.provider.example")
        for number in range(40):
            await worker.enqueue(*(f"r{number}@{domain}" for domain in (*customers, "one.example")))
        await worker.pass_time(6 * SECOND)
        assert to(worker, "one.example") == 40
        await worker.pass_time(MINUTE)

        assert abs(sum(to(worker, domain) for domain in customers) - 60) <= 6


async def test_connections_to_a_server_with_limits_end_after_so_many_mails() -> None:
    entry = {"servers": ["*.one.example"], "maxConnections": 1, "maxMails": 5}
    limits = DeliverySettings.model_validate({"connections": [entry]}).connection_limits()
    async with a_worker(window=800) as worker:
        worker.driving.limit(limits)
        worker.domain("one.example")
        worker.domain("two.example")
        for number in range(20):
            await worker.enqueue(f"r{number}@one.example")
            await worker.enqueue(f"r{number}@two.example")
        await worker.pass_time(6 * SECOND)

        assert (to(worker, "one.example"), to(worker, "two.example")) == (20, 20)
        assert worker.hops.opened.count("mx.one.example") == 20 / 5


def limits_of(**entry: object) -> ServerLimits | None:
    entry = {"servers": ["*.one.example"], **entry}
    return DeliverySettings.model_validate({"connections": [entry]}).connection_limits()


async def test_a_server_gets_as_many_connections_a_minute_as_it_may_have() -> None:
    async with a_worker(window=800) as worker:
        worker.driving.limit(limits_of(maxConnections=20, maxMails=1, perMinute=6))
        worker.domain("one.example")
        worker.domain("two.example")
        for number in range(12):
            await worker.enqueue(f"r{number}@one.example")
            await worker.enqueue(f"r{number}@two.example")
        await worker.pass_time(6 * SECOND)
        assert (to(worker, "one.example"), to(worker, "two.example")) == (1, 12)
        await worker.pass_time(MINUTE)
        assert to(worker, "one.example") in (6, 7)
        await worker.pass_time(MINUTE)

        assert to(worker, "one.example") == 12
        assert worker.hops.opened.count("mx.one.example") == 12


async def test_a_server_gets_so_many_recipients_at_a_time_and_has_its_own_times() -> None:
    async with a_worker(window=800) as worker:
        worker.driving.limit(limits_of(maxRecipients=2, timeouts={"greeting": "30s"}))
        worker.domain("one.example")
        worker.domain("two.example")
        for domain in ("one.example", "two.example"):
            await worker.enqueue(*(f"r{number}@{domain}" for number in range(5)))
        await worker.pass_time(6 * SECOND)

        sizes = [len(mail.recipients) for mail, _ in worker.hops.delivered]
        assert sorted(sizes) == [1, 2, 2, 5]
        times = dict(zip(worker.hops.opened, worker.hops.times, strict=True))
        assert times["mx.one.example"] == HopTimeouts(greeting=30 * SECOND)
        assert times["mx.two.example"] is None


async def test_what_a_worker_does_not_hold_comes_again_in_time_without_an_attempt() -> None:
    async with a_limited_worker(most_held=20) as worker:
        for number in range(200):
            await worker.enqueue(f"r{number}@one.example")
        await worker.pass_time(10 * SECOND)
        assert len(worker.driving) <= 25
        waiting = await worker.waiting()
        assert {attempt for attempt, _ in waiting.values()} == {0}
        await worker.pass_time(2 * MINUTE)
        assert to(worker, "one.example") >= 110
        await worker.pass_time(2 * MINUTE)

        assert to(worker, "one.example") == 200
        assert set(worker.delivered.values()) == {1}


async def test_a_worker_that_stops_gives_back_what_it_holds() -> None:
    async with a_limited_worker(most_held=200) as worker:
        for number in range(30):
            await worker.enqueue(f"r{number}@one.example")
        await worker.pass_time(SECOND)
        assert len(worker.driving) >= 25
        worker.stop.set()
        await worker.pass_time(SECOND)

        assert len(worker.driving) == 0
        assert (await worker.queue.size()).size == 30 - to(worker, "one.example")


async def test_other_routes_defer_no_mail_that_is_held() -> None:
    """What is held is dropped and taken again, and must not stand twice in what may be held."""
    async with a_limited_worker(most_held=20) as worker:
        for number in range(15):
            await worker.enqueue(f"r{number}@one.example")
        await worker.pass_time(SECOND)
        held = len(worker.driving)
        assert held >= 14

        worker.driving.route_again()
        await worker.pass_time(SECOND)

        assert len(worker.driving) >= held - 2, "a mail goes in a second"
        await worker.pass_time(20 * SECOND)
        assert to(worker, "one.example") == 15


async def test_mail_that_waits_for_a_shared_state_has_that_as_its_error() -> None:
    async with a_limited_worker(most_held=1) as worker:
        worker.process.faults.plan = lambda step: (
            Fault.AWAY if step.operation in ("published", "publish_entry") else None
        )
        await worker.pass_time(SECOND)
        for number in range(3):
            await worker.enqueue(f"r{number}@one.example")
        await worker.pass_time(5 * SECOND)

        assert not worker.delivered
        errors = [error for _, error in (await worker.waiting()).values()]
        assert sorted(errors, key=str) == [UNSHARED, UNSHARED, None]


@pytest.mark.parametrize("window", [2, 8, 40])
async def test_mail_under_a_slow_limit_leaves_places_to_the_others(window: int) -> None:
    async with a_limited_worker(held_of(window), window) as worker:
        worker.process.faults.plan = lambda step: (  # nothing goes under the limit
            Fault.AWAY if step.operation in ("published", "publish_entry") else None
        )
        for number in range(50):
            await worker.enqueue(f"r{number}@one.example")
        await worker.enqueue("a@two.example")
        await worker.pass_time(20 * SECOND)

        assert worker.delivered == {"a@two.example": 1}
