"""The places of a consumer: a reference that waits for a server lets others past, and gives its
place up where they are served."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from contract.queue_harness import Consumer
from postroad.adapters.memory.broker import MemoryDelivery, Message
from postroad.adapters.memory.view import MemoryView
from postroad.domain.queues.entries import EntryKey, Mark, Partition
from postroad.domain.queues.names import DELAY_SECONDS
from postroad.domain.queues.references import decode
from postroad.errors import ViewUnavailable
from support.in_memory_cluster import InMemoryCluster, Process
from support.memory.fault_injection import Fault, Step, away, no_fault

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
HOP = 8


def unreadable(monkeypatch: pytest.MonkeyPatch, partitions: set[Partition]) -> None:
    """Let the replicas of these partitions be away, as long as the set has them."""
    mark = MemoryView.mark

    async def or_unavailable(view: MemoryView, key: EntryKey) -> Mark | None:
        if key.partition in partitions:
            raise ViewUnavailable("the replicas of this token range are away")
        return await mark(view, key)

    monkeypatch.setattr(MemoryView, "mark", or_unavailable)


def names(cluster: InMemoryCluster, partitions: set[Partition]) -> set[str]:
    rows = cluster.tables.rows.values()
    return {entry.envelope.name or "" for entry in rows if entry.key.partition in partitions}


async def test_unreadable_partition_blocks_no_mail_of_another(
    cluster: InMemoryCluster, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.enqueue(process, *(f"mail{number}" for number in range(40)))
    oldest = min(cluster.tables.rows, key=lambda key: key.enqueue_id)
    sick = {oldest.partition}
    waiting = names(cluster, sick)
    healthy = names(cluster, {key.partition for key in cluster.tables.rows} - sick)
    unreadable(monkeypatch, sick)
    consumer = Consumer(cluster, process.queue, prefetch=4)

    delivered = set()
    for _ in healthy:
        item = await consumer.next(MINUTE)
        delivered.add(item.mail.name)
        await item.done()
    assert delivered == healthy

    sick.clear()
    for _ in waiting:
        item = await consumer.next(2 * MINUTE)
        delivered.add(item.mail.name)
        await item.done()
    assert delivered == healthy | waiting


async def test_references_of_an_unreadable_partition_alone_give_up_their_places_too(
    cluster: InMemoryCluster, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An hour's mail of one bucket fills the prefetch, and no other reference is there yet."""
    await cluster.enqueue(process, *(f"mail{number}" for number in range(20)))
    sick = {key.partition for key in cluster.tables.rows}
    unreadable(monkeypatch, sick)
    consumer = Consumer(cluster, process.queue, prefetch=5)
    assert await consumer.nothing(MINUTE)

    await cluster.pass_time(timedelta(minutes=5))
    await cluster.enqueue(process, "of another hour")

    assert (await consumer.next(MINUTE)).mail.name == "of another hour"


async def test_reference_that_gives_its_place_up_keeps_how_often_consumers_crashed_on_it(
    cluster: InMemoryCluster, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker counts that for one message, and the delay queues get another one, for half a
    minute. By chance, the last wait before that begins shortly before the time is over."""
    await cluster.enqueue(process, "mail")
    [message] = cluster.broker.ready
    message.failed_deliveries = 3
    unreadable(monkeypatch, {key.partition for key in cluster.tables.rows})

    assert await Consumer(cluster, process.queue).nothing(20 * SECOND)

    [deferred] = cluster.broker.delayed_messages
    assert decode(deferred.body).crashes == 3


async def test_references_keep_their_places_while_the_whole_view_is_away(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, *(f"mail{number}" for number in range(5)))
    worker = await cluster.start()
    consumer = Consumer(cluster, worker.queue)
    worker.faults.plan = away("view")

    assert await consumer.nothing(5 * MINUTE)

    assert cluster.broker.delayed == 0
    worker.faults.plan = no_fault
    for _ in range(5):
        assert await consumer.next(15 * SECOND)


async def test_claims_of_a_reference_that_is_deferred_are_given_back(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, "mail", delay=HOP + 1)
    consumer = Consumer(cluster, process.queue)

    def records_are_unreadable(step: Step) -> None:
        if step.operation == "records":
            raise ViewUnavailable("the replicas of this token range are away")

    async def before(step: Step) -> None:
        records_are_unreadable(step)

    process.faults.before = before
    assert await consumer.nothing(20 * SECOND)
    process.faults.before = None

    assert (await consumer.next(50 * SECOND)).mail.name == "mail"


async def test_lost_connections_put_no_more_than_the_prefetch_in_flight(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, *(f"mail{number}" for number in range(30)))
    worker = await cluster.start()
    consumer = Consumer(cluster, worker.queue, prefetch=5)
    items = [await consumer.next() for _ in range(5)]

    for _ in range(3):
        worker.queue._engine.broker.disconnect()  # type: ignore[attr-defined]
        assert await consumer.nothing(MINUTE)
    for item in items:
        await item.done()

    assert await consumer.next(MINUTE), "places are free again"


async def test_queue_without_a_quorum_gets_each_reference_once(
    cluster: InMemoryCluster, process: Process
) -> None:
    """However long it lasts: the broker keeps all that it cannot confirm, and carries it out."""
    await cluster.enqueue(process, *(f"mail{number}" for number in range(5)), delay=1000)
    worker = await cluster.start()
    consumer = Consumer(cluster, worker.queue)
    cluster.broker.without_quorum.update({0, *DELAY_SECONDS})

    assert await consumer.nothing(timedelta(minutes=15))
    assert 5 <= len(cluster.broker.unconfirmed) <= 5 * 3
    cluster.broker.regain_quorum()

    for _ in range(5):
        item = await consumer.next(timedelta(minutes=10))
        cluster.transmit(item)
        await item.done()
    assert await consumer.nothing(timedelta(minutes=10))
    assert all(cluster.copies(f"mail{number}") == 1 for number in range(5))


@pytest.mark.parametrize("which", ["missing", "without_quorum"])
async def test_delay_queue_that_takes_nothing_blocks_no_new_mail(
    cluster: InMemoryCluster, process: Process, which: str
) -> None:
    """All that a crashed worker had in flight comes redelivered, and has to wait for a redelivery
    delay."""
    await cluster.enqueue(process, *(f"redelivered{number}" for number in range(5)))
    victim = await cluster.start()
    held = Consumer(cluster, victim.queue, prefetch=5)
    for _ in range(5):
        await held.next()
    victim.faults.stop()
    getattr(cluster.broker, which).add(HOP)
    await cluster.enqueue(process, "new")
    consumer = Consumer(cluster, process.queue, prefetch=5)

    names = []
    for _ in range(6):
        item = await consumer.next(2 * MINUTE)
        cluster.transmit(item)
        names.append(item.mail.name or "")
        await item.done()

    assert names[0] == "new"
    assert sorted(names[1:]) == [f"redelivered{number}" for number in range(5)]
    cluster.broker.missing.clear()
    cluster.broker.regain_quorum()
    assert await consumer.nothing(5 * MINUTE)
    assert all(cluster.copies(each) == 1 for each in names)


async def test_message_that_a_delay_queue_forwards_twice_is_transmitted_once(
    cluster: InMemoryCluster, process: Process
) -> None:
    """As RabbitMQ does where the leader of a delay queue dies: neither copy is marked redelivered.
    A delay of exactly one step brings the first message as it was published."""
    await cluster.enqueue(process, "mail", delay=HOP)
    [message] = cluster.broker.delayed_messages
    cluster.broker.put(Message(message.message_id, message.body), HOP)
    one, other = [Consumer(cluster, (await cluster.start()).queue, prefetch=1) for _ in range(2)]

    first = await one.next(MINUTE)
    assert await other.nothing(MINUTE), "the copy finds the claim"
    await first.done()

    assert await one.nothing(5 * MINUTE)
    assert await other.nothing(5 * MINUTE)


async def test_consumer_whose_places_are_all_taken_cancels_its_subscription_when_it_closes(
    cluster: InMemoryCluster, process: Process
) -> None:
    """The broker would send it references until the garbage collector ends the subscription."""
    await cluster.enqueue(process, "in flight", "waiting")
    consumer = Consumer(cluster, process.queue, prefetch=1)
    item = await consumer.next()
    assert await consumer.nothing()

    await consumer.close()

    assert cluster.broker.consumers == 0
    await item.done()
    assert await cluster.deliver(await cluster.start()) == ["waiting"]


async def test_time_that_a_message_waited_for_a_place_is_time_in_flight(
    cluster: InMemoryCluster, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a connection was lost, the items in flight have all places, and the next connection
    brings as many messages again."""
    monkeypatch.setattr(MemoryDelivery, "waited", 20 * MINUTE)
    await cluster.enqueue(process, "mail")

    item = await Consumer(cluster, process.queue).next()

    assert item.lease_until - process.clock.elapsed() < 6 * MINUTE


async def test_time_that_a_message_waited_in_the_prefetch_is_time_in_flight(
    cluster: InMemoryCluster, process: Process
) -> None:
    """RabbitMQ counts from when it sent the message."""
    await cluster.enqueue(process, "mail")
    begun = process.clock.elapsed()
    consumer = Consumer(cluster, process.queue)
    process.faults.plan = away("view")
    assert await consumer.nothing(5 * MINUTE)
    process.faults.plan = no_fault

    item = await consumer.next(MINUTE)

    assert process.clock.elapsed() - begun >= 5 * MINUTE
    assert item.lease_until - begun < 26 * MINUTE


async def test_mail_whose_bytes_stay_keeps_no_place_where_its_message_cannot_come_again(
    cluster: InMemoryCluster, process: Process
) -> None:
    """The object store deletes nothing, and the broker confirms nothing, for a while."""
    await cluster.enqueue(process, "first", "second")
    consumer = Consumer(cluster, process.queue, prefetch=1)
    item = await consumer.next()
    process.faults.plan = lambda step: Fault.AWAY if step.operation == "delete" else None
    cluster.broker.without_quorum.update(DELAY_SECONDS)

    ending = asyncio.ensure_future(item.done())
    await cluster.pass_time(15 * SECOND)
    await ending
    process.faults.plan = no_fault
    cluster.broker.without_quorum.clear()

    assert (await consumer.next(MINUTE)).mail.name == "second"
    await consumer.close()
