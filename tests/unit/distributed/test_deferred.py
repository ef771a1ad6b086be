"""References that are deferred, dead-lettered or published again while the broker is in doubt: each
mail is in one consumer's hands at a time, and the consumer goes on."""

from __future__ import annotations

from datetime import timedelta

import pytest

from contract.queue_harness import Consumer
from postroad.domain.queues.selection import Selector
from support.in_memory_cluster import Before, InMemoryCluster, Process
from support.memory.fault_injection import Fault, Step, Stopped
from support.suspension import lose_connection

ALL = Selector.all()
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)


def published(process: Process) -> int:
    return sum(step.operation == "publish" for step in process.faults.steps)


async def test_a_reference_whose_deferral_is_in_doubt_is_handed_out_with_a_claim(
    cluster: InMemoryCluster, process: Process
) -> None:
    """The broker has the deferred message, although its answer was lost; it reaches another process
    while this one still waits for the view."""
    other = await cluster.start()
    await cluster.enqueue(process, "mail")
    publications, view_is_away = 0, True

    def first_publication_is_in_doubt(step: Step) -> Fault | None:
        nonlocal publications
        if step.operation == "publish":
            publications += 1
            return Fault.ANSWER_LOST if publications == 1 else Fault.AWAY
        return Fault.AWAY if step.operation == "mark" and view_is_away else None

    process.fail(first_publication_is_in_doubt)
    consumer = Consumer(cluster, process.queue, prefetch=1)
    assert await consumer.nothing(10 * SECOND)
    assert publications > 0
    item = await Consumer(cluster, other.queue).next(MINUTE)
    assert item.mail.name == "mail"

    view_is_away = False

    assert await consumer.nothing(20 * SECOND)
    await consumer.close()


async def test_a_reference_is_deferred_by_another_delay_queue_than_its_redelivery(
    cluster: InMemoryCluster, process: Process
) -> None:
    """The delay queue that its redelivery needs has lost its quorum."""
    await cluster.enqueue(process, "mail", delay=64 + 60)
    await cluster.pass_time(64 * SECOND)
    cluster.broker.without_quorum.add(32)
    consumer = Consumer(cluster, process.queue)
    before = published(process)

    assert await consumer.nothing(15 * SECOND)

    assert published(process) == before + 2
    assert cluster.broker.delayed == 1
    await consumer.close()


async def test_a_dead_letter_that_was_found_without_its_mark_can_be_requeued_at_once(
    cluster: InMemoryCluster, process: Process
) -> None:
    other = await cluster.start()
    await cluster.enqueue(process, "mail")
    _, item = await cluster.take(process)
    process.fail(lambda step: Fault.STOP_AFTER if step.operation == "write_dead_letter" else None)
    with pytest.raises(Stopped):
        await item.reject("no")
    consumer = Consumer(cluster, other.queue)
    assert await consumer.nothing(MINUTE)
    (mark,) = cluster.tables.marks.values()
    assert mark.is_final

    assert await other.queue.requeue(ALL) == 1

    assert (await consumer.next()).mail.name == "mail"
    await consumer.close()


async def test_a_message_that_cannot_be_dead_lettered_comes_again(
    cluster: InMemoryCluster, process: Process
) -> None:
    """Its channel broke just then."""
    await cluster.enqueue(process, "unlucky", "next")

    async def fail() -> None:
        raise RuntimeError("a bug")

    process.faults.before = Before("mark", fail)
    process.fail(lambda step: Fault.AWAY if step.operation == "dead_letter" else None)
    consumer = Consumer(cluster, process.queue)

    assert (await consumer.next()).mail.name == "next"

    lose_connection(process)
    assert (await consumer.next(MINUTE)).mail.name == "unlucky"
    await consumer.close()
