"""A purge that stops half way, or is overtaken, leaves no bytes and takes none that are needed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial

import pytest

from postroad.distributed.administration import purge
from postroad.domain.queues.documents import Sizes
from postroad.domain.queues.selection import Selector
from postroad.errors import ServerError, ViewUnavailable
from support.in_memory_cluster import Before, InMemoryCluster, Process
from support.memory.fault_injection import Fault, Step, Stopped, at, no_fault

ALL = Selector.all()
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
OLD = 16 * MINUTE
"""After this a slice is closed, and those after it are."""


def names(numbers: range) -> list[str]:
    return [f"mail {number}" for number in numbers]


def stop_before(operation: str) -> Callable[[Step], Fault | None]:
    return lambda step: Fault.STOP_BEFORE if step.operation == operation else None


async def maintenance(
    cluster: InMemoryCluster, process: Process, rounds: int = 4, every: timedelta = OLD
) -> None:
    for _ in range(rounds):
        await process.queue.maintain()
        await cluster.pass_time(every)


async def stopped_retry(cluster: InMemoryCluster, *, after: str) -> None:
    """Leave a replacement under way: its mark is written, and perhaps its row."""
    victim = await cluster.start()
    _, item = await cluster.take(victim)
    victim.faults.plan = lambda step: Fault.STOP_AFTER if step.operation == after else None
    with pytest.raises(Stopped):
        await item.retry(timedelta(0))
    victim.faults.stop()


@pytest.mark.parametrize("moment", ["marked", "delete"])
async def test_cleaning_does_not_overtake_a_blob_deletion(
    cluster: InMemoryCluster, process: Process, moment: str
) -> None:
    for start in (0, 10):
        await cluster.enqueue(process, *names(range(start, start + 10)), delay=7200)
        await cluster.pass_time(5 * MINUTE)
    await cluster.pass_time(OLD)
    worker = await cluster.start()
    await worker.queue.maintain()
    clean = partial(maintenance, cluster, worker, rounds=3, every=31 * SECOND)
    process.faults.before = before = Before(moment, clean)

    assert await process.queue.purge() == 20

    assert before.happened
    assert cluster.blobs == {}
    await maintenance(cluster, worker)
    assert cluster.tables.rows == {}


@pytest.mark.parametrize("waits", ["held", "delayed", "without a message"])
@pytest.mark.parametrize("operation", ["marked", "delete", "mark_blobs_deleted"])
async def test_what_a_purge_left_that_stopped_is_swept(
    cluster: InMemoryCluster, process: Process, waits: str, operation: str
) -> None:
    await cluster.enqueue(process, *names(range(6)), delay=3600 if waits == "delayed" else 0)
    if waits == "held":
        await process.queue.hold(ALL)
    if waits == "without a message":
        cluster.broker.lose_everything()
    await cluster.pass_time(OLD)
    worker = await cluster.start()
    await worker.queue.maintain()
    process.faults.plan = stop_before(operation)
    with pytest.raises(Stopped):
        await process.queue.purge()

    await maintenance(cluster, worker)

    assert cluster.blobs == {}
    assert await cluster.deliver(worker, 2 * HOUR) == []
    assert cluster.tables.rows == {}


@pytest.mark.parametrize("moment", range(1, 12))
async def test_a_line_that_comes_while_a_slice_is_judged_does_not_drain_it(
    cluster: InMemoryCluster, process: Process, moment: int
) -> None:
    """All that waits is in the last bucket, so that no other keeps the slice."""
    await cluster.enqueue(process, *names(range(8)), delay=7200)
    for entry in cluster.tables.live():
        if entry.key.bucket_id == 0:
            await process.queue.remove(Selector(name=entry.envelope.name))
    cluster.broker.lose_everything()
    await cluster.pass_time(OLD)
    worker = await cluster.start()
    await worker.queue.maintain()
    await cluster.pass_time(31 * SECOND)
    asked = 0

    async def purge_first(step: Step) -> None:
        nonlocal asked
        asked += step.operation in {"version", "blob_keys", "marks"}
        if asked == moment:
            asked += 1
            process.faults.plan = stop_before("marked")
            with pytest.raises(Stopped):
                await process.queue.purge()

    worker.faults.before = purge_first
    await worker.queue.maintain()
    await maintenance(cluster, worker)

    assert process.faults.stopped or asked < moment
    if process.faults.stopped:
        assert (cluster.tables.rows, cluster.blobs) == ({}, {})


@pytest.mark.parametrize("fault", [Fault.STOP_BEFORE, Fault.STOP_AFTER, Fault.AWAY])
@pytest.mark.parametrize("after", ["end", "insert"])
async def test_a_purge_may_stop_at_any_step_of_a_replacement(
    cluster: InMemoryCluster, process: Process, after: str, fault: Fault
) -> None:
    number = 0
    while True:
        cluster = InMemoryCluster(seed=number)
        process = await cluster.start()
        await cluster.enqueue(process, "mail")
        await stopped_retry(cluster, after=after)
        cluster.broker.lose_everything()
        await cluster.enqueue(process, *names(range(6)), delay=7200)
        await cluster.pass_time(62 * SECOND)
        purging = await cluster.start()
        first = len(purging.faults.steps)
        purging.fail(at(number, fault))
        with suppress(ServerError, Stopped):
            await purging.queue.purge()
        has_step = len(purging.faults.steps) - first > number
        purging.faults.plan = no_fault
        await process.queue.purge()

        await maintenance(cluster, process, rounds=6)

        where = f"step {number} of {[each.operation for each in purging.faults.steps[first:]]}"
        assert await process.queue.size() == Sizes(0, 0, 0, 0), where
        assert (cluster.tables.rows, cluster.blobs) == ({}, {}), where
        await cluster.close()
        if not has_step:
            return
        number += 1


async def test_what_could_not_be_deleted_keeps_its_slice(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, *names(range(3)))
    cluster.broker.lose_everything()
    await cluster.pass_time(OLD)
    process.faults.plan = lambda step: Fault.AWAY if step.server == "blobs" else None
    assert await process.queue.purge() == 3

    await maintenance(cluster, process)
    assert (len(cluster.tables.rows), len(cluster.blobs)) == (3, 3)
    process.faults.plan = no_fault
    await maintenance(cluster, process)

    assert (cluster.tables.rows, cluster.blobs) == ({}, {})


@pytest.mark.parametrize("after", ["end", "insert", "publish"])
async def test_a_mail_that_was_purged_in_its_replacement_does_not_come_back(
    cluster: InMemoryCluster, process: Process, after: str
) -> None:
    await cluster.enqueue(process, "mail")
    await stopped_retry(cluster, after=after)
    await cluster.enqueue(
        process, *names(range(6)), delay=7200
    )  # each partition gets its watermark
    await cluster.pass_time(62 * SECOND)
    purging = await cluster.start()
    purging.faults.plan = stop_before("marked")
    with pytest.raises(Stopped):
        await purging.queue.purge()

    finisher = await cluster.start()
    finisher.faults.plan = lambda step: (
        Fault.STOP_AFTER if step.operation == "change_successor" else None
    )
    with suppress(Stopped):
        await cluster.deliver(finisher)
    assert await cluster.deliver(process) == []

    await process.queue.purge()
    assert await process.queue.size() == Sizes(0, 0, 0, 0)
    await cluster.deliver(process, 3 * HOUR)
    cluster.check_nothing_is_left()


async def test_a_purge_between_two_choices_of_a_successor_takes_the_mail(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, "mail")
    await stopped_retry(cluster, after="end")
    await cluster.enqueue(process, *names(range(6)), delay=7200)
    await cluster.pass_time(62 * SECOND)
    finisher = await cluster.start()

    async def draw_lines() -> None:
        purging = await cluster.start()
        purging.faults.plan = stop_before("marked")
        with pytest.raises(Stopped):
            await purging.queue.purge()

    finisher.faults.before = before = Before("change_successor", draw_lines)

    assert await cluster.deliver(finisher) == []

    assert before.happened
    await process.queue.purge()
    await cluster.deliver(process, 3 * HOUR)
    cluster.check_nothing_is_left()


async def test_a_purge_reaches_buckets_that_were_empty_at_the_close(
    cluster: InMemoryCluster,
) -> None:
    healthy = await cluster.start()
    await cluster.enqueue(healthy, "mail")
    await cluster.pass_time(6 * MINUTE)
    await stopped_retry(cluster, after="end")
    cluster.broker.lose_everything()
    (mark,) = (each for each in cluster.tables.marks.values() if each.is_unfinished_replacement)
    assert mark.ending is not None
    successor = mark.ending.successor
    assert successor is not None
    while not any(
        key.slice_start == successor.slice_start and key.bucket_id != successor.bucket_id
        for key in cluster.tables.rows
    ):
        await cluster.enqueue(healthy, "beside", delay=7200)
    for key in [key for key in cluster.tables.rows if key.partition == successor.partition]:
        del cluster.tables.rows[key]
    await cluster.pass_time(8 * MINUTE)
    closing, stopping = await cluster.start(), await cluster.start()
    closing.faults.plan = lambda step: Fault.AWAY if step.operation == "change_successor" else None
    with suppress(ServerError):  # it closes slices, and cannot finish the replacement
        await closing.queue.maintain()
    stopping.fail(lambda step: Fault.STOP_AFTER if step.operation == "insert" else None)
    with pytest.raises(Stopped):
        await stopping.queue.maintain()
    assert successor.bucket_id not in cluster.tables.slices[successor.slice_start].rows
    assert successor in cluster.tables.rows

    await healthy.queue.purge()

    assert await healthy.queue.size() == Sizes(0, 0, 0, 0)


async def test_ages_forget_what_was_accepted_as_lost(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, *names(range(3)))
    await process.queue.hold(ALL)
    await maintenance(cluster, process, rounds=3)
    await process.queue.ages()
    lost = cluster.tables.live()[0].key
    del cluster.tables.rows[lost]

    await process.queue.accept_loss(lost.slice_start)

    ages = await process.queue.ages()
    assert sum(sum(each.values()) for each in ages.values()) == 2
    assert (await process.queue.size()).size == 2


async def test_a_blob_deletion_that_failed_is_repeated_by_the_next_purge(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, *names(range(8)))
    await cluster.pass_time(62 * SECOND)
    process.faults.plan = lambda step: Fault.AWAY if step.operation == "marked" else None
    with pytest.raises(ViewUnavailable):
        await process.queue.purge()
    assert await process.queue.size() == Sizes(0, 0, 0, 0)
    process.faults.plan = no_fault

    assert await process.queue.purge() == 0  # the first one ended them

    assert cluster.blobs == {}
    assert await cluster.deliver(process) == []
    cluster.check_nothing_is_left()


async def test_a_purge_deletes_the_bytes_of_many_batches(
    cluster: InMemoryCluster, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(purge, "TOGETHER", 2)
    await cluster.enqueue(process, *names(range(9)), delay=7200)
    await cluster.pass_time(OLD)

    assert await process.queue.purge() == 9

    assert not cluster.blobs


async def test_each_mail_that_a_purge_ends_counts_as_an_ending(
    cluster: InMemoryCluster, process: Process
) -> None:
    """After some endings browse start is moved."""
    ended: list[bool] = []
    process.queue._engine.on_ending = lambda: ended.append(True)
    await cluster.enqueue(process, *names(range(5)), delay=7200)
    await cluster.pass_time(OLD)

    await process.queue.purge()

    assert len(ended) == 5
