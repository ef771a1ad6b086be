"""A requeue that is suspended between two of its steps, past the grace period, while others close,
drain and pass the slice of the new entry: the dead letter is neither lost nor queued twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from unittest.mock import patch

import pytest

from contract.queue_harness import Consumer
from postroad.domain.queues.entries import Entry
from postroad.domain.queues.selection import Selector
from postroad.errors import ClockSkew
from postroad.ports.mail_queue import Item
from support.in_memory_cluster import WINDOW, InMemoryCluster, Process
from support.memory.fault_injection import Fault, Step, Stopped

ALL = Selector.all()
MINUTE = timedelta(minutes=1)
STEPS = 20


async def with_a_dead_letter() -> tuple[InMemoryCluster, Process, Process]:
    cluster = InMemoryCluster()
    victim, other = await cluster.start(), await cluster.start()
    await cluster.enqueue(other, "mail")
    consumer, item = await cluster.take(other)
    await item.reject("no")
    await consumer.close()
    return cluster, victim, other


async def maintained(cluster: InMemoryCluster, other: Process, duration: timedelta) -> None:
    """Let time pass, with a worker that maintains and delivers."""
    for _ in range(duration // (WINDOW + 3 * MINUTE) or 1):
        await cluster.pass_time(min(duration, WINDOW + 3 * MINUTE))
        await other.queue.maintain()
        await cluster.deliver(other, MINUTE)


async def each_step(attempt: Callable[[int], Awaitable[bool]]) -> None:
    """Make an attempt for each step of the operation; it returns whether there is this step."""
    for number in range(STEPS):
        if not await attempt(number):
            return
    pytest.fail("the operation has more steps than this test expects")


@asynccontextmanager
async def requeue_that_stands_still(
    number: int,
    meanwhile: Callable[[InMemoryCluster, Process], Awaitable[object]],
    *,
    is_paused: bool,
) -> AsyncIterator[tuple[InMemoryCluster, Process, bool]]:
    """Let another process act before one step of a requeue; yield whether the requeue has this
    step."""
    cluster, victim, other = await with_a_dead_letter()
    await victim.queue._engine.limits_cache.refresh()
    number += len(victim.faults.steps)

    async def stand_still(step: Step) -> None:
        if step.number == number:
            start = cluster.clock.elapsed()
            await meanwhile(cluster, other)
            if is_paused:
                victim.clock.pause(cluster.clock.elapsed() - start)

    victim.faults.before = stand_still
    with suppress(ClockSkew):
        await victim.queue.requeue(ALL)
    reached = len(victim.faults.steps) > number

    victim.faults.before = None
    await recovered(cluster)
    yield cluster, other, reached
    assert cluster.copies("mail") == 1, victim.faults.steps[number:][:1]
    cluster.check_nothing_is_left()
    await cluster.close()


@pytest.mark.parametrize("is_paused", [False, True], ids=["suspended", "paused"])
@pytest.mark.parametrize("minutes", [0.5, 1.5, 40])
async def test_requeue_that_stands_still_before_any_step_loses_and_repeats_nothing(
    minutes: float, is_paused: bool
) -> None:
    """The clocks of a machine that is paused do not show it."""

    async def work(cluster: InMemoryCluster, other: Process) -> None:
        await maintained(cluster, other, timedelta(minutes=minutes))

    async def attempt(number: int) -> bool:
        async with requeue_that_stands_still(number, work, is_paused=is_paused) as found:
            cluster, other, reached = found
            if cluster.tables.dead_letters:
                assert await other.queue.requeue(ALL) == 1
                await recovered(cluster)
        return reached

    await each_step(attempt)


@pytest.mark.parametrize("is_paused", [False, True], ids=["suspended", "paused"])
@pytest.mark.parametrize("is_delivered", [False, True], ids=["waits", "delivered"])
async def test_requeue_that_stands_still_while_another_is_made_makes_no_second_entry(
    is_delivered: bool, is_paused: bool
) -> None:
    """Its claim lapsed, and the dead letter that it read is gone."""

    async def requeue(cluster: InMemoryCluster, other: Process) -> None:
        await cluster.pass_time(3 * MINUTE)
        await other.queue.requeue(ALL)
        if is_delivered:
            await cluster.deliver(other, MINUTE)

    async def attempt(number: int) -> bool:
        async with requeue_that_stands_still(number, requeue, is_paused=is_paused) as found:
            _, _, reached = found
        return reached

    await each_step(attempt)


async def recovered(cluster: InMemoryCluster) -> None:
    """Let everything that waits for its time have it."""
    for _ in range(3):
        await cluster.pass_time(10 * MINUTE)
        await cluster.recover()


async def test_row_that_comes_after_its_entry_was_given_up_is_not_published() -> None:
    """Another process has requeued the dead letter meanwhile; the slice of the first entry is still
    open to consumers."""
    cluster, victim, other = await with_a_dead_letter()
    consumer = Consumer(cluster, other.queue)

    async def suspend(step: Step) -> None:
        if step.operation == "insert":
            await cluster.pass_time(3 * MINUTE)
            assert await other.queue.requeue(ALL) == 1
        if not await consumer.nothing():
            item = await consumer.next()
            cluster.transmit(item)
            await item.done()

    victim.faults.before = suspend
    assert await victim.queue.requeue(ALL) == 0

    victim.faults.before = None
    await consumer.close()
    await recovered(cluster)
    assert cluster.copies("mail") == 1
    cluster.check_nothing_is_left()


@pytest.mark.parametrize("before", ["rewrite_dead_letter", "publish"])
async def test_dead_letter_whose_entry_was_given_up_by_a_process_that_died_stays(
    before: str,
) -> None:
    """The other requeue goes on behind it, and publishes the entry that was withdrawn."""
    cluster, victim, _ = await with_a_dead_letter()
    dying = await cluster.start()
    met = [0]

    async def suspend(step: Step) -> None:
        met[0] += step.operation == before
        if step.operation == before and met[0] == (2 if before == "rewrite_dead_letter" else 1):
            await cluster.pass_time(3 * MINUTE)
            dying.fail(
                lambda each: Fault.STOP_BEFORE if each.operation == "rewrite_dead_letter" else None
            )
            await asyncio.wait([asyncio.ensure_future(dying.queue.requeue(ALL))])
            dying.faults.stop()

    victim.faults.before = suspend
    await victim.queue.requeue(ALL)

    victim.faults.before = None
    await recovered(cluster)
    assert cluster.copies("mail") == 1
    cluster.check_nothing_is_left()


async def test_requeue_that_died_after_a_suspension_is_done_again() -> None:
    """Its row came late, into a slice that browse start had passed; no process withdrew it."""
    cluster, victim, other = await with_a_dead_letter()

    async def suspend(step: Step) -> None:
        if step.operation == "insert":
            for _ in range(3):
                await cluster.pass_time(WINDOW + MINUTE)
                await other.queue._maintenance._advance.run()

    victim.faults.before = suspend
    victim.fail(lambda step: Fault.STOP_AFTER if step.operation == "insert" else None)
    work = asyncio.ensure_future(victim.queue.requeue(ALL))
    await asyncio.wait([work])

    assert victim.faults.stopped
    assert await cluster.recover() == ["mail"]
    assert cluster.copies("mail") == 1
    cluster.check_nothing_is_left()


async def test_requeued_mail_in_a_workers_hands_is_not_given_an_entry_again() -> None:
    """The requeue died after its message went out, so the dead letter is still there."""
    cluster, victim, other = await with_a_dead_letter()
    victim.fail(lambda step: Fault.STOP_AFTER if step.operation == "publish" else None)
    await asyncio.wait([asyncio.ensure_future(victim.queue.requeue(ALL))])
    consumer = Consumer(cluster, other.queue)
    item = await consumer.next()

    for _ in range(4):
        await cluster.pass_time(11 * MINUTE)
        await other.queue.maintain()
        assert await consumer.nothing(MINUTE)
    cluster.transmit(item)
    await item.done()
    await consumer.close()
    await cluster.pass_time(11 * MINUTE)

    assert await cluster.recover() == []
    assert cluster.copies("mail") == 1
    cluster.check_nothing_is_left()


async def test_dead_letter_whose_message_another_release_wrote_gets_a_row_for_its_new_entry() -> (
    None
):
    """The requeue ended before it inserted the row."""
    cluster, victim, other = await with_a_dead_letter()
    victim.fail(lambda step: Fault.STOP_BEFORE if step.operation == "insert" else None)
    with pytest.raises(Stopped):
        await victim.queue.requeue(ALL)
    [(dead_letter_id, dead_letter)] = cluster.tables.dead_letters.items()
    assert dead_letter.requeued_as is not None
    cluster.tables.dead_letters[dead_letter_id] = replace(dead_letter, body=b'{"v": 2}')
    cluster.tables.claims.clear()

    assert await other.queue.requeue(ALL) == 1

    assert [each.enqueue_id async for each in other.queue.browse()] == [
        dead_letter.requeued_as.enqueue_id
    ]
    assert await cluster.recover() == ["mail"]
    cluster.check_nothing_is_left()


async def test_requeue_of_an_older_release_whose_mail_is_in_flight_is_not_repeated() -> None:
    """It left no message in the dead letter, and died before it deleted the dead letter."""
    cluster, victim, other = await with_a_dead_letter()
    victim.fail(lambda step: Fault.STOP_BEFORE if step.operation == "delete_dead_letter" else None)
    with pytest.raises(Stopped):
        await victim.queue.requeue(ALL)
    [(dead_letter_id, dead_letter)] = cluster.tables.dead_letters.items()
    cluster.tables.dead_letters[dead_letter_id] = replace(dead_letter, body=None)
    consumer = Consumer(cluster, other.queue)
    item = await consumer.next()
    await cluster.pass_time(5 * MINUTE)

    assert await other.queue.requeue(ALL) == 0
    assert list(cluster.tables.dead_letters) == [dead_letter_id]

    cluster.transmit(item)
    await item.done()
    await consumer.close()
    assert await other.queue.requeue(ALL) == 0
    assert await cluster.recover() == []
    cluster.check_nothing_is_left()


ENDED: dict[str, Callable[[Item, Process], Awaitable[object]]] = {
    "deferred": lambda item, other: item.retry(timedelta(hours=2)),
    "removed": lambda item, other: other.queue.remove(ALL),
}


@pytest.mark.parametrize("ended", ENDED)
@pytest.mark.parametrize(
    ("fault", "by"),
    [
        (Fault.STOP_BEFORE, "maintenance"),
        (Fault.AWAY, "maintenance"),
        (Fault.STOP_BEFORE, "requeue"),
    ],
)
async def test_requeue_whose_entry_is_over_and_cleaned_makes_no_second_one(
    ended: str, fault: Fault, by: str
) -> None:
    """The dead letter was not deleted behind the publish; the slice of the new entry is passed and
    cleaned before maintenance, or a requeue, comes to the dead letter."""
    cluster, victim, other = await with_a_dead_letter()
    victim.fail(lambda step: fault if step.operation == "delete_dead_letter" else None)
    await asyncio.wait([asyncio.ensure_future(victim.queue.requeue(ALL))])
    victim.faults.stop()
    consumer = Consumer(cluster, other.queue)
    item = await consumer.next()
    await cluster.pass_time(WINDOW)
    await ENDED[ended](item, other)
    await consumer.close()
    for _ in range(4):
        await cluster.pass_time(WINDOW + MINUTE)
        await other.queue._maintenance._advance.run()
        await other.queue._maintenance._cleanup.run()
    assert item.enqueue_id not in {key.enqueue_id for key in cluster.tables.rows}

    if by == "requeue":
        assert await other.queue.requeue(ALL) == 0
    else:
        await other.queue.maintain()

    assert cluster.tables.dead_letters == {}
    assert len(cluster.tables.live()) == (ended == "deferred")
    await cluster.pass_time(timedelta(hours=2))
    assert await cluster.recover() == ["mail"] * (ended == "deferred")
    cluster.check_nothing_is_left(in_flight=ended == "removed")


@pytest.mark.parametrize("operation", ["rewrite_dead_letter", "insert", "publish"])
@pytest.mark.parametrize("fault", [Fault.STOP_BEFORE, Fault.STOP_AFTER])
async def test_requeue_that_died_before_its_entry_was_seen_is_done_again(
    operation: str, fault: Fault
) -> None:
    """Nothing is in the slice of the new entry, or nothing but its row."""
    cluster, victim, other = await with_a_dead_letter()
    victim.fail(lambda step: fault if step.operation == operation else None)
    await asyncio.wait([asyncio.ensure_future(victim.queue.requeue(ALL))])
    assert victim.faults.stopped
    for _ in range(4):
        await cluster.pass_time(WINDOW + MINUTE)
        await other.queue._maintenance._advance.run()
        await other.queue._maintenance._cleanup.run()

    await recovered(cluster)
    if (operation, fault) == ("rewrite_dead_letter", Fault.STOP_BEFORE):
        assert len(cluster.tables.dead_letters) == 1
        assert await other.queue.requeue(ALL) == 1
        await recovered(cluster)
    assert cluster.copies("mail") == 1
    cluster.check_nothing_is_left()


async def test_dead_letter_whose_new_entry_was_removed_is_over() -> None:
    """The requeue died between the row and the message."""
    cluster, victim, other = await with_a_dead_letter()
    victim.fail(lambda step: Fault.STOP_AFTER if step.operation == "insert" else None)
    await asyncio.wait([asyncio.ensure_future(victim.queue.requeue(ALL))])
    assert await other.queue.remove(ALL) == 1
    await cluster.pass_time(3 * MINUTE)

    assert await other.queue.requeue(ALL) == 0

    assert cluster.tables.dead_letters == {}
    await recovered(cluster)
    cluster.check_nothing_is_left()


@pytest.mark.parametrize("is_delivered", [False, True])
async def test_row_of_a_requeue_without_an_answer_that_comes_late_makes_no_second_copy(
    is_delivered: bool,
) -> None:
    """A host of the view that stood still carries the insert out after the entry was given up."""
    cluster, victim, other = await with_a_dead_letter()
    inserted: list[Entry] = []

    async def unanswered(entry: Entry) -> None:
        inserted.append(entry)
        victim.faults.stop()
        raise Stopped

    with patch.object(victim.queue._engine.view, "insert", unanswered), pytest.raises(Stopped):
        await victim.queue.requeue(ALL)
    await cluster.pass_time(3 * MINUTE)
    assert await other.queue.requeue(ALL) == 1
    if is_delivered:
        assert await cluster.deliver(other, MINUTE) == ["mail"]
    cluster.tables.insert(inserted[0])

    assert (await other.queue.size()).size == (not is_delivered)
    await other.queue.republish(timedelta(0))
    await recovered(cluster)
    assert cluster.copies("mail") == 1
    cluster.check_nothing_is_left()


@pytest.mark.parametrize("is_delivered", [True, False])
async def test_mail_that_was_given_up_under_a_worker_is_not_queued_again(
    cluster: InMemoryCluster, is_delivered: bool
) -> None:
    """An administrator held it while a worker had it in flight, and let what was held expire."""
    worker, admin = await cluster.start(), await cluster.start()
    await cluster.enqueue(worker, "mail")
    consumer, item = await cluster.take(worker)
    await cluster.pass_time(timedelta(seconds=30))
    assert await admin.queue.hold(ALL) == 1
    cluster.transmit(item)
    if is_delivered:
        await item.done()
    assert await admin.queue.expire(ALL) == 1

    assert await admin.queue.requeue(ALL) == 0

    if not is_delivered:
        await item.done()
    await consumer.close()
    await admin.queue.release(ALL)
    await maintained(cluster, admin, 6 * WINDOW)
    await cluster.recover()
    assert cluster.copies("mail") == 1
    cluster.check_nothing_is_left()
