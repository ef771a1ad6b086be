"""The row of a successor comes when another process, which found it too slow, chooses another one:
the mail goes on under one of them."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from unittest.mock import patch

import pytest

from contract.queue_harness import Consumer
from postroad.domain.queues.entries import Entry
from postroad.domain.queues.selection import Selector
from support.in_memory_cluster import InMemoryCluster, Process
from support.memory.fault_injection import Fault, Stopped
from support.suspension import Suspension, suspended

ALL = Selector.all()
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)


async def with_a_slow_successor(
    cluster: InMemoryCluster, slow: Process
) -> tuple[Suspension, asyncio.Task[None]]:
    """Let a retry stand still before its successor's row, for longer than the deadline."""
    await cluster.enqueue(slow, "mail")
    consumer, item = await cluster.take(slow)
    await consumer.close()
    insertion = Suspension(slow, "insert")
    retrying = asyncio.create_task(item.retry(timedelta(0)))
    await cluster.pass_time(25 * SECOND)
    assert insertion.has_begun
    return insertion, retrying


async def attempted(cluster: InMemoryCluster, consumer: Consumer, within: timedelta) -> None:
    while not await consumer.nothing(within):
        item = await consumer.next()
        cluster.transmit(item)
        await item.done()


async def check_one_copy(cluster: InMemoryCluster) -> None:
    for _ in range(3):
        await cluster.pass_time(10 * MINUTE)
        await cluster.recover()
    assert cluster.copies("mail") == 1
    cluster.check_nothing_is_left()


async def test_successor_whose_row_comes_while_another_is_chosen_is_not_attempted(
    cluster: InMemoryCluster,
) -> None:
    slow, chooser, worker = [await cluster.start() for _ in range(3)]
    insertion, retrying = await with_a_slow_successor(cluster, slow)
    choice, flushing = await suspended(
        cluster, chooser, "change_successor", chooser.queue.flush(ALL)
    )
    publication = Suspension(slow, "mark_published")
    insertion.end()
    await publication.begun(cluster)

    consumer = Consumer(cluster, worker.queue)
    await attempted(cluster, consumer, 10 * SECOND)
    choice.end()
    await flushing
    publication.end()
    await retrying

    await attempted(cluster, consumer, MINUTE)
    await consumer.close()
    await check_one_copy(cluster)


async def test_successor_that_was_given_up_by_a_process_which_died_is_not_published(
    cluster: InMemoryCluster,
) -> None:
    """It died before it withdrew the successor: no mark keeps consumers from it."""
    slow, chooser, worker = [await cluster.start() for _ in range(3)]
    insertion, retrying = await with_a_slow_successor(cluster, slow)
    chooser.fail(lambda step: Fault.STOP_AFTER if step.operation == "change_successor" else None)
    with pytest.raises(Stopped):
        await chooser.queue.hold(ALL)
    publication = Suspension(slow, "mark_published")
    insertion.end()
    await cluster.pass_time(SECOND)

    consumer = Consumer(cluster, worker.queue)
    await attempted(cluster, consumer, 10 * SECOND)
    publication.end()
    await retrying

    await attempted(cluster, consumer, 3 * MINUTE)
    await consumer.close()
    await check_one_copy(cluster)


@pytest.mark.parametrize("finished", [True, False], ids=["after maintenance", "before maintenance"])
@pytest.mark.parametrize("then", ["delivered", "removed"])
async def test_row_of_a_successor_comes_after_both_processes_that_knew_of_it_died(
    cluster: InMemoryCluster, finished: bool, then: str
) -> None:
    """The insert had no answer, and is carried out by a host that stood still; the process that
    chose another successor ended before it withdrew the first."""
    slow, chooser, healthy = [await cluster.start() for _ in range(3)]
    inserted: list[Entry] = []
    view = slow.queue._engine.view

    async def unanswered(entry: Entry) -> None:
        inserted.append(entry)
        slow.faults.stop()
        raise Stopped

    await cluster.enqueue(slow, "mail", delay=3600)
    with patch.object(view, "insert", unanswered), pytest.raises(Stopped):
        await slow.queue.flush(ALL)
    await cluster.pass_time(25 * SECOND)
    chooser.fail(lambda step: Fault.STOP_AFTER if step.operation == "change_successor" else None)
    with pytest.raises(Stopped):
        await chooser.queue.hold(ALL)

    if not finished:
        cluster.tables.insert(inserted[0])
    if then == "removed":
        assert await healthy.queue.remove(ALL) == 1
    await cluster.pass_time(2 * MINUTE)
    await healthy.queue.maintain()
    if finished:
        cluster.tables.insert(inserted[0])

    assert (await healthy.queue.size()).size == len([each async for each in healthy.queue.browse()])
    for _ in range(5):
        await healthy.queue.republish(timedelta(0))
        await cluster.pass_time(10 * MINUTE)
        await cluster.recover()
    assert cluster.copies("mail") == (then == "delivered")
    cluster.check_nothing_is_left()
