"""Workers obey suspensions, make them from answers, and publish what they know of their sites."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta

from postroad.domain.delivery.sites import (
    MAX_DEFERRAL,
    SiteState,
    SiteView,
    SuspendedBy,
    Suspension,
    read_views,
)
from postroad.domain.mail.mail import Outcome, OutcomeKind, Responder
from postroad.ports.delivery import Topic
from postroad.worker.jobs.admission import AdmissionGate
from postroad.worker.sites.control import (
    MAX_SUSPENDED,
    SharedStateReader,
    SiteControl,
)
from support.memory.fault_injection import Fault, Step
from support.workers import running
from unit.worker.test_driving import MINUTE, SECOND, Worker, a_worker

ONE, TWO = "mx.one.example", "mx.two.example"
BUSY = Outcome(
    OutcomeKind.DEFERRED,
    "421 4.7.0 too many messages from <a@origin.example>",
    responder=Responder(ONE),
)


class Controlled:
    """A worker that obeys suspensions, beside a shared state that the test writes on."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.shared_state = worker.queue.shared_state
        clock = worker.process.clock
        self.control = SiteControl(self.shared_state, clock, "w", watches_replies=True)
        self.reader = SharedStateReader(
            self.shared_state, clock, {Topic.SUSPENSIONS: self.control.obey}
        )
        worker.driving._gate = AdmissionGate(clock, self.control)

    async def suspend(self, site: str, duration: timedelta) -> None:
        until = self.worker.process.clock.now() + duration
        made = Suspension(site, until, "they asked", SuspendedBy.ADMINISTRATOR)
        await self.shared_state.publish(Topic.SUSPENSIONS, site, made.text(), duration)

    async def sites(self) -> dict[str, SiteView]:
        (entry,) = (await self.shared_state.published(Topic.WORKERS)).values()
        return {each.site: each for each in read_views(entry)[0]}


@asynccontextmanager
async def a_controlled_worker() -> AsyncIterator[Controlled]:
    async with a_worker() as worker:
        worker.domain("one.example")
        worker.domain("two.example")
        controlled = Controlled(worker)
        async with running(controlled.reader.run(), controlled.control.run(worker.driving.sites)):
            yield controlled


async def test_a_suspended_site_gets_no_mail_until_it_is_resumed() -> None:
    async with a_controlled_worker() as controlled:
        worker = controlled.worker
        await controlled.suspend(ONE, timedelta(hours=5))
        await worker.pass_time(6 * SECOND)
        await worker.enqueue("a@one.example", "b@two.example")
        await worker.pass_time(60 * MINUTE)

        assert worker.delivered == {"b@two.example": 1}
        assert worker.hops.opened == [TWO]
        assert await worker.waiting() == {"a@one.example": (0, "451 4.3.2 suspended: they asked")}

        await controlled.shared_state.take_down(Topic.SUSPENSIONS, ONE)
        await worker.pass_time(MAX_DEFERRAL * 1.2)
        assert worker.delivered == {"a@one.example": 1, "b@two.example": 1}


async def test_a_suspension_ends_by_itself() -> None:
    async with a_controlled_worker() as controlled:
        worker = controlled.worker
        await controlled.suspend(ONE, 10 * MINUTE)
        await worker.pass_time(6 * SECOND)
        await worker.enqueue("a@one.example")
        await worker.pass_time(9 * MINUTE)
        assert not worker.delivered
        await worker.pass_time(4 * MINUTE)

        assert worker.delivered == {"a@one.example": 1}


async def test_mail_that_waits_for_a_site_is_deferred_when_it_is_suspended() -> None:
    async with a_controlled_worker() as controlled:
        worker = controlled.worker
        worker.hops.gate.clear()
        for number in range(200):
            await worker.enqueue(f"r{number}@one.example", sender=f"s{number}@o.example")
        await worker.pass_time(SECOND)
        in_flight = len(worker.driving)
        await controlled.suspend(ONE, timedelta(hours=1))
        await worker.pass_time(7 * SECOND)

        assert in_flight == 200
        assert len(worker.driving) <= 120, "what waited is deferred"
        worker.hops.gate.set()
        await worker.pass_time(SECOND)
        assert 0 < sum(worker.delivered.values()) <= 120, "what a connection had went on"
        assert {attempt for attempt, _ in (await worker.waiting()).values()} == {0}


async def test_answers_suspend_a_site_for_every_process() -> None:
    async with a_controlled_worker() as controlled:
        worker = controlled.worker
        worker.hops.outcomes["a@one.example"] = BUSY
        await worker.enqueue("a@one.example")
        await worker.pass_time(6 * SECOND)

        published = await controlled.shared_state.published(Topic.SUSPENSIONS)
        found = Suspension.of(ONE, published[ONE])
        assert found.by is SuspendedBy.REPLIES
        assert "421 rate: too many messages" in found.reason
        assert "origin.example" not in published[ONE]
        await worker.enqueue("b@one.example")
        await worker.pass_time(5 * MINUTE)
        assert not worker.delivered
        await worker.pass_time(20 * MINUTE)
        assert worker.delivered["b@one.example"] == 1


async def test_the_shared_state_has_what_a_worker_knows_of_its_sites() -> None:
    async with a_controlled_worker() as controlled:
        worker = controlled.worker
        worker.hops.away[TWO] = "451 4.4.1 connection to 192.0.2.9 refused"
        worker.hops.outcomes["a@one.example"] = Outcome.deferred(
            "450 4.2.1 <a@one.example> is busy"
        )
        await worker.enqueue("a@one.example")
        await worker.enqueue("b@two.example")
        await worker.pass_time(16 * SECOND)
        found = await controlled.sites()

        assert found[ONE].state is SiteState.IDLE
        assert found[ONE].connections == 1
        assert found[ONE].reply == "450 4.2.1 <address> is busy"
        assert found[TWO].state in (SiteState.BACKING_OFF, SiteState.ACTIVE, SiteState.WAITING)
        assert found[TWO].reply == "451 4.4.1 connection to <host> refused"
        await controlled.suspend(ONE, 10 * MINUTE)
        await worker.pass_time(20 * SECOND)
        found = await controlled.sites()
        assert (found[ONE].state, found[ONE].reason) == (SiteState.SUSPENDED, "they asked")

        await controlled.control.close()
        assert not await controlled.shared_state.published(Topic.WORKERS)


async def test_what_was_read_holds_while_the_shared_state_is_away() -> None:
    async with a_controlled_worker() as controlled:
        worker = controlled.worker
        await controlled.suspend(ONE, 10 * MINUTE)
        await worker.pass_time(6 * SECOND)
        worker.process.faults.plan = lambda step: (
            Fault.AWAY if step.operation in ("published", "publish_entry") else None
        )
        await worker.enqueue("a@one.example")
        await worker.pass_time(8 * MINUTE)
        assert not worker.delivered
        await worker.pass_time(6 * MINUTE)

        assert worker.delivered == {"a@one.example": 1}


async def test_answers_shorten_no_suspension_of_an_administrator() -> None:
    async with a_controlled_worker() as controlled:
        worker = controlled.worker
        worker.hops.outcomes["a@one.example"] = BUSY
        worker.hops.gate.clear()
        await worker.enqueue("a@one.example")
        await worker.pass_time(SECOND)
        await controlled.suspend(ONE, timedelta(hours=5))  # no worker has read it yet
        worker.hops.gate.set()
        await worker.pass_time(SECOND)
        assert controlled.control.suspended(ONE) is not None
        await worker.pass_time(6 * SECOND)

        published = await controlled.shared_state.published(Topic.SUSPENSIONS)
        assert Suspension.of(ONE, published[ONE]).by is SuspendedBy.ADMINISTRATOR


async def test_what_answers_led_to_holds_though_the_shared_state_goes_away_amid_it() -> None:
    """Two sites are to be put up; the shared state is away from the second one on."""
    async with a_controlled_worker() as controlled:
        worker = controlled.worker
        for site in (ONE, TWO):
            busy = replace(BUSY, responder=Responder(site))
            controlled.control.on_outcomes(site, (busy,))
        posts = 0

        def plan(step: Step) -> Fault | None:
            nonlocal posts
            posts += step.operation == "publish_entry"
            is_away = step.operation in ("published", "publish_entry") and posts > 1
            return Fault.AWAY if is_away else None

        worker.process.faults.plan = plan
        await worker.pass_time(MINUTE)
        assert controlled.control.suspended(ONE) is not None
        assert controlled.control.suspended(TWO) is not None

        await worker.pass_time(10 * MINUTE)
        assert controlled.control.suspended(ONE) is controlled.control.suspended(TWO) is None
        assert not controlled.control._own, (
            "what is over is not kept for a shared state that is away"
        )


async def test_answers_suspend_a_bounded_number_of_sites() -> None:
    """A sender may have as many domains as there are names, each with a server that is busy."""
    async with a_controlled_worker() as controlled:
        for number in range(MAX_SUSPENDED + 5):
            controlled.control.on_outcomes(f"mx{number}.example", (BUSY,))
        await controlled.reader.read()

        assert len(await controlled.shared_state.published(Topic.SUSPENSIONS)) == MAX_SUSPENDED
        controlled.control.on_outcomes("one-more.example", (BUSY,))
        assert controlled.control.suspended("one-more.example") is None
        await controlled.worker.pass_time(11 * MINUTE)
        controlled.control.on_outcomes("one-more.example", (BUSY,))
        assert controlled.control.suspended("one-more.example") is not None


async def test_what_administrators_post_is_obeyed_where_nothing_can_be_written() -> None:
    async with a_controlled_worker() as controlled:
        worker, control = controlled.worker, controlled.control
        for number in range(2):
            await controlled.suspend(f"former{number}.example", MINUTE * 60)
        await controlled.reader.read()
        control.new()
        await controlled.shared_state.take_down(Topic.SUSPENSIONS, "former0.example")
        await controlled.suspend(TWO, MINUTE * 60)
        for _ in range(100):
            control.on_outcomes(ONE, (BUSY,))
        worker.process.faults.plan = lambda step: (
            Fault.AWAY if step.operation == "publish_entry" else None
        )
        await controlled.reader.read()

        shut = [each for each in (ONE, TWO, "former1.example") if control.suspended(each)]
        assert shut == [ONE, TWO, "former1.example"]
        assert control.suspended("former0.example") is None
        assert sorted(control.new()) == [ONE, TWO]

        worker.process.faults.plan = lambda _: None
        await controlled.reader.read()
        assert ONE in await controlled.shared_state.published(Topic.SUSPENSIONS)
        assert control.new() == []
