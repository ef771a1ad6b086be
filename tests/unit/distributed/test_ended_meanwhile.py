"""A mail in a worker's hands whose entry was replaced meanwhile, passed by browse start and
cleaned: only the limits show the worker that another process was first (invariant 4)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from contract.queue_harness import Consumer, plain_mail
from postroad.domain.mail.mail import Outcome
from postroad.domain.queues.selection import Selector
from postroad.errors import ViewUnavailable
from postroad.ports.mail_queue import Item
from support.in_memory_cluster import WINDOW, Before, InMemoryCluster, Process
from support.memory.fault_injection import Fault, Step, Stopped, no_fault

ALL = Selector.all()
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
ROUND = WINDOW + 3 * MINUTE
"""Until a slice that was written into can be closed, and cleanup waited its lease."""

LATE: dict[str, Callable[[Item], Awaitable[None]]] = {
    "retry": lambda item: item.retry(timedelta(0)),
    "reject": lambda item: item.reject("no"),
}


async def taken_and_held(cluster: InMemoryCluster, worker: Process, person: Process) -> Item:
    """Return an item whose mail is held under a new entry, in a later slice."""
    await cluster.enqueue(worker, "mail")
    _, item = await cluster.take(worker)
    await cluster.pass_time(2 * ROUND)
    assert await person.queue.hold(ALL) == 1
    return item


async def clean(cluster: InMemoryCluster, person: Process, item: Item) -> None:
    """Let maintenance pass and clean the slice of an item's entry."""
    for _ in range(4):
        await cluster.pass_time(ROUND)
        await person.queue.maintain()
    held = [key for key in cluster.tables.rows if key.enqueue_id == item.enqueue_id]
    assert held == []


def limits_are_away(step: Step) -> Fault | None:
    return Fault.AWAY if step.operation == "limits" else None


@pytest.mark.parametrize("late", LATE)
async def test_ending_of_an_entry_that_was_replaced_and_cleaned_changes_nothing(
    cluster: InMemoryCluster, late: str
) -> None:
    worker, person = await cluster.start(), await cluster.start()
    item = await taken_and_held(cluster, worker, person)
    await clean(cluster, person, item)

    await LATE[late](item)

    (live,) = cluster.tables.live()
    assert live.held
    assert cluster.tables.dead_letters == {}
    assert await cluster.recover() == []
    await person.queue.release(ALL)
    assert await cluster.recover() == ["mail"]
    cluster.check_nothing_is_left()
    cluster.check_marks_have_rows()


@pytest.mark.parametrize("limits_away", [False, True])
async def test_suspended_between_the_limits_and_the_ending_a_retry_makes_no_second_entry(
    cluster: InMemoryCluster, limits_away: bool
) -> None:
    worker, person = await cluster.start(), await cluster.start()
    item = await taken_and_held(cluster, worker, person)

    async def suspend() -> None:
        await clean(cluster, person, item)
        if limits_away:
            worker.faults.plan = limits_are_away

    worker.faults.before = before = Before("end", suspend)
    if limits_away:
        with pytest.raises(ViewUnavailable):
            await item.retry(timedelta(0))
        worker.faults.plan = no_fault
    await item.retry(timedelta(0))
    assert before.happened

    (live,) = cluster.tables.live()
    assert live.held
    assert await cluster.recover() == []


async def test_administrator_who_was_suspended_makes_no_second_entry(
    cluster: InMemoryCluster,
) -> None:
    worker, person = await cluster.start(), await cluster.start()
    await cluster.enqueue(worker, "mail")
    _, item = await cluster.take(worker)
    await cluster.pass_time(ROUND)

    async def suspend(step: Step) -> None:
        if step.operation == "end":
            person.faults.before = None
            cluster.transmit(item)
            await item.done()
            await clean(cluster, worker, item)

    person.faults.before = suspend
    await person.queue.hold(ALL)

    assert cluster.tables.live() == []
    assert await cluster.recover() == []
    assert cluster.copies("mail") == 1


async def test_mail_that_was_delivered_and_cleaned_meanwhile_does_not_expire(
    cluster: InMemoryCluster,
) -> None:
    """The administrator's process was suspended between the mark and the dead letter."""
    worker, person = await cluster.start(), await cluster.start()
    await cluster.enqueue(worker, "mail")
    _, item = await cluster.take(worker)
    await cluster.pass_time(ROUND)

    async def suspend() -> None:
        await item.done()
        await clean(cluster, worker, item)

    person.faults.before = before = Before("records", suspend)

    assert await person.queue.expire(ALL) == 0

    assert before.happened
    assert cluster.tables.dead_letters == {}


async def test_what_a_late_retry_had_delivered_is_not_delivered_by_the_successor(
    cluster: InMemoryCluster,
) -> None:
    worker, person = await cluster.start(), await cluster.start()
    both = ("one@example.net", "two@example.net")
    await worker.queue.enqueue(plain_mail("mail", recipients=both))
    consumer, item = await cluster.take(worker)
    await cluster.pass_time(ROUND)
    await person.queue.hold(ALL)
    await clean(cluster, person, item)

    await item.retry(timedelta(0), remaining=both[1:])
    await consumer.close()
    await cluster.pass_time(3 * MINUTE)  # the claim on what was in flight lapses

    await person.queue.release(ALL)
    _, again = await cluster.take(person)
    assert again.mail.recipients == both[1:]


@pytest.mark.parametrize("how", ["done", "record"])
async def test_delivery_of_a_held_mail_reaches_its_successor(
    cluster: InMemoryCluster, how: str
) -> None:
    """At the close of its slice, before browse start passes, before cleanup, and after it."""
    for rounds in range(5):
        cluster = InMemoryCluster()
        worker, person = await cluster.start(), await cluster.start()
        item = await taken_and_held(cluster, worker, person)
        for _ in range(rounds):
            await cluster.pass_time(ROUND)
            await person.queue.maintain()

        cluster.transmit(item)
        if how == "record":
            await item.record(dict.fromkeys(item.mail.recipients, Outcome.delivered("250")))
        await item.done()
        for _ in range(4):
            await cluster.pass_time(ROUND)
            await person.queue.maintain()

        await person.queue.release(ALL)
        await cluster.recover()
        where = f"after {rounds} rounds"
        assert (cluster.copies("mail"), cluster.tables.dead_letters) == (1, {}), where
        cluster.check_nothing_is_left()
        await cluster.close()


async def test_delivered_mail_is_not_shown_held_once_its_slice_was_examined(
    cluster: InMemoryCluster,
) -> None:
    worker, person = await cluster.start(), await cluster.start()
    item = await taken_and_held(cluster, worker, person)
    cluster.transmit(item)
    await item.done()
    assert len(cluster.tables.live()) == 1

    await person.queue.maintain()

    assert cluster.tables.live() == []
    assert (await person.queue.size()).held == 0


@pytest.mark.parametrize("before", ["marks", "delete_rows", "delete_marks", "forget_slice"])
async def test_delivery_during_the_cleanup_of_its_slice_reaches_the_successor(
    cluster: InMemoryCluster, before: str
) -> None:
    worker, person = await cluster.start(), await cluster.start()
    item = await taken_and_held(cluster, worker, person)

    async def deliver(step: Step) -> None:
        if step.operation == before and cluster.tables.limits.have_passed(item_slice):
            person.faults.before = None
            cluster.transmit(item)
            await item.done()

    (item_slice,) = {key.slice_start for key in cluster.tables.marks}
    person.faults.before = deliver
    await clean(cluster, person, item)

    assert cluster.copies("mail") == 1
    await person.queue.release(ALL)
    await cluster.recover()
    assert (cluster.copies("mail"), cluster.tables.dead_letters) == (1, {})
    cluster.check_nothing_is_left()


async def test_delivery_by_who_did_not_know_that_browse_start_had_passed_reaches_the_successor(
    cluster: InMemoryCluster,
) -> None:
    worker, person = await cluster.start(), await cluster.start()
    item = await taken_and_held(cluster, worker, person)

    async def pass_meanwhile() -> None:
        await person.queue.maintain()
        assert cluster.tables.limits.have_passed(item_slice)

    (item_slice,) = {key.slice_start for key in cluster.tables.marks}
    worker.faults.before = before = Before("mark_delivered", pass_meanwhile)
    cluster.transmit(item)
    await item.done()
    assert before.happened
    await clean(cluster, person, item)

    await person.queue.release(ALL)
    await cluster.recover()
    assert (cluster.copies("mail"), cluster.tables.dead_letters) == (1, {})
    cluster.check_nothing_is_left()


async def test_administrator_who_was_suspended_removes_no_bytes_of_a_successor(
    cluster: InMemoryCluster,
) -> None:
    """They were retried, their slice was passed and cleaned; then their marks are written."""
    worker, person = await cluster.start(), await cluster.start()
    await cluster.enqueue(worker, *(f"mail{number}" for number in range(6)))
    consumer = Consumer(cluster, worker.queue)
    items = [await consumer.next() for _ in range(6)]
    await cluster.pass_time(2 * ROUND)

    async def suspend(step: Step) -> None:
        if step.operation == "marks":
            person.faults.before = None
            await cluster.pass_time(ROUND)  # the successors are none of those that wait now
            for item in items:
                await item.retry(timedelta(hours=9))
            await clean(cluster, worker, items[0])

    person.faults.before = suspend
    await person.queue.remove(ALL)

    assert len(cluster.tables.live()) == 6
    assert set(cluster.blobs) == {entry.blob_key for entry in cluster.tables.live()}
    await consumer.close()


@pytest.mark.parametrize("step", ["mark_delivered", "insert"])
async def test_delivery_that_is_handed_down_half_way_leaves_no_mail_that_waits(
    cluster: InMemoryCluster, process: Process, step: str
) -> None:
    """It was delivered while a hold stopped half way; maintenance stops where it finishes the
    hold."""
    await cluster.enqueue(process, "mail")
    consumer, item = await cluster.take(process)
    dying = await cluster.start()
    dying.fail(lambda at: Fault.STOP_AFTER if at.operation == "end" else None)
    with pytest.raises(Stopped):
        await dying.queue.hold(ALL)
    cluster.transmit(item)
    await item.done()
    await consumer.close()
    await cluster.pass_time(2 * WINDOW)
    maintenance = await cluster.start()
    maintenance.fail(lambda at: Fault.STOP_AFTER if at.operation == step else None)

    with pytest.raises(Stopped):
        await maintenance.queue.maintain()

    assert cluster.tables.live() == []
    await cluster.recover()
    assert cluster.copies("mail") == 1
    cluster.check_nothing_is_left()
