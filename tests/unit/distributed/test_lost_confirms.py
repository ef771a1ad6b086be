"""The confirm of an enqueue's publish is lost and the publish is repeated: two messages about one
turn come up in any order, close to each other or far apart, and the mail is delivered once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

import pytest

from contract.queue_harness import Consumer
from postroad.adapters.memory.broker import Message
from postroad.adapters.memory.fault_injection import Fault, Plan, Step
from postroad.domain.selection import Selector
from postroad.domain.wire import decode
from support.in_memory_cluster import Post, Process

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)


def confirms_lost(count: int) -> Plan:
    """The broker stores what it is sent, and some confirms never come."""
    left = [count]

    def plan(step: Step) -> Fault | None:
        if step.operation != "publish" or left[0] == 0:
            return None
        left[0] -= 1
        return Fault.ANSWER_LOST

    return plan


async def enqueued_without_confirm(post: Post, *names: str, delay: float = 0) -> Process:
    producer = await post.start()
    producer.gate.plan = confirms_lost(len(names))
    work = asyncio.gather(*(post.enqueue(producer, name, delay=delay) for name in names))
    assert await post.outcome(work, 20 * SECOND)
    work.result()
    return producer


def steps(process: Process, *operations: str) -> list[str]:
    return [step.operation for step in process.gate.steps if step.operation in operations]


async def works(post: Post, process: Process, seconds: float, at_once: int) -> None:
    """Deliver all that comes, several at once, each in some time."""
    places = asyncio.Semaphore(at_once)
    running = set()

    async def deliver(item: object) -> None:
        await post.clock.sleep(timedelta(seconds=seconds))
        post.transmit(item)  # type: ignore[arg-type]
        await item.done()  # type: ignore[attr-defined]
        places.release()

    async for item in process.queue.dequeue(prefetch=at_once):
        await places.acquire()
        running.add(asyncio.ensure_future(deliver(item)))


async def stopped(*works: asyncio.Task[None]) -> None:
    for work in works:
        work.cancel()
    await asyncio.gather(*works, return_exceptions=True)


async def test_both_messages_come_up_together_after_a_backlog(post: Post) -> None:
    await enqueued_without_confirm(post, "mail")
    await post.pass_time(MINUTE)
    first, second = await post.start(), await post.start()
    consumers = [Consumer(post, each.queue, prefetch=1) for each in (first, second)]

    item = await consumers[0].next()
    assert await consumers[1].nothing(2 * SECOND)
    post.transmit(item)
    await item.done()

    assert await consumers[1].nothing(MINUTE)
    assert await post.recover() == []
    assert post.copies("mail") == 1
    post.check_nothing_is_left()
    post.check_marks_have_rows()


async def test_repetition_comes_up_before_the_message_that_it_repeats(post: Post) -> None:
    """As when the first publish waits for the quorum of its queue, and the ladder has one."""
    await enqueued_without_confirm(post, "mail")
    await post.pass_time(MINUTE)
    post.broker.ripen()
    post.broker.ready.reverse()
    assert [decode(each.body).claim for each in post.broker.ready] == [True, False]
    workers = [await post.start(), await post.start()]
    consumers = [Consumer(post, each.queue, prefetch=1) for each in workers]

    for consumer in consumers:
        if not await consumer.nothing(20 * SECOND):
            post.transmit(await consumer.next())
    await post.pass_time(5 * MINUTE)

    assert post.copies("mail") == 1


async def test_first_message_was_not_stored(post: Post) -> None:
    producer = await post.start()
    producer.gate.plan = lambda step: Fault.AWAY if step.operation == "publish" else None
    work = asyncio.ensure_future(post.enqueue(producer, "mail"))
    await post.pass_time(SECOND)
    producer.gate.plan = lambda step: None
    assert await post.outcome(work, 20 * SECOND)

    assert await post.deliver(producer) == ["mail"]
    post.check_nothing_is_left()


async def test_delayed_mail_that_takes_longer_than_the_repetition_is_late(post: Post) -> None:
    await enqueued_without_confirm(post, "mail", delay=8)
    workers = [await post.start(), await post.start()]
    working = [asyncio.ensure_future(works(post, each, seconds=2, at_once=1)) for each in workers]

    await post.pass_time(5 * MINUTE)

    assert post.copies("mail") == 1
    await stopped(*working)


async def test_whatever_waits_in_the_ladder_carries_a_claim(post: Post) -> None:
    """A queue of the ladder that loses its leader may deliver twice, and not tell."""
    producer = await post.start()
    await post.enqueue(producer, "delayed", delay=8)
    (message,) = post.broker.delayed_messages
    post.broker.put(Message(message.message_id, message.body), 8)
    workers = [await post.start(), await post.start()]
    working = [asyncio.ensure_future(works(post, each, seconds=3, at_once=5)) for each in workers]

    await post.pass_time(5 * MINUTE)

    assert post.copies("delayed") == 1
    await stopped(*working)


@pytest.mark.parametrize("seconds", [1, 3, 20])
async def test_broker_node_that_fails_with_many_publishes_unconfirmed(
    post: Post, seconds: float
) -> None:
    """Its consumers are back after a while, having held nothing at that moment."""
    names = [f"mail{number}" for number in range(64)]
    await enqueued_without_confirm(post, *names)
    await post.pass_time(15 * SECOND)
    workers = [await post.start(), await post.start()]
    working = [asyncio.ensure_future(works(post, each, seconds, at_once=20)) for each in workers]

    await post.pass_time(20 * MINUTE)

    assert [post.copies(name) for name in names] == [1] * len(names)
    await stopped(*working)
    assert await post.recover() == []
    post.check_nothing_is_left()


async def test_mail_delivered_within_a_hop_costs_no_transaction_more(post: Post) -> None:
    """A node that fails leaves thousands of repetitions; nearly all find a mark when they come."""
    workers = [await post.start(), await post.start()]
    working = [asyncio.ensure_future(works(post, each, seconds=2, at_once=5)) for each in workers]
    producer = await enqueued_without_confirm(post, "mail")

    await post.pass_time(MINUTE)

    assert post.copies("mail") == 1
    for each in (producer, *workers):
        assert steps(each, "end", "claim") == []
    await stopped(*working)


@pytest.mark.parametrize(
    "meanwhile",
    [
        pytest.param(lambda process: process.queue.remove(Selector.all()), id="remove"),
        pytest.param(lambda process: process.queue.purge(), id="purge"),
    ],
)
async def test_what_was_removed_is_not_brought_back_by_a_repetition(
    post: Post, meanwhile: Callable[[Process], object]
) -> None:
    producer = await enqueued_without_confirm(post, "mail")
    assert await meanwhile(producer) == 1  # type: ignore[misc]

    assert await post.recover() == []
    post.check_nothing_is_left()


async def test_held_mail_is_not_let_go_by_a_repetition(post: Post) -> None:
    producer = await enqueued_without_confirm(post, "mail")
    await producer.queue.hold(Selector.all())

    assert await post.recover() == []
    await producer.queue.release(Selector.all())
    assert await post.recover() == ["mail"]


async def test_repetition_in_the_process_that_has_the_mail_in_hand_waits_for_it(post: Post) -> None:
    producer = await enqueued_without_confirm(post, "mail")
    consumer = Consumer(post, producer.queue)
    item = await consumer.next()

    assert await consumer.nothing(5 * MINUTE)
    assert steps(producer, "end") == []
    post.transmit(item)
    await item.done()
    assert await consumer.nothing(MINUTE)
    post.check_nothing_is_left()
