"""An administrator lets workers try a site now, and its mail comes at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial

import pytest

from postroad.administration.sites import ANSWERED_WITHIN, try_site
from postroad.domain.delivery.sites import FlushAck, SuspendedBy, Suspension
from postroad.domain.mail.mail import Outcome
from postroad.errors import InvalidInput, ViewUnavailable
from postroad.ports.delivery import Topic
from postroad.worker.sites.control import FlushAcks, SharedStateReader, SiteControl
from support.memory.fault_injection import Fault
from support.workers import running
from unit.worker.test_driving import MINUTE, SECOND, Worker, a_worker

ONE, TWO = "mx.one.example", "mx.shared.example"
AWAY = "451 4.4.1 connection refused"


@asynccontextmanager
async def an_answering_worker(*, relay: str | None = None) -> AsyncIterator[Worker]:
    async with a_worker(has_relay=relay is not None) as worker:
        worker.domain("one.example")
        worker.domain("two.example", TWO)
        worker.domain("three.example", TWO)
        shared_state, clock = worker.queue.shared_state, worker.process.clock
        control = SiteControl(shared_state, clock, "w", watches_replies=False)
        acknowledge = partial(
            FlushAcks(shared_state, "w", relay=lambda: relay).acknowledge, worker.driving.try_now
        )
        reader = SharedStateReader(shared_state, clock, {Topic.FLUSHES: acknowledge})
        async with running(control.run(worker.driving.sites), reader.run()):
            yield worker


async def flush(worker: Worker, site: str) -> tuple[int, tuple[str, ...]]:
    asked = asyncio.create_task(try_site(worker.queue.shared_state, worker.process.clock, site))
    await worker.pass_time(ANSWERED_WITHIN + SECOND)
    tried = await asked
    return await worker.queue.flush(tried.selector), tried.problems


async def test_the_mail_of_a_site_is_tried_at_once_and_its_failures_are_forgotten() -> None:
    """Its destination has failed until it backs off for an hour; mail for others waits on."""
    async with an_answering_worker() as worker:
        worker.hops.away = {TWO: AWAY, ONE: AWAY}
        await worker.enqueue("b@two.example")
        await worker.enqueue("c@three.example")
        await worker.enqueue("a@one.example")
        await worker.pass_time(timedelta(hours=9))
        assert worker.driving._scheduler.look_at(_name(worker, TWO)).backoff_until is not None
        worker.hops.away = {}
        await worker.pass_time(SECOND)
        assert not worker.delivered

        assert await flush(worker, TWO) == (2, ())
        await worker.pass_time(2 * SECOND)

        assert worker.delivered == {"b@two.example": 1, "c@three.example": 1}
        assert not {key for key in await worker.waiting() if "one" not in key}


def _name(worker: Worker, site: str) -> str:
    (name,) = worker.driving._book.destinations(site)
    return name


async def test_mail_in_flight_that_waits_for_a_rest_goes_at_once() -> None:
    async with an_answering_worker() as worker:
        worker.hops.away = {ONE: AWAY}
        await worker.enqueue("a@one.example")
        await worker.pass_time(SECOND)
        assert len(worker.driving) == 1
        assert worker.driving._backing_off
        worker.hops.away = {}

        assert worker.driving.try_now(ONE) == ["one.example"]
        await worker.pass_time(timedelta(seconds=0.1))

        assert worker.delivered == {"a@one.example": 1}
        assert not worker.driving._backing_off


async def test_all_mail_of_a_worker_with_a_relay_is_that_of_its_site() -> None:
    async with an_answering_worker(relay="hop.example") as worker:
        worker.hops.outcomes["a@one.example"] = Outcome.deferred("450 4.2.1 busy")
        await worker.enqueue("a@one.example")
        await worker.pass_time(6 * SECOND)
        assert await flush(worker, "hop.example") == (1, ())


async def test_mail_that_is_rerouted_from_a_relay_is_not_all_mail() -> None:
    async with a_worker() as worker:
        shared_state = worker.queue.shared_state
        acks = FlushAcks(shared_state, "w", relay=lambda: "hop.example")
        await acks.acknowledge(lambda _: ["one.example"], {ONE: "1"})
        (text,) = (await shared_state.published(Topic.FLUSHED)).values()
        assert not FlushAck.of(text).is_all


async def test_a_site_that_no_worker_knows_is_refused() -> None:
    async with an_answering_worker() as worker:
        await worker.pass_time(SECOND)
        with pytest.raises(InvalidInput, match="no worker has had mail for a site nowhere"):
            await flush(worker, "nowhere")


async def test_a_suspended_site_is_refused() -> None:
    async with an_answering_worker() as worker:
        until = worker.process.clock.now() + timedelta(days=10_000)  # by the machine's clock, too
        made = Suspension(ONE, until, "they asked", SuspendedBy.ADMINISTRATOR)
        await worker.queue.shared_state.publish(Topic.SUSPENSIONS, ONE, made.text(), MINUTE)
        with pytest.raises(InvalidInput, match=r"gets no mail until .*: they asked"):
            await try_site(worker.queue.shared_state, worker.process.clock, ONE)


async def test_a_worker_that_does_not_answer_is_named_and_waited_for_a_time() -> None:
    async with an_answering_worker() as worker:
        await worker.queue.shared_state.publish(Topic.WORKERS, "gone", "{}", MINUTE)
        await worker.enqueue("a@one.example")
        await worker.pass_time(6 * SECOND)
        began = worker.process.clock.elapsed()
        _, problems = await flush(worker, ONE)

        assert problems == ("the worker gone has not answered",)
        assert worker.process.clock.elapsed() - began < ANSWERED_WITHIN + 2 * SECOND


async def test_a_request_is_acknowledged_once_and_a_later_one_again() -> None:
    async with a_worker() as worker:
        asked: list[str] = []

        def try_now(site: str) -> list[str]:
            asked.append(site)
            return [f"d{n}.example" for n in range(2003)]

        shared_state = worker.queue.shared_state
        acknowledge = partial(FlushAcks(shared_state, "w", relay=lambda: None).acknowledge, try_now)
        for published in ({ONE: "1"}, {ONE: "1"}, None):
            await acknowledge(published)
        assert asked == [ONE]
        worker.process.faults.plan = lambda _: Fault.AWAY
        with pytest.raises(ViewUnavailable):
            await acknowledge({ONE: "2"})
        worker.process.faults.plan = lambda _: None
        await acknowledge({ONE: "2"})
        assert asked == [ONE, ONE, ONE]
        (text,) = (await shared_state.published(Topic.FLUSHED)).values()
        found = FlushAck.of(text)
        assert (found.number, len(found.domains), found.more) == ("2", 2000, 3)


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", '{"worker": "w", "domains": [1]}',
        '{"worker": "w", "site": "s", "number": "1", "domains": [], "more": Infinity}',
    ],
)  # fmt: skip
def test_what_is_no_acknowledgement_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="cannot be read"):
        FlushAck.of(text)


def test_an_acknowledgement_is_read_as_it_was_written() -> None:
    made = FlushAck("w", "site", "1", ("a.example",), 2, True)
    assert FlushAck.of(made.text()) == made
