"""An enqueue fails while a consumer has its mail in hand: it is accepted, or counted, and what the
producer sends again is no second copy without a sign of it (invariant 1)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from unittest.mock import patch

import pytest

from contract.queue_harness import Consumer, letter
from postroad.adapters.memory.fault_injection import Fault, Step, no_fault
from postroad.domain.entries import Turn
from postroad.errors import BrokerUnavailable, ViewUnavailable
from postroad.telemetry import metrics
from support.in_memory_cluster import Before, Post

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)


def unconfirmed(step: Step) -> Fault | None:
    return Fault.ANSWER_LOST if step.operation == "publish" else None


def unwithdrawn() -> float:
    return metrics.UNWITHDRAWN.labels("mail.outgoing")._value.get()  # type: ignore[no-any-return]


async def test_enqueue_whose_mail_is_in_hand_is_accepted(post: Post) -> None:
    """The broker stores what it does not confirm; the delivery takes longer than the deadline."""
    producer, worker = await post.start(), await post.start()
    producer.gate.plan = unconfirmed
    work = asyncio.ensure_future(producer.queue.enqueue(letter("mail")))
    consumer = Consumer(post, worker.queue)
    item = await consumer.next()

    assert await post.outcome(work, 2 * MINUTE)
    work.result()
    post.transmit(item)
    await item.done()
    await consumer.close()
    assert await post.recover() == []
    assert post.copies("mail") == 1
    post.check_nothing_is_left()


@pytest.mark.parametrize("delivered", [False, True], ids=["in hand", "delivered"])
async def test_mail_that_a_consumer_got_just_before_it_was_withdrawn_is_counted(
    post: Post, delivered: bool
) -> None:
    producer, worker = await post.start(), await post.start()
    producer.gate.plan = unconfirmed
    before = unwithdrawn()
    consumer = Consumer(post, worker.queue)

    async def take() -> None:
        assert not await consumer.nothing()
        if delivered:
            producer.gate.before = Before("release_claim", (await consumer.next()).done)

    producer.gate.before = Before("end", take)
    work = asyncio.ensure_future(producer.queue.enqueue(letter("mail")))
    await post.outcome(work, 2 * MINUTE)

    with pytest.raises(BrokerUnavailable):
        work.result()
    await post.pass_time(MINUTE)
    assert unwithdrawn() - before == 1


async def test_mail_in_hand_is_counted_though_its_producer_closes_before_it_can_look_again(
    post: Post,
) -> None:
    producer, worker = await post.start(), await post.start()
    producer.gate.plan = unconfirmed
    before = unwithdrawn()
    consumer = Consumer(post, worker.queue)

    async def take() -> None:
        assert not await consumer.nothing()

    producer.gate.before = Before("end", take)
    work = asyncio.ensure_future(producer.queue.enqueue(letter("mail")))
    await post.outcome(work, 2 * MINUTE)
    with pytest.raises(BrokerUnavailable):
        work.result()

    await producer.queue.close()

    assert unwithdrawn() - before == 1


async def test_enqueue_whose_only_publish_was_slow_is_accepted_when_its_mail_is_in_hand(
    post: Post,
) -> None:
    """The broker stored the message as late as it should have confirmed it."""
    producer, worker = await post.start(), await post.start()
    producer.gate.plan = unconfirmed

    async def slowly(step: Step) -> None:
        if step.operation == "publish":
            await post.clock.sleep(25 * SECOND)

    producer.gate.before = slowly
    work = asyncio.ensure_future(producer.queue.enqueue(letter("mail")))
    consumer = Consumer(post, worker.queue)
    assert not await consumer.nothing(26 * SECOND)
    item = await consumer.next()
    assert await post.outcome(work, 2 * MINUTE)

    work.result()
    post.transmit(item)
    await item.done()
    await consumer.close()
    assert await post.recover() == []
    assert post.copies("mail") == 1
    post.check_nothing_is_left()


async def test_withdrawal_that_ends_long_after_its_mark_leaves_size_as_it_is(post: Post) -> None:
    producer, other = await post.start(), await post.start()
    await post.enqueue(other, "waits", delay=3600)
    producer.gate.plan = lambda step: Fault.AWAY if step.operation == "insert" else None
    work = asyncio.ensure_future(producer.queue.enqueue(letter("mail")))
    await post.outcome(work, 2 * MINUTE)
    with pytest.raises(ViewUnavailable):
        work.result()

    producer.gate.plan = no_fault
    await post.pass_time(MINUTE)

    post.check_marks_have_rows()
    assert (await other.queue.size()).size == 1


async def test_enqueue_without_a_message_is_withdrawn_at_once_and_not_counted(post: Post) -> None:
    producer = await post.start()
    before = unwithdrawn()
    producer.gate.plan = lambda step: Fault.AWAY if step.operation == "publish" else None
    work = asyncio.ensure_future(producer.queue.enqueue(letter("mail")))
    await post.outcome(work, 2 * MINUTE)

    with pytest.raises(BrokerUnavailable):
        work.result()
    await post.pass_time(MINUTE)
    assert unwithdrawn() == before
    assert await post.recover() == []
    post.check_nothing_is_left()


async def test_row_that_a_standing_host_inserts_after_the_withdrawal_waits_for_nothing(
    post: Post,
) -> None:
    """The insert has no answer, and is carried out when the host goes on, seconds later."""
    producer, other = await post.start(), await post.start()
    view = producer.queue._engine.view
    insert, kept = view.insert, list[Turn]()

    async def unanswered(turn: Turn) -> None:
        kept.append(turn)
        raise ViewUnavailable("no answer")

    producer.gate.plan = lambda step: Fault.AWAY if step.operation == "end" else None
    with patch.object(view, "insert", unanswered):
        work = asyncio.ensure_future(producer.queue.enqueue(letter("mail")))
        await post.outcome(work, 2 * MINUTE)
    with pytest.raises(ViewUnavailable):
        work.result()

    producer.gate.plan = no_fault
    await post.pass_time(20 * SECOND)
    await insert(kept[0])
    await post.pass_time(MINUTE)

    assert [each async for each in other.queue.browse()] == []
    assert (await other.queue.size()).size == 0
    assert await post.recover() == []
    assert [each async for each in other.queue.dead_letters()] == []
    post.check_nothing_is_left()
