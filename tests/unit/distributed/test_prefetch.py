"""The places of a consumer: a reference that waits for a server lets others past, and gives its
place up where they are served."""

from __future__ import annotations

from datetime import timedelta

import pytest

from contract.queue_harness import Consumer
from postroad.adapters.memory.broker import Message
from postroad.adapters.memory.fault_injection import Step, away, no_fault
from postroad.adapters.memory.view import MemoryView
from postroad.domain.delay_queues import LADDER_SECONDS
from postroad.domain.entries import Mark
from postroad.domain.slices import Partition, TurnKey
from postroad.errors import ViewUnavailable
from support.in_memory_cluster import Post, Process

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
HOP = 8


def unreadable(monkeypatch: pytest.MonkeyPatch, partitions: set[Partition]) -> None:
    """Let the replicas of these partitions be away, as long as the set has them."""
    mark = MemoryView.mark

    async def or_unavailable(view: MemoryView, key: TurnKey) -> Mark | None:
        if key.partition in partitions:
            raise ViewUnavailable("the replicas of this token range are away")
        return await mark(view, key)

    monkeypatch.setattr(MemoryView, "mark", or_unavailable)


def names(post: Post, partitions: set[Partition]) -> set[str]:
    rows = post.tables.rows.values()
    return {turn.envelope.name or "" for turn in rows if turn.key.partition in partitions}


async def test_unreadable_partition_holds_up_no_mail_of_another(
    post: Post, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    await post.enqueue(process, *(f"mail{number}" for number in range(40)))
    oldest = min(post.tables.rows, key=lambda key: key.enqueue_id)
    sick = {oldest.partition}
    waiting = names(post, sick)
    healthy = names(post, {key.partition for key in post.tables.rows} - sick)
    unreadable(monkeypatch, sick)
    consumer = Consumer(post, process.queue, prefetch=4)

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
    post: Post, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An hour's mail of one bucket fills the prefetch, and no other reference is there yet."""
    await post.enqueue(process, *(f"mail{number}" for number in range(20)))
    sick = {key.partition for key in post.tables.rows}
    unreadable(monkeypatch, sick)
    consumer = Consumer(post, process.queue, prefetch=5)
    assert await consumer.nothing(MINUTE)

    await post.pass_time(timedelta(minutes=5))
    await post.enqueue(process, "of another hour")

    assert (await consumer.next(MINUTE)).mail.name == "of another hour"


async def test_references_keep_their_places_while_the_whole_view_is_away(
    post: Post, process: Process
) -> None:
    await post.enqueue(process, *(f"mail{number}" for number in range(5)))
    worker = await post.start()
    consumer = Consumer(post, worker.queue)
    worker.gate.plan = away("view")

    assert await consumer.nothing(5 * MINUTE)

    assert post.broker.delayed == 0
    worker.gate.plan = no_fault
    for _ in range(5):
        assert await consumer.next(15 * SECOND)


async def test_delay_queue_that_is_missing_holds_up_no_new_mail(
    post: Post, process: Process
) -> None:
    """All that a crashed worker had in hand comes redelivered, and has to wait for a hop."""
    await post.enqueue(process, *(f"redelivered{number}" for number in range(5)))
    victim = await post.start()
    held = Consumer(post, victim.queue, prefetch=5)
    for _ in range(5):
        await held.next()
    victim.gate.stop()
    post.broker.missing.add(HOP)
    await post.enqueue(process, "new")
    consumer = Consumer(post, process.queue, prefetch=5)

    names = []
    for _ in range(6):
        item = await consumer.next(MINUTE)
        names.append(item.mail.name or "")
        await item.done()

    assert names[0] == "new"
    assert sorted(names[1:]) == [f"redelivered{number}" for number in range(5)]


async def test_claims_of_a_reference_that_is_put_off_are_given_back(
    post: Post, process: Process
) -> None:
    await post.enqueue(process, "mail", delay=HOP + 1)
    consumer = Consumer(post, process.queue)

    def records_are_unreadable(step: Step) -> None:
        if step.operation == "records":
            raise ViewUnavailable("the replicas of this token range are away")

    async def before(step: Step) -> None:
        records_are_unreadable(step)

    process.gate.before = before
    assert await consumer.nothing(20 * SECOND)
    process.gate.before = None

    assert (await consumer.next(50 * SECOND)).mail.name == "mail"


async def test_lost_connections_put_no_more_than_the_prefetch_in_hand(
    post: Post, process: Process
) -> None:
    await post.enqueue(process, *(f"mail{number}" for number in range(30)))
    worker = await post.start()
    consumer = Consumer(post, worker.queue, prefetch=5)
    items = [await consumer.next() for _ in range(5)]

    for _ in range(3):
        worker.queue._engine.broker.disconnect()  # type: ignore[attr-defined]
        assert await consumer.nothing(MINUTE)
    for item in items:
        await item.done()

    assert await consumer.next(MINUTE), "places are free again"


async def test_queue_without_a_quorum_gets_each_reference_once(
    post: Post, process: Process
) -> None:
    """However long it lasts: the broker keeps all that it cannot confirm, and carries it out."""
    await post.enqueue(process, *(f"mail{number}" for number in range(5)), delay=1000)
    worker = await post.start()
    consumer = Consumer(post, worker.queue)
    post.broker.without_quorum.update({0, *LADDER_SECONDS})

    assert await consumer.nothing(timedelta(minutes=15))
    assert 5 <= len(post.broker.unconfirmed) <= 5 * 3
    post.broker.regain_quorum()

    for _ in range(5):
        item = await consumer.next(timedelta(minutes=10))
        post.transmit(item)
        await item.done()
    assert await consumer.nothing(timedelta(minutes=10))
    assert all(post.copies(f"mail{number}") == 1 for number in range(5))


async def test_delay_queue_without_a_quorum_holds_up_no_new_mail(
    post: Post, process: Process
) -> None:
    await post.enqueue(process, *(f"redelivered{number}" for number in range(5)))
    victim = await post.start()
    held = Consumer(post, victim.queue, prefetch=5)
    for _ in range(5):
        await held.next()
    victim.gate.stop()
    post.broker.without_quorum.add(HOP)
    await post.enqueue(process, "new")
    consumer = Consumer(post, process.queue, prefetch=5)

    names = []
    for _ in range(6):
        item = await consumer.next(2 * MINUTE)
        post.transmit(item)
        names.append(item.mail.name or "")
        await item.done()

    assert names[0] == "new"
    post.broker.regain_quorum()
    assert await consumer.nothing(5 * MINUTE)
    assert all(post.copies(each) == 1 for each in names)


async def test_message_that_a_delay_queue_forwards_twice_is_transmitted_once(
    post: Post, process: Process
) -> None:
    """As RabbitMQ does where the leader of a delay queue dies: neither copy is marked redelivered.
    A delay of exactly one step brings the first message as it was published."""
    await post.enqueue(process, "mail", delay=HOP)
    [message] = post.broker.delayed_messages
    post.broker.put(Message(message.message_id, message.body), HOP)
    one, other = [Consumer(post, (await post.start()).queue, prefetch=1) for _ in range(2)]

    first = await one.next(MINUTE)
    assert await other.nothing(MINUTE), "the copy finds the claim"
    await first.done()

    assert await one.nothing(5 * MINUTE)
    assert await other.nothing(5 * MINUTE)
