"""Enqueue keys in the distributed engine: a process that stops or fails anywhere in an enqueue with
a key leaves one mail to the next enqueue with it, and none without."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from uuid import UUID

import pytest

from contract.queue_harness import plain_mail
from postroad.domain.queues.references import KEY_LIFETIME
from postroad.domain.queues.selection import Selector
from postroad.errors import PostroadError, QueueClosed
from support.in_memory_cluster import Before, InMemoryCluster, Process
from support.memory.fault_injection import Fault, Stopped, at

SOON = timedelta(minutes=3)
MINUTE = timedelta(minutes=1)
MAX_STEPS = 60


async def enqueue(cluster: InMemoryCluster, process: Process) -> UUID | None:
    """Queue the mail with its key; None where the process stops, or gets an error."""
    work = asyncio.ensure_future(process.queue.enqueue(plain_mail("mail"), key="one"))
    try:
        await cluster.outcome(work, SOON)
        if not work.done():
            assert process.faults.stopped, "it hangs"
            work.cancel()
        return await work
    except (PostroadError, Stopped, asyncio.CancelledError):
        return None


@pytest.mark.parametrize("delivers", [False, True], ids=["waits", "delivered"])
@pytest.mark.parametrize(
    "fault",
    [Fault.STOP_AFTER, Fault.AWAY, Fault.ANSWER_LOST],
    ids=lambda fault: fault.name.lower(),
)
async def test_an_enqueue_that_stops_or_fails_anywhere_is_repeated_as_one_mail(
    fault: Fault, *, delivers: bool
) -> None:
    for number in range(MAX_STEPS):
        cluster = InMemoryCluster(seed=number)
        healthy, victim = await cluster.start(), await cluster.start()
        first = len(victim.faults.steps)
        victim.fail(at(number, fault))
        began = await enqueue(cluster, victim)
        reached = len(victim.faults.steps) - first > number
        where = f"step {number}: {victim.faults.steps[first + number : first + number + 1]}"
        if delivers:
            await cluster.deliver(healthy, MINUTE)

        found = await enqueue(cluster, healthy)

        assert found is not None, where
        assert began in (None, found), where
        await cluster.recover()
        assert cluster.copies("mail") == 1, where
        assert await enqueue(cluster, healthy) == found, where
        await cluster.recover()
        assert cluster.copies("mail") == 1, where
        cluster.check_marks_have_rows()
        victim.faults.stop()
        await cluster.audit()
        cluster.check_nothing_is_left()
        await cluster.close()
        if not reached:
            return
    pytest.fail("the enqueue has more steps than this test expects")


@pytest.mark.parametrize("operation", ["insert", "publish", "change_key"])
async def test_an_enqueue_waits_for_the_one_that_has_its_key(
    cluster: InMemoryCluster, process: Process, operation: str
) -> None:
    slow = await cluster.start()

    async def linger() -> None:
        await slow.clock.sleep(timedelta(seconds=3))

    slow.faults.before = Before(operation, linger)
    calls = [each.queue.enqueue(plain_mail("mail"), key="one") for each in (slow, process)]
    work = asyncio.gather(*calls)

    assert await cluster.outcome(work, timedelta(seconds=6))
    assert len(set(work.result())) == 1
    assert await cluster.recover() == ["mail"]


@pytest.mark.parametrize("operation", ["insert", "publish", "change_key"])
async def test_an_enqueue_that_stood_still_with_the_key_adds_no_mail(
    cluster: InMemoryCluster, process: Process, operation: str
) -> None:
    """Its process goes on when another one has settled what the key stands for."""
    paused, resumed = await cluster.start(), asyncio.Event()
    paused.faults.before = Before(operation, resumed.wait)
    late = asyncio.ensure_future(paused.queue.enqueue(plain_mail("mail"), key="one"))
    await cluster.pass_time(timedelta(seconds=40))

    found = await enqueue(cluster, process)
    resumed.set()
    await cluster.outcome(late, SOON)

    assert late.exception() is not None or operation != "insert"
    assert found is not None
    assert await cluster.recover() == ["mail"]
    assert cluster.copies("mail") == 1
    cluster.check_nothing_is_left()


async def test_a_mail_whose_row_cannot_be_decoded_was_queued(
    cluster: InMemoryCluster, process: Process
) -> None:
    """Its enqueue stopped before it noted that the mail is accepted."""
    victim = await cluster.start()
    victim.fail(lambda step: Fault.STOP_BEFORE if step.operation == "change_key" else None)
    assert await enqueue(cluster, victim) is None
    [key] = cluster.tables.rows
    cluster.tables.undecodable.add(key)
    await cluster.pass_time(MINUTE)

    assert await enqueue(cluster, process) == key.enqueue_id

    assert list(cluster.tables.rows) == [key]


async def test_a_key_is_free_a_day_after_its_mail_was_queued(
    cluster: InMemoryCluster, process: Process
) -> None:
    first = await enqueue(cluster, process)
    await cluster.pass_time(KEY_LIFETIME - MINUTE)
    assert await enqueue(cluster, process) == first

    await cluster.pass_time(2 * MINUTE)

    assert await enqueue(cluster, process) != first
    assert (await process.queue.size()).size == 2


async def test_a_removed_mail_does_not_come_back_by_its_key(
    cluster: InMemoryCluster, process: Process
) -> None:
    first = await enqueue(cluster, process)
    await process.queue.remove(Selector(name="mail"))

    assert await enqueue(cluster, process) == first
    assert await cluster.recover() == []


async def test_a_key_of_an_erased_queue_stands_for_nothing_in_the_next_of_its_name(
    cluster: InMemoryCluster, process: Process
) -> None:
    first = await enqueue(cluster, process)
    cluster.tables.rows.clear()
    cluster.tables.erase_rest()
    again = await cluster.start()

    assert await enqueue(cluster, again) != first


async def test_an_enqueue_begins_nothing_behind_a_close_that_comes_while_it_takes_its_key(
    cluster: InMemoryCluster, process: Process
) -> None:
    closing = await cluster.start()
    closing.faults.before = Before("take_key", closing.queue.close)
    work = asyncio.ensure_future(closing.queue.enqueue(plain_mail("mail"), key="one"))

    await cluster.outcome(work, SOON)

    assert isinstance(work.exception(), QueueClosed)
    assert "insert" not in [step.operation for step in closing.faults.steps]
    assert not cluster.blobs
    assert await enqueue(cluster, process) is not None
    await cluster.recover()
    assert cluster.copies("mail") == 1
    cluster.check_nothing_is_left()
