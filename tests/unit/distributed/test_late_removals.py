"""Late mail that is removed while its rescue is under way, and successors that were given up half
way: each mail is delivered once or removed once."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from contract.queue_harness import Consumer
from postroad.distributed.entries.endings import CLEANED
from postroad.distributed.entries.replacement import withdraw
from postroad.domain.queues.selection import Selector
from support.in_memory_cluster import Before, InMemoryCluster, Process
from support.memory.fault_injection import Fault, Step, Stopped
from support.suspension import ROUND, Suspension, lose_connection, suspended, with_an_old_item

ALL = Selector.all()
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)


async def maintenance(cluster: InMemoryCluster, process: Process, rounds: int) -> None:
    for _ in range(rounds):
        await cluster.pass_time(MINUTE)
        await process.queue.maintain()


@pytest.mark.parametrize("rescuer_dies", [True, False])
async def test_removal_of_late_mail_that_outlasts_the_slice_of_its_successor_loses_no_mail(
    rescuer_dies: bool,
) -> None:
    """It either removes the mail and counts it, or the mail is delivered."""
    cluster = InMemoryCluster(buckets=1)
    process, paused, rescuer, admin = [await cluster.start() for _ in range(4)]
    await cluster.enqueue(paused, "first", delay=600)
    start = cluster.clock.elapsed()
    await cluster.pass_time(ROUND)
    listing, removing = await suspended(
        cluster, admin, "rows", admin.queue.remove(Selector(name="late"))
    )
    await cluster.pass_time(ROUND)
    assert await cluster.deliver(process, MINUTE) == ["first"]
    await maintenance(cluster, process, 2)
    paused.clock.pause(cluster.clock.elapsed() - start)
    await cluster.enqueue(paused, "late")
    rescue = Suspension(rescuer, "insert")
    consumer = Consumer(cluster, rescuer.queue)
    assert await consumer.nothing(SECOND)
    await rescue.begun(cluster)

    insertion = Suspension(admin, "insert")
    listing.end()
    await insertion.begun(cluster)
    await maintenance(cluster, process, 20)
    if rescuer_dies:
        rescuer.faults.stop()
    insertion.end()
    removed = await removing
    rescue.end()
    await consumer.close()
    await cluster.pass_time(3 * MINUTE)
    await cluster.recover()

    assert removed + cluster.copies("late") == 1
    cluster.check_nothing_is_left()


async def test_successor_that_was_given_up_half_way_and_comes_late_makes_no_second_copy(
    cluster: InMemoryCluster,
) -> None:
    """The process that chose another successor died before it withdrew the first one, whose row
    comes just as browse start passes its slice."""
    sleeper, dying, other = [await cluster.start() for _ in range(3)]
    item = await with_an_old_item(cluster, sleeper, other)
    insertion, retrying = await suspended(cluster, sleeper, "insert", item.retry(timedelta(0)))
    (mark,) = cluster.tables.marks.values()
    assert mark.ending is not None
    assert mark.ending.successor is not None
    first = mark.ending.successor.slice_start
    await cluster.pass_time(MINUTE)
    dying.fail(lambda step: Fault.STOP_AFTER if step.operation == "change_successor" else None)
    with pytest.raises(Stopped):
        await dying.queue.release(ALL)  # meets the replacement, and finishes it
    await other.queue.release(ALL)
    lose_connection(sleeper)
    await maintenance(cluster, other, 6)
    assert {key.slice_start for key in cluster.tables.marks} == {first}, (
        "the first entry is cleaned"
    )
    assert await cluster.deliver(other, MINUTE) == ["mail"]
    publication: list[Suspension] = []

    async def let_its_row_come(step: Step) -> None:
        slice_ = cluster.tables.slices.get(first)
        is_drained = slice_ is not None and slice_.drained
        if step.operation == "advance" and is_drained and not publication:
            publication.append(Suspension(sleeper, "publish"))
            insertion.end()
            while not publication[0].has_begun:
                await asyncio.sleep(0)

    other.faults.before = let_its_row_come
    while (cluster.tables.limits.browse_start or first) <= first:
        await maintenance(cluster, other, 1)
    assert publication
    publication[0].end()
    await retrying

    await cluster.recover()
    assert cluster.copies("mail") == 1
    cluster.check_nothing_is_left()


@pytest.mark.parametrize("is_cleaned_again", [False, True])
async def test_withdrawal_of_an_entry_that_was_cleaned_shows_that_it_had_ended(
    cluster: InMemoryCluster, process: Process, is_cleaned_again: bool
) -> None:
    """Its successor may need the bytes. Where cleanup took the new mark too, no one can tell."""
    await cluster.enqueue(process, "mail")
    (entry,) = cluster.tables.rows.values()
    assert await cluster.deliver(process, SECOND) == ["mail"]
    await maintenance(cluster, process, 30)
    assert cluster.tables.limits.have_passed(entry.key.slice_start)
    assert entry.key not in cluster.tables.rows

    async def clean() -> None:
        if is_cleaned_again:
            del cluster.tables.marks[entry.key]

    process.faults.before = before = Before("mark", clean)
    standing = await withdraw(process.queue._engine, entry)

    assert before.happened
    assert standing is (None if is_cleaned_again else CLEANED)
    assert entry.key not in cluster.tables.rows, "it would look like late mail"
