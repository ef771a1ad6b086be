"""Long queues cost few requests: removed by the hundred, looked at without reading all again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from contract.queue_harness import Consumer
from postroad.distributed.engine.timing import Timing
from postroad.distributed.maintenance import browse_start
from postroad.distributed.reading.size import KeptCounts, SizeCache
from postroad.domain.delivery.attempts import AttemptOutcomes
from postroad.domain.delivery.retries import DONE, Reject, RetryItem
from postroad.domain.queues.documents import Sizes
from postroad.domain.queues.selection import Selector
from support.in_memory_cluster import WINDOW, Before, InMemoryCluster, Process
from support.memory.fault_injection import Fault, Stopped

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)


@pytest.fixture
async def cluster() -> AsyncIterator[InMemoryCluster]:
    cluster = InMemoryCluster(timing=Timing(ages=timedelta(0)))
    yield cluster
    await cluster.close()


def count(process: Process, since: int, operation: str) -> int:
    return sum(step.operation == operation for step in process.faults.steps[since:])


def names(numbers: range) -> list[str]:
    return [f"mail {number}" for number in numbers]


async def test_a_purge_ends_the_mails_of_a_partition_together(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, *names(range(60)))
    began = len(process.faults.steps)

    assert await process.queue.purge() == 60

    assert count(process, began, "end") == 2  # one for each bucket
    assert cluster.blobs == {}
    assert await cluster.deliver(process) == []
    cluster.check_nothing_is_left()


async def test_mails_that_ended_under_a_purge_are_not_counted_and_keep_no_others(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, *names(range(40)))
    other = await cluster.start()
    consumer, item = await cluster.take(other)

    async def deliver() -> None:
        cluster.transmit(item)
        await item.done()

    process.faults.before = before = Before("end", deliver)

    assert await process.queue.purge() == 39

    assert before.happened
    await consumer.close()
    assert (await process.queue.size()) == Sizes(0, 0, 0, 0)
    await cluster.deliver(process)
    cluster.check_nothing_is_left()
    assert sum(cluster.transmitted.values()) == 1


async def test_a_purge_takes_what_a_removal_left_in_all_slices(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, *names(range(30)))
    await cluster.pass_time(WINDOW)
    await cluster.enqueue(process, *names(range(30, 45)))

    removed = await process.queue.remove(Selector(name="mail 3"))
    removed += await process.queue.purge()

    assert removed == 45
    assert await process.queue.purge() == 0
    assert await cluster.deliver(process) == []


async def closed_slices(cluster: InMemoryCluster, process: Process) -> None:
    """Three slices with eight mails each, the first two of them closed."""
    for start in (0, 8, 16):
        if start:
            await cluster.pass_time(WINDOW)
        await cluster.enqueue(process, *names(range(start, start + 8)))
    await cluster.pass_time(WINDOW + 2 * MINUTE)
    await process.queue.maintain()


@pytest.mark.parametrize(("most", "closed"), [(browse_start.AT_MOST, 6), (2, 3)])
async def test_one_run_closes_all_slices_that_it_may(
    cluster: InMemoryCluster,
    process: Process,
    monkeypatch: pytest.MonkeyPatch,
    most: int,
    closed: int,
) -> None:
    monkeypatch.setattr(browse_start, "TOGETHER", 1)
    monkeypatch.setattr(browse_start, "AT_MOST", most)
    monkeypatch.setattr(browse_start, "BEYOND", 100 * WINDOW)  # it closes slices too
    await cluster.enqueue(process, "first", delay=10**5)
    await cluster.pass_time(WINDOW + 2 * MINUTE)
    await process.queue.maintain()
    assert len(cluster.tables.slices) == 1
    for number in range(5):
        await cluster.enqueue(process, f"mail {number}", delay=10**5)
        await cluster.pass_time(WINDOW)

    await process.queue.maintain()

    assert len(cluster.tables.slices) == closed
    for _ in range(3):
        await process.queue.maintain()
    assert len(cluster.tables.slices) == 6


async def total(process: Process) -> int:
    return sum(sum(each.values()) for each in (await process.queue.ages()).values())


async def test_ages_read_a_closed_slice_once_and_again_when_a_mail_of_it_ended(
    cluster: InMemoryCluster, process: Process
) -> None:
    await closed_slices(cluster, process)
    assert len(cluster.tables.slices) >= 2
    assert await total(process) == 24
    began = len(process.faults.steps)

    await cluster.pass_time(SECOND)
    assert await total(process) == 24
    again = count(process, began, "rows")
    assert await process.queue.remove(Selector(name="mail 2")) == 1
    began = len(process.faults.steps)
    await cluster.pass_time(SECOND)
    assert await total(process) == 23

    partitions = 2 * len(cluster.tables.slices)
    assert again < count(process, began, "rows")
    assert count(process, began, "rows") < again + 8 + partitions


async def test_counts_are_kept_for_another_engine_of_the_queue(
    cluster: InMemoryCluster, process: Process
) -> None:
    """The operator makes one for each turn of a queue."""
    await closed_slices(cluster, process)
    kept = KeptCounts()

    async def counted() -> int:
        began = len(process.faults.steps)
        assert (await SizeCache(process.queue._engine, kept).get()).size == 24
        return count(process, began, "count_rows")

    first, second = await counted(), await counted()

    assert second < first
    kept.closed.clear()
    assert await counted() == first


async def test_attempts_of_workers_are_counted_and_what_administration_ends_is_not(
    cluster: InMemoryCluster, process: Process
) -> None:
    kept, outcomes = KeptCounts(), AttemptOutcomes((), 1.5)
    sizes = SizeCache(process.queue._engine, kept)
    await cluster.enqueue(process, *names(range(20)))
    await sizes.get()
    consumer = Consumer(cluster, process.queue)
    for ending in (DONE, DONE, RetryItem(timedelta(hours=1)), Reject("no")):
        await (await consumer.next()).end(ending, outcomes)
    await sizes.get()
    assert kept.attempted == 4

    await consumer.close()
    await process.queue.hold(Selector.all())
    await process.queue.release(Selector.all())
    await process.queue.flush(Selector.all())
    await process.queue.remove(Selector.all())
    await sizes.get()
    assert kept.attempted == 4


async def test_ages_count_a_mail_once_whose_replacement_is_finished_later(
    cluster: InMemoryCluster, process: Process
) -> None:
    """The end of a replacement leaves no mark in the slice of the first entry."""
    victim = await cluster.start()
    await cluster.enqueue(process, "mail", delay=10**6)
    await cluster.pass_time(WINDOW)
    victim.fail(lambda step: Fault.STOP_BEFORE if step.operation == "mark_published" else None)
    with pytest.raises(Stopped):
        await victim.queue.hold(Selector.all())
    await cluster.pass_time(4 * WINDOW)
    await process.queue._maintenance._advance.run()
    assert len(cluster.tables.slices) == 2
    before = await total(process)

    await process.queue._maintenance._rows.run()
    await cluster.pass_time(2 * MINUTE)

    assert before >= 1
    assert await total(process) == 1


async def test_what_was_counted_of_passed_slices_is_forgotten(
    cluster: InMemoryCluster, process: Process
) -> None:
    """Else the memory of a process grows with the time that it runs."""
    await closed_slices(cluster, process)
    await total(process)
    await process.queue.size()
    ages, sizes = process.queue._ages, process.queue._sizes
    assert ages._closed
    assert sizes._kept.closed
    await process.queue.flush(Selector.all())
    await cluster.recover()
    await cluster.pass_time(4 * WINDOW)
    await process.queue.maintain()

    assert await total(process) == 0
    await process.queue.size()

    assert not ages._closed
    assert not sizes._kept.closed


async def test_ages_of_remembered_mails_go_on(cluster: InMemoryCluster, process: Process) -> None:
    await closed_slices(cluster, process)
    await total(process)
    old = timedelta(minutes=1280)

    await cluster.pass_time(old)
    ages = await process.queue.ages()

    assert {limit for each in ages.values() for limit, mails in each.items() if mails} == {
        timedelta.max
    }
    assert await total(process) == 24


async def test_an_age_of_a_limit_is_not_below_it(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, "mail")

    await cluster.pass_time(5 * MINUTE - timedelta(milliseconds=1))
    (younger,) = (await process.queue.ages()).values()
    await cluster.pass_time(timedelta(milliseconds=1))
    (older,) = (await process.queue.ages()).values()

    assert younger[5 * MINUTE] == 1
    assert (older[5 * MINUTE], older[10 * MINUTE]) == (0, 1)
