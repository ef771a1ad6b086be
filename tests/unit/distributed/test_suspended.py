"""A process that is suspended between what it reads and what it does by it, for so long that others
finish the mail, pass its slice and clean it: a missing mark says nothing any more (invariant 4)."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from contract.queue_harness import Consumer, plain_mail
from postroad.domain.queues.selection import Selector
from support.in_memory_cluster import LONG, WINDOW, InMemoryCluster, Process, every_other
from support.memory.fault_injection import Fault, Stopped, away, no_fault
from support.suspension import ROUND, Suspension, lose_connection, suspended, with_an_old_item

ALL = Selector.all()
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)


async def maintained(cluster: InMemoryCluster, process: Process, rounds: int = 4) -> None:
    for _ in range(rounds):
        await cluster.pass_time(ROUND)
        await process.queue.maintain()


@pytest.mark.parametrize("held_before", [False, True], ids=["no claim", "a claim"])
async def test_consumer_delivers_no_mail_that_was_removed_and_cleaned(
    cluster: InMemoryCluster, held_before: bool
) -> None:
    """The bytes are still there: the object store was away when the mail was removed."""
    sleeper, other = await cluster.start(), await cluster.start()
    await cluster.enqueue(other, "mail")
    if held_before:
        await other.queue.hold(ALL)
        await other.queue.release(ALL)
    suspension = Suspension(sleeper, "mark", number=3 if held_before else 1)
    consumer = Consumer(cluster, sleeper.queue, prefetch=1)
    assert await consumer.nothing(10 * SECOND)
    assert suspension.has_begun

    other.faults.plan = away("blobs")
    assert await other.queue.remove(ALL) == 1
    other.faults.plan = no_fault
    await maintained(cluster, other)
    assert cluster.tables.marks == {}
    suspension.end()

    assert await consumer.nothing(MINUTE)


async def test_consumer_delivers_no_mail_that_another_one_deferred(
    cluster: InMemoryCluster,
) -> None:
    sleeper, other = await cluster.start(), await cluster.start()
    await cluster.enqueue(sleeper, "mail")
    suspension = Suspension(sleeper, "mark")
    consumer = Consumer(cluster, sleeper.queue, prefetch=1)
    assert await consumer.nothing(SECOND)
    lose_connection(sleeper)
    _, item = await cluster.take(other)
    await cluster.pass_time(WINDOW)
    await item.retry(timedelta(hours=2))
    await maintained(cluster, other)
    suspension.end()

    assert await consumer.nothing(MINUTE)


async def test_consumer_that_read_the_mark_long_ago_takes_a_claim(cluster: InMemoryCluster) -> None:
    """Its row took so long that the redelivery delay of a replacement is over."""
    slow, other = await cluster.start(), await cluster.start()
    recipients = tuple(f"{number:040}@example.net" for number in range(1000))
    await slow.queue.enqueue(plain_mail("mail", recipients=recipients))
    suspension = Suspension(slow, "row")
    consumers = [Consumer(cluster, each.queue) for each in (slow, other)]
    assert await consumers[0].nothing(SECOND)
    assert await other.queue.republish(timedelta(0)) == 1
    item = await consumers[1].next()
    suspension.end()

    assert await consumers[0].nothing(2 * SECOND)
    await item.done()


async def test_dead_letter_of_a_mail_that_another_one_buried_is_not_lost(
    cluster: InMemoryCluster,
) -> None:
    """The worker was suspended between the dead letter and the mark; the broker gave its message to
    another, which found the dead letter and finished the burial."""
    sleeper, other = await cluster.start(), await cluster.start()
    await cluster.enqueue(sleeper, "mail")
    consumer, item = await cluster.take(sleeper)
    suspension, rejecting = await suspended(cluster, sleeper, "end", item.reject("no"))
    lose_connection(sleeper)
    await cluster.pass_time(3 * MINUTE)
    assert await cluster.deliver(other) == []
    await maintained(cluster, other)
    suspension.end()
    await rejecting
    await consumer.close()

    assert [each.reason for each in cluster.tables.dead_letters.values()] == ["no"]
    await cluster.pass_time(3 * MINUTE)  # the claim on what was in flight lapses
    assert await other.queue.requeue(ALL) == 1
    assert await cluster.recover() == ["mail"]


@pytest.mark.parametrize("operation", ["discard", "requeue"])
async def test_dead_letter_of_a_mail_that_waits_under_a_successor_does_not_outlive_the_mark(
    cluster: InMemoryCluster, operation: str
) -> None:
    """The worker was suspended between the dead letter and the mark, and the mail was held
    meanwhile."""
    sleeper, other = await cluster.start(), await cluster.start()
    await cluster.enqueue(other, "mail")
    consumer, item = await cluster.take(sleeper)
    await consumer.close()
    await cluster.pass_time(2 * WINDOW)
    await other.queue.maintain()  # dead letters are not gone over again before the slice is cleaned
    suspension, rejecting = await suspended(cluster, sleeper, "end", item.reject("no"))
    assert await other.queue.hold(ALL) == 1
    for _ in range(5):
        await cluster.pass_time(MINUTE)
        await other.queue.maintain()
    assert cluster.tables.marks == {}
    suspension.end()
    await rejecting

    assert await getattr(other.queue, operation)(ALL) == 0
    assert [entry.blob_key for entry in cluster.tables.live()] == list(cluster.blobs) != []


@pytest.mark.parametrize("answer_lost", [False, True], ids=["", "answer lost"])
@pytest.mark.parametrize("count", [1, 3], ids=["one mail", "mails of one partition together"])
async def test_administrator_removes_no_bytes_of_a_successor(
    cluster: InMemoryCluster, count: int, answer_lost: bool
) -> None:
    sleeper, other = await cluster.start(), await cluster.start()
    await cluster.enqueue(other, *(f"mail{number}" for number in range(count)))
    consumer = Consumer(cluster, other.queue)
    items = [await consumer.next() for _ in range(count)]
    await cluster.pass_time(ROUND)
    suspension, removing = await suspended(cluster, sleeper, "end", sleeper.queue.remove(ALL))
    for item in items:
        await item.retry(timedelta(hours=9))
    await maintained(cluster, other)
    if answer_lost:
        sleeper.faults.plan = every_other("end", Fault.ANSWER_LOST)
    suspension.end()
    assert await cluster.outcome(removing, LONG)

    assert len(cluster.tables.live()) == count
    assert set(cluster.blobs) == {entry.blob_key for entry in cluster.tables.live()}


async def test_blob_deletion_takes_no_bytes_of_a_mail_whose_first_entry_was_cleaned_meanwhile(
    cluster: InMemoryCluster,
) -> None:
    """The purge died after its watermark; the deletion of purged blobs stops between the rows and
    their marks."""
    dying, sleeper, other = [await cluster.start() for _ in range(3)]
    await cluster.enqueue(other, "mail")
    await cluster.pass_time(ROUND)
    assert await other.queue.hold(ALL) == 1
    dying.fail(lambda step: Fault.STOP_AFTER if step.operation == "set_watermark" else None)
    with pytest.raises(Stopped):
        await dying.queue.purge()
    await cluster.pass_time(11 * MINUTE)
    suspension, deleting = await suspended(cluster, sleeper, "marked", sleeper.queue.maintain())
    await maintained(cluster, other)
    assert len(cluster.tables.rows) == 1
    suspension.end()
    await deleting

    assert [entry.blob_key for entry in cluster.tables.live()] == list(cluster.blobs) != []


@pytest.mark.parametrize("step", ["publish", "mark_published"])
async def test_successor_that_others_published_is_not_withdrawn(
    cluster: InMemoryCluster, step: str
) -> None:
    """The mark that names it was cleaned away, and names no other either."""
    sleeper, other = await cluster.start(), await cluster.start()
    item = await with_an_old_item(cluster, sleeper, other)
    suspension, retrying = await suspended(cluster, sleeper, step, item.retry(timedelta(hours=9)))
    lose_connection(sleeper)
    await maintained(cluster, other)
    assert cluster.tables.marks == {}
    suspension.end()
    await retrying

    await cluster.pass_time(timedelta(hours=9))
    assert await cluster.recover() == ["mail"]
    cluster.check_nothing_is_left()


async def test_change_that_others_finished_and_cleaned_away_is_counted(
    cluster: InMemoryCluster,
) -> None:
    sleeper, other = await cluster.start(), await cluster.start()
    await cluster.enqueue(other, "mail", delay=10**6)
    suspension, flushing = await suspended(
        cluster, sleeper, "mark_published", sleeper.queue.flush(Selector.all())
    )
    assert await cluster.deliver(other) == ["mail"]
    await maintained(cluster, other)
    assert cluster.tables.marks == {}

    suspension.end()

    assert await flushing == 1


async def test_row_of_a_successor_that_came_back_is_not_taken_for_late_mail(
    cluster: InMemoryCluster,
) -> None:
    """The retry stopped before the row. Others delivered the mail under another successor."""
    sleeper, other = await cluster.start(), await cluster.start()
    item = await with_an_old_item(cluster, sleeper, other)
    insertion, retrying = await suspended(cluster, sleeper, "insert", item.retry(timedelta(0)))
    lose_connection(sleeper)
    await maintained(cluster, other)
    assert await cluster.deliver(other) == ["mail"]
    await maintained(cluster, other, rounds=8)
    publication = Suspension(sleeper, "change_successor")
    insertion.end()
    await publication.begun(cluster)

    assert await cluster.deliver(other) == []
    publication.end()
    await retrying
    assert cluster.copies("mail") == 1


@pytest.mark.parametrize(("step", "number"), [("limits", 3), ("insert", 1)])
async def test_administrator_removes_no_bytes_by_a_replacement_of_long_ago(
    cluster: InMemoryCluster, step: str, number: int
) -> None:
    """Others finished it, under another successor than the one that the administrator read."""
    dead, sleeper, other = await cluster.start(), await cluster.start(), await cluster.start()
    await cluster.enqueue(other, "mail")
    await cluster.pass_time(ROUND)
    Suspension(dead, "insert")
    holding = asyncio.ensure_future(dead.queue.hold(ALL))
    await cluster.pass_time(SECOND)
    suspension = Suspension(sleeper, step, number)
    removing = asyncio.ensure_future(sleeper.queue.remove(ALL))
    await suspension.begun(cluster)
    await maintained(cluster, other, rounds=8)
    assert await other.queue.release(ALL) == 1
    await maintained(cluster, other, rounds=8)
    suspension.end()

    assert await removing == 0
    assert set(cluster.blobs) == {entry.blob_key for entry in cluster.tables.live()} != set()
    holding.cancel()


async def test_discard_of_a_dead_letter_that_came_after_its_slice_was_cleaned_takes_no_bytes(
    cluster: InMemoryCluster,
) -> None:
    """The burial was suspended over all of it; meanwhile the mail was held, and waits."""
    sleeper, other = await cluster.start(), await cluster.start()
    item = await with_an_old_item(cluster, sleeper, other)
    suspension, rejection = await suspended(
        cluster, sleeper, "write_dead_letter", item.reject("no")
    )
    assert await other.queue.hold(ALL) == 1
    await maintained(cluster, other)
    suspension.end()
    await rejection

    await other.queue.discard(ALL)

    assert len(cluster.tables.live()) == 1
    assert len(cluster.blobs) == 1
