"""An enqueue fails while a consumer has its mail in flight: it is accepted, or counted, and what
the producer sends again is no second copy without a sign of it (invariant 1)."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from datetime import timedelta
from unittest.mock import patch
from uuid import UUID

import pytest

from contract.queue_harness import Consumer, plain_mail
from postroad.distributed.engine import engine
from postroad.distributed.enqueue import withdrawal
from postroad.distributed.enqueue.withdrawal import IN_FLIGHT, NOT_FOLLOWED, NOT_WITHDRAWN
from postroad.domain.mail.mail import Outcome
from postroad.domain.queues.entries import Entry
from postroad.errors import (
    BrokerRefused,
    BrokerUnavailable,
    CredentialsRefused,
    ExchangeGone,
    NotPublished,
    PostroadError,
    ServerError,
    Unroutable,
    ViewUnavailable,
)
from postroad.ports.mail_queue import Item
from postroad.telemetry import metrics
from support.in_memory_cluster import (
    UNWITHDRAWN_REASONS,
    Before,
    InMemoryCluster,
    Process,
    unwithdrawn,
)
from support.memory import fault_injection
from support.memory.fault_injection import Fault, Plan, Step, away, no_fault

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)


def unconfirmed(step: Step) -> Fault | None:
    return Fault.ANSWER_LOST if step.operation == "publish" else None


def without_messages(step: Step) -> Fault | None:
    return Fault.AWAY if step.operation == "publish" else None


def nth_publish(number: int, fault: Fault) -> Plan:
    """Let the n-th publish go wrong."""
    count = itertools.count(1)
    return lambda step: fault if step.operation == "publish" and next(count) == number else None


def raise_at_publish(producer: Process, errors: Mapping[int, Exception]) -> None:
    """Let the broker answer publishes, by their numbers, with errors."""
    count = itertools.count(1)

    async def before(step: Step) -> None:
        if step.operation == "publish" and (error := errors.get(next(count))) is not None:
            raise error

    producer.faults.before = before


async def enqueue_fails(
    cluster: InMemoryCluster, producer: Process, error: type[PostroadError]
) -> None:
    work = asyncio.ensure_future(producer.queue.enqueue(plain_mail("mail")))
    await cluster.outcome(work, 2 * MINUTE)
    with pytest.raises(error):
        work.result()


async def check_delivered_once(cluster: InMemoryCluster, consumer: Consumer, item: Item) -> None:
    cluster.transmit(item)
    await item.done()
    await consumer.close()
    assert await cluster.recover() == []
    assert cluster.copies("mail") == 1
    cluster.check_nothing_is_left()


async def test_enqueue_whose_mail_is_in_flight_is_accepted(cluster: InMemoryCluster) -> None:
    """The broker stores what it does not confirm; the delivery takes longer than the deadline."""
    producer, worker = await cluster.start(), await cluster.start()
    producer.faults.plan = unconfirmed
    work = asyncio.ensure_future(producer.queue.enqueue(plain_mail("mail")))
    consumer = Consumer(cluster, worker.queue)
    item = await consumer.next()

    assert await cluster.outcome(work, 2 * MINUTE)
    work.result()
    await check_delivered_once(cluster, consumer, item)


@pytest.mark.parametrize("delivered", [False, True], ids=["in flight", "delivered"])
async def test_mail_that_a_consumer_got_just_before_it_was_withdrawn_is_counted(
    cluster: InMemoryCluster, delivered: bool
) -> None:
    producer, worker = await cluster.start(), await cluster.start()
    producer.faults.plan = unconfirmed
    before = unwithdrawn()
    consumer = Consumer(cluster, worker.queue)

    async def take() -> None:
        assert not await consumer.nothing()
        if delivered:
            producer.faults.before = Before("release_claim", (await consumer.next()).done)

    producer.faults.before = Before("end", take)
    await enqueue_fails(cluster, producer, BrokerUnavailable)
    await cluster.pass_time(MINUTE)
    assert unwithdrawn() - before == 1


async def test_mail_that_reached_some_recipients_before_it_was_withdrawn_is_counted(
    cluster: InMemoryCluster,
) -> None:
    """The consumer gives the others up: it leaves neither a claim nor a delivery in the mark."""
    producer, worker = await cluster.start(), await cluster.start()
    producer.faults.plan = unconfirmed
    before = unwithdrawn()
    consumer = Consumer(cluster, worker.queue)

    async def reach_one() -> None:
        item = await consumer.next()
        await item.record({"first@example.net": Outcome.delivered()})
        await item.reject("the other is unknown")

    async def take() -> None:
        assert not await consumer.nothing()
        producer.faults.before = Before("release_claim", reach_one)

    producer.faults.before = Before("end", take)
    recipients = ("first@example.net", "other@example.net")
    work = asyncio.ensure_future(producer.queue.enqueue(plain_mail("mail", recipients=recipients)))
    await cluster.outcome(work, 2 * MINUTE)
    with pytest.raises(BrokerUnavailable):
        work.result()
    await cluster.pass_time(MINUTE)

    assert unwithdrawn() - before == 1


async def test_mail_is_counted_whose_consumer_did_not_reach_the_view_for_a_while(
    cluster: InMemoryCluster,
) -> None:
    """Neither claim nor delivery is there when the producer looks again for the first time."""
    producer, worker = await cluster.start(), await cluster.start()
    producer.faults.plan = unconfirmed
    before = unwithdrawn()
    consumer = Consumer(cluster, worker.queue)
    taken: list[Item] = []

    async def take() -> None:
        taken.append(await consumer.next())
        worker.faults.plan = lambda _: Fault.AWAY

    producer.faults.before = Before("end", take)
    await enqueue_fails(cluster, producer, BrokerUnavailable)
    await cluster.pass_time(MINUTE)
    assert unwithdrawn() == before

    worker.faults.plan = lambda _: None
    await taken.pop().done()
    await cluster.pass_time(30 * MINUTE)
    assert unwithdrawn() - before == 1


@pytest.mark.parametrize("look", ["first", "last"])
async def test_mail_in_flight_is_counted_though_its_producer_closes_before_it_can_look_again(
    cluster: InMemoryCluster, look: str
) -> None:
    """The consumer does not reach the view, so no look shows anything."""
    producer, worker = await cluster.start(), await cluster.start()
    producer.faults.plan = unconfirmed
    before = unwithdrawn()
    consumer = Consumer(cluster, worker.queue)

    async def take() -> None:
        assert not await consumer.nothing()
        worker.faults.plan = away("view")

    producer.faults.before = Before("end", take)
    await enqueue_fails(cluster, producer, BrokerUnavailable)
    if look == "last":
        await cluster.pass_time(MINUTE)
    assert unwithdrawn() == before

    await producer.queue.close()

    assert unwithdrawn() - before == 1


async def test_enqueue_whose_only_publish_was_slow_is_accepted_when_its_mail_is_in_flight(
    cluster: InMemoryCluster,
) -> None:
    """The broker stored the message as late as it should have confirmed it."""
    producer, worker = await cluster.start(), await cluster.start()
    producer.faults.plan = unconfirmed

    async def slowly(step: Step) -> None:
        if step.operation == "publish":
            await cluster.clock.sleep(25 * SECOND)

    producer.faults.before = slowly
    work = asyncio.ensure_future(producer.queue.enqueue(plain_mail("mail")))
    consumer = Consumer(cluster, worker.queue)
    assert not await consumer.nothing(26 * SECOND)
    item = await consumer.next()
    assert await cluster.outcome(work, 2 * MINUTE)

    work.result()
    await check_delivered_once(cluster, consumer, item)


async def test_withdrawal_that_ends_long_after_its_mark_leaves_size_as_it_is(
    cluster: InMemoryCluster,
) -> None:
    producer, other = await cluster.start(), await cluster.start()
    await cluster.enqueue(other, "waits", delay=3600)
    producer.faults.plan = lambda step: Fault.AWAY if step.operation == "insert" else None
    await enqueue_fails(cluster, producer, ViewUnavailable)

    producer.faults.plan = no_fault
    await cluster.pass_time(MINUTE)

    cluster.check_marks_have_rows()
    assert (await other.queue.size()).size == 1


async def test_enqueue_without_a_message_is_withdrawn_at_once_and_not_counted(
    cluster: InMemoryCluster,
) -> None:
    producer = await cluster.start()
    before = unwithdrawn()
    producer.faults.plan = without_messages
    await enqueue_fails(cluster, producer, BrokerUnavailable)
    await cluster.pass_time(MINUTE)
    assert unwithdrawn() == before
    assert await cluster.recover() == []
    cluster.check_nothing_is_left()


@pytest.mark.parametrize("error", [BrokerRefused, CredentialsRefused, Unroutable])
async def test_enqueue_that_the_broker_refuses_fails_at_once(
    cluster: InMemoryCluster, error: type[PostroadError]
) -> None:
    """No message exists, so no consumer is waited for."""
    producer = await cluster.start()
    raise_at_publish(producer, {1: error("no")})
    began = cluster.clock.elapsed()

    with pytest.raises(error):
        await producer.queue.enqueue(plain_mail("mail"))

    assert cluster.clock.elapsed() == began
    assert not cluster.blobs
    assert await cluster.recover() == []
    cluster.check_nothing_is_left()


async def test_enqueue_names_no_error_that_denies_its_first_message(
    cluster: InMemoryCluster,
) -> None:
    """The broker may have the first, though it was not reached since."""
    producer = await cluster.start()
    first = nth_publish(1, Fault.ANSWER_LOST)
    producer.faults.plan = lambda step: first(step) or without_messages(step)
    before = unwithdrawn()
    work = asyncio.ensure_future(producer.queue.enqueue(plain_mail("mail")))
    await cluster.outcome(work, 2 * MINUTE)

    assert type(work.exception()) is BrokerUnavailable
    assert await cluster.recover() == []
    assert unwithdrawn() == before
    cluster.check_nothing_is_left()


async def test_message_that_was_under_way_when_an_exchange_was_missing_is_left_to_a_consumer(
    cluster: InMemoryCluster,
) -> None:
    """The broker may have stored it before: so nothing is withdrawn while a consumer has it."""
    producer, worker = await cluster.start(), await cluster.start()
    producer.faults.plan = unconfirmed
    with patch.dict(fault_injection.UNAVAILABLE, {"broker": ExchangeGone}):
        work = asyncio.ensure_future(producer.queue.enqueue(plain_mail("mail")))
        await cluster.pass_time(SECOND)
        assert not work.done()
        consumer, item = await cluster.take(worker)
        assert await cluster.outcome(work, 2 * MINUTE)

    work.result()
    await check_delivered_once(cluster, consumer, item)


@pytest.mark.parametrize("delay", [timedelta(0), SECOND])
async def test_refusal_of_a_repetition_leaves_the_first_message_to_a_consumer(
    cluster: InMemoryCluster, delay: timedelta
) -> None:
    """The broker has the first, whose confirm was lost; its consumer has a redelivery delay."""
    producer, worker = await cluster.start(), await cluster.start()
    producer.faults.plan = nth_publish(1, Fault.ANSWER_LOST)
    raise_at_publish(producer, {2: BrokerRefused("no")})
    work = asyncio.ensure_future(producer.queue.enqueue(plain_mail("mail"), delay))
    await cluster.pass_time(SECOND + delay)
    assert not work.done()
    consumer, item = await cluster.take(worker)

    assert await cluster.outcome(work, 2 * MINUTE)
    work.result()
    await check_delivered_once(cluster, consumer, item)


async def test_message_that_the_broker_cannot_have_is_no_repetition_when_it_is_sent_again(
    cluster: InMemoryCluster,
) -> None:
    """So it waits for no redelivery delay, and its mail is not replaced."""
    producer, worker = await cluster.start(), await cluster.start()
    producer.faults.plan = nth_publish(1, Fault.AWAY)
    work = asyncio.ensure_future(producer.queue.enqueue(plain_mail("mail")))
    assert await cluster.outcome(work, 2 * SECOND)

    consumer, item = await cluster.take(worker)
    assert item.enqueue_id == work.result()
    await check_delivered_once(cluster, consumer, item)


@pytest.mark.parametrize(("away_for", "counted"), [(10, 0), (60, 1)])
async def test_mail_that_cannot_be_looked_for_at_the_end_of_a_lease_is_counted(
    cluster: InMemoryCluster, away_for: int, counted: int
) -> None:
    producer = await cluster.start()
    producer.faults.plan = unconfirmed
    before = unwithdrawn()
    await enqueue_fails(cluster, producer, BrokerUnavailable)
    producer.faults.plan = away("view")

    await cluster.pass_time(away_for * MINUTE)
    producer.faults.plan = no_fault
    await cluster.pass_time(30 * MINUTE)

    assert unwithdrawn() == before + counted
    assert len(producer.queue._later_looks) == 0


async def fail_many(cluster: InMemoryCluster, producer: Process, count: int) -> None:
    """Let so many enqueues fail at once, and their withdrawals end."""
    works = [asyncio.ensure_future(producer.queue.enqueue(plain_mail("x"))) for _ in range(count)]
    assert await cluster.outcome(asyncio.gather(*works, return_exceptions=True), 2 * MINUTE)
    assert {type(each.exception()) for each in works} <= {BrokerUnavailable, NotPublished}


async def test_failed_enqueues_whose_messages_the_broker_cannot_have_are_not_followed(
    cluster: InMemoryCluster, caplog: pytest.LogCaptureFixture
) -> None:
    producer = await cluster.start()
    producer.faults.plan = away("broker")
    before = unwithdrawn()
    for _ in range(3):
        await fail_many(cluster, producer, 40)
    assert len(producer.queue._later_looks) == 0

    caplog.clear()
    await producer.queue.close()

    assert unwithdrawn() == before
    assert caplog.records == []


async def test_failed_enqueues_that_are_followed_are_bounded_and_the_oldest_are_counted(
    cluster: InMemoryCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(withdrawal, "MAX_FOLLOWED", 40)
    monkeypatch.setattr(withdrawal, "DROPPED", 5)
    producer = await cluster.start()
    producer.faults.plan = unconfirmed
    before = unwithdrawn()
    await fail_many(cluster, producer, 30)
    await cluster.pass_time(MINUTE)
    assert unwithdrawn() == before
    caplog.clear()

    await fail_many(cluster, producer, 21)

    assert len(producer.queue._later_looks) == 36
    assert unwithdrawn() - before == 15
    lines = [each for each in caplog.records if "not followed" in each.getMessage()]
    assert [each.count for each in lines] == [5, 5, 5]  # type: ignore[attr-defined]
    await cluster.pass_time(30 * MINUTE)
    assert len(producer.queue._later_looks) == 0
    assert unwithdrawn() - before == 15


@pytest.mark.parametrize("in_flight", [False, True])
async def test_closing_process_looks_once_more_and_reports_what_it_could_not_follow(
    cluster: InMemoryCluster, caplog: pytest.LogCaptureFixture, in_flight: bool
) -> None:
    producer, worker = await cluster.start(), await cluster.start()
    producer.faults.plan = unconfirmed
    consumer = Consumer(cluster, worker.queue)

    async def take() -> None:
        assert not await consumer.nothing()
        worker.faults.plan = away("view")

    producer.faults.before = Before("end", take)
    await enqueue_fails(cluster, producer, BrokerUnavailable)
    await cluster.pass_time(MINUTE)
    producer.faults.before = None
    await fail_many(cluster, producer, 20)
    await cluster.pass_time(MINUTE)
    if in_flight:
        worker.faults.plan = no_fault
        await (await consumer.next()).done()
    before = {each: unwithdrawn(each) for each in UNWITHDRAWN_REASONS}
    caplog.clear()

    await producer.queue.close()

    counted = {each: unwithdrawn(each) - before[each] for each in UNWITHDRAWN_REASONS}
    assert counted == {NOT_WITHDRAWN: 0, IN_FLIGHT: in_flight, NOT_FOLLOWED: 21 - in_flight}
    assert len([each for each in caplog.records if each.levelname == "WARNING"]) == 1 + in_flight


async def test_process_that_closes_while_the_view_is_away_asks_for_one_portion_only(
    cluster: InMemoryCluster,
) -> None:
    producer = await cluster.start()
    producer.faults.plan = unconfirmed
    await fail_many(cluster, producer, 2 * withdrawal.AT_ONCE)
    before = unwithdrawn(NOT_FOLLOWED)
    producer.faults.plan = away("view")
    steps = len(producer.faults.steps)

    await producer.queue.close()

    assert unwithdrawn(NOT_FOLLOWED) - before == 2 * withdrawal.AT_ONCE
    assert len(producer.faults.steps) - steps == withdrawal.AT_ONCE


async def test_process_closes_though_its_last_looks_meet_an_error_that_postroad_does_not_know(
    cluster: InMemoryCluster,
) -> None:
    producer = await cluster.start()
    producer.faults.plan = unconfirmed
    await enqueue_fails(cluster, producer, BrokerUnavailable)
    before = unwithdrawn(NOT_FOLLOWED)

    async def bug(step: Step) -> None:
        if step.operation == "claim":
            raise RuntimeError("a bug of the driver")

    producer.faults.before = bug
    await producer.queue.close()

    assert unwithdrawn(NOT_FOLLOWED) - before == 1
    with pytest.raises(BrokerUnavailable):
        await producer.queue._engine.broker.publish(UUID(int=1), b"closed")


async def test_withdrawals_that_wait_for_the_view_are_bounded(
    cluster: InMemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not withdrawn is counted already, and maintenance finds its row."""
    monkeypatch.setattr(engine, "MAX_UNTIL_CLOSED", 5)
    producer = await cluster.start()
    producer.faults.plan = lambda step: Fault.AWAY if step.operation in {"publish", "end"} else None
    before = unwithdrawn(NOT_WITHDRAWN)
    await fail_many(cluster, producer, 8)

    assert len(producer.queue._engine._until_closed) == 5
    assert unwithdrawn(NOT_WITHDRAWN) - before == 8


async def test_row_that_a_standing_host_inserts_after_the_withdrawal_waits_for_nothing(
    cluster: InMemoryCluster,
) -> None:
    """The insert has no answer, and is carried out when the host goes on, seconds later."""
    producer, other = await cluster.start(), await cluster.start()
    view = producer.queue._engine.view
    insert, kept = view.insert, list[Entry]()

    async def unanswered(entry: Entry) -> None:
        kept.append(entry)
        raise ViewUnavailable("no answer")

    producer.faults.plan = lambda step: Fault.AWAY if step.operation == "end" else None
    with patch.object(view, "insert", unanswered):
        work = asyncio.ensure_future(producer.queue.enqueue(plain_mail("mail")))
        await cluster.outcome(work, 2 * MINUTE)
    with pytest.raises(ViewUnavailable):
        work.result()

    producer.faults.plan = no_fault
    await cluster.pass_time(20 * SECOND)
    await insert(kept[0])
    await cluster.pass_time(MINUTE)

    assert [each async for each in other.queue.browse()] == []
    assert (await other.queue.size()).size == 0
    assert await cluster.recover() == []
    assert [each async for each in other.queue.dead_letters()] == []
    cluster.check_nothing_is_left()


async def test_withdrawal_is_tried_again_where_the_view_does_not_answer_and_not_counted(
    cluster: InMemoryCluster,
) -> None:
    producer = await cluster.start()
    before, left = unwithdrawn(), [2]

    def away_for_a_moment(step: Step) -> Fault | None:
        left[0] -= step.operation == "end"
        is_away = step.operation == "publish" or (step.operation == "end" and left[0] >= 0)
        return Fault.AWAY if is_away else None

    producer.faults.plan = away_for_a_moment
    await enqueue_fails(cluster, producer, BrokerUnavailable)

    assert left[0] < 0
    assert unwithdrawn() == before
    assert cluster.tables.live() == []


async def test_enqueue_whose_limits_cannot_be_read_behind_its_confirm_is_accepted(
    cluster: InMemoryCluster,
) -> None:
    """The mail is in all three stores. A slow confirm has made the limits too old."""
    producer = await cluster.start()
    before = unwithdrawn()

    async def slowly(step: Step) -> None:
        if step.operation == "publish":
            await cluster.clock.sleep(16 * SECOND)
            producer.faults.plan = lambda each: Fault.AWAY if each.server == "view" else None

    producer.faults.before = slowly
    work = asyncio.ensure_future(producer.queue.enqueue(plain_mail("mail")))
    assert await cluster.outcome(work, 2 * MINUTE)

    work.result()
    assert unwithdrawn() == before
    assert await cluster.recover() == ["mail"]
    cluster.check_nothing_is_left()


@pytest.mark.parametrize(
    ("operation", "reason"),
    [("publish", "broker"), ("insert", "view"), ("put", "blobs")],
)
async def test_a_failed_enqueue_is_counted_by_the_server_that_was_away(
    cluster: InMemoryCluster, operation: str, reason: str
) -> None:
    producer = await cluster.start()
    producer.faults.plan = lambda step: Fault.AWAY if step.operation == operation else None
    counter = metrics.ENQUEUE_FAILURES.labels("mail", "outgoing", reason)
    before = counter._value.get()

    await enqueue_fails(cluster, producer, ServerError)

    assert counter._value.get() == before + 1
