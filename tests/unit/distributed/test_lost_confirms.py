"""The confirm of an enqueue's publish is lost and the publish is repeated: two messages about one
entry come up in any order, close to each other or far apart, and the mail is delivered once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

import pytest

from contract.queue_harness import Consumer
from postroad.adapters.memory.broker import Message
from postroad.domain.queues.references import decode
from postroad.domain.queues.selection import Selector
from postroad.telemetry import metrics
from support.in_memory_cluster import InMemoryCluster, Process
from support.memory.fault_injection import Fault, Plan, Step

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


async def enqueued_without_confirm(
    cluster: InMemoryCluster, *names: str, delay: float = 0
) -> Process:
    producer = await cluster.start()
    producer.faults.plan = confirms_lost(len(names))
    work = asyncio.gather(*(cluster.enqueue(producer, name, delay=delay) for name in names))
    assert await cluster.outcome(work, 20 * SECOND)
    work.result()
    return producer


def steps(process: Process, *operations: str) -> list[str]:
    return [step.operation for step in process.faults.steps if step.operation in operations]


async def works(cluster: InMemoryCluster, process: Process, seconds: float, at_once: int) -> None:
    """Deliver all that comes, several at once, each in some time."""
    places = asyncio.Semaphore(at_once)
    running = set()

    async def deliver(item: object) -> None:
        await cluster.clock.sleep(timedelta(seconds=seconds))
        cluster.transmit(item)  # type: ignore[arg-type]
        await item.done()  # type: ignore[attr-defined]
        places.release()

    async for item in process.queue.dequeue(prefetch=at_once):
        await places.acquire()
        running.add(asyncio.ensure_future(deliver(item)))


async def stopped(*works: asyncio.Task[None]) -> None:
    for work in works:
        work.cancel()
    await asyncio.gather(*works, return_exceptions=True)


async def test_both_messages_come_up_together_after_a_backlog(cluster: InMemoryCluster) -> None:
    await enqueued_without_confirm(cluster, "mail")
    await cluster.pass_time(MINUTE)
    first, second = await cluster.start(), await cluster.start()
    consumers = [Consumer(cluster, each.queue, prefetch=1) for each in (first, second)]

    item = await consumers[0].next()
    assert await consumers[1].nothing(2 * SECOND)
    cluster.transmit(item)
    await item.done()

    assert await consumers[1].nothing(MINUTE)
    assert await cluster.recover() == []
    assert cluster.copies("mail") == 1
    cluster.check_nothing_is_left()
    cluster.check_marks_have_rows()


async def test_repetition_comes_up_before_the_message_that_it_repeats(
    cluster: InMemoryCluster,
) -> None:
    """As when the first publish waits for the quorum of its queue, and the delay queues has one."""
    await enqueued_without_confirm(cluster, "mail")
    await cluster.pass_time(MINUTE)
    cluster.broker.ripen()
    cluster.broker.ready.reverse()
    assert [decode(each.body).claim for each in cluster.broker.ready] == [True, False]
    workers = [await cluster.start(), await cluster.start()]
    consumers = [Consumer(cluster, each.queue, prefetch=1) for each in workers]

    for consumer in consumers:
        if not await consumer.nothing(20 * SECOND):
            cluster.transmit(await consumer.next())
    await cluster.pass_time(5 * MINUTE)

    assert cluster.copies("mail") == 1


async def test_first_message_was_not_stored(cluster: InMemoryCluster) -> None:
    skipped = metrics.SKIPPED.labels("mail", "outgoing", "repetition")._value
    before = skipped.get()
    producer = await cluster.start()
    producer.faults.plan = lambda step: Fault.LOST if step.operation == "publish" else None
    work = asyncio.ensure_future(cluster.enqueue(producer, "mail"))
    await cluster.pass_time(SECOND)
    producer.faults.plan = lambda step: None
    assert await cluster.outcome(work, 20 * SECOND)

    assert await cluster.deliver(producer) == ["mail"]
    assert skipped.get() == before + 1
    cluster.check_nothing_is_left()


async def test_delayed_mail_that_takes_longer_than_the_repetition_is_late(
    cluster: InMemoryCluster,
) -> None:
    await enqueued_without_confirm(cluster, "mail", delay=8)
    workers = [await cluster.start(), await cluster.start()]
    working = [
        asyncio.ensure_future(works(cluster, each, seconds=2, at_once=1)) for each in workers
    ]

    await cluster.pass_time(5 * MINUTE)

    assert cluster.copies("mail") == 1
    await stopped(*working)


async def test_whatever_waits_in_the_delay_queues_carries_a_claim(cluster: InMemoryCluster) -> None:
    """A queue of the delay queues that loses its leader may deliver twice, and not tell."""
    producer = await cluster.start()
    await cluster.enqueue(producer, "delayed", delay=8)
    (message,) = cluster.broker.delayed_messages
    cluster.broker.put(Message(message.message_id, message.body), 8)
    workers = [await cluster.start(), await cluster.start()]
    working = [
        asyncio.ensure_future(works(cluster, each, seconds=3, at_once=5)) for each in workers
    ]

    await cluster.pass_time(5 * MINUTE)

    assert cluster.copies("delayed") == 1
    await stopped(*working)


@pytest.mark.parametrize("seconds", [1, 3, 20])
async def test_broker_node_that_fails_with_many_publishes_unconfirmed(
    cluster: InMemoryCluster, seconds: float
) -> None:
    """Its consumers are back after a while, having held nothing at that moment."""
    names = [f"mail{number}" for number in range(64)]
    await enqueued_without_confirm(cluster, *names)
    await cluster.pass_time(15 * SECOND)
    workers = [await cluster.start(), await cluster.start()]
    working = [asyncio.ensure_future(works(cluster, each, seconds, at_once=20)) for each in workers]

    await cluster.pass_time(20 * MINUTE)

    assert [cluster.copies(name) for name in names] == [1] * len(names)
    await stopped(*working)
    assert await cluster.recover() == []
    cluster.check_nothing_is_left()


async def test_mail_delivered_within_a_redelivery_delay_costs_no_transaction_more(
    cluster: InMemoryCluster,
) -> None:
    """A node that fails leaves thousands of repetitions; nearly all find a mark when they come."""
    workers = [await cluster.start(), await cluster.start()]
    working = [
        asyncio.ensure_future(works(cluster, each, seconds=2, at_once=5)) for each in workers
    ]
    producer = await enqueued_without_confirm(cluster, "mail")

    await cluster.pass_time(MINUTE)

    assert cluster.copies("mail") == 1
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
    cluster: InMemoryCluster, meanwhile: Callable[[Process], object]
) -> None:
    producer = await enqueued_without_confirm(cluster, "mail")
    assert await meanwhile(producer) == 1  # type: ignore[misc]

    assert await cluster.recover() == []
    cluster.check_nothing_is_left()


async def test_held_mail_is_not_let_go_by_a_repetition(cluster: InMemoryCluster) -> None:
    producer = await enqueued_without_confirm(cluster, "mail")
    await producer.queue.hold(Selector.all())

    assert await cluster.recover() == []
    await producer.queue.release(Selector.all())
    assert await cluster.recover() == ["mail"]


async def test_repetition_in_the_process_that_has_the_mail_in_flight_waits_for_it(
    cluster: InMemoryCluster,
) -> None:
    producer = await enqueued_without_confirm(cluster, "mail")
    consumer = Consumer(cluster, producer.queue)
    item = await consumer.next()

    assert await consumer.nothing(5 * MINUTE)
    assert steps(producer, "end") == []
    cluster.transmit(item)
    await item.done()
    assert await consumer.nothing(MINUTE)
    cluster.check_nothing_is_left()
