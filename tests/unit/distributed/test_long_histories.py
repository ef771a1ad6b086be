"""What a mail that waits for long, or a queue that was left alone, costs: requests for the slices
in which mail waits, and none for the time that has passed."""

from __future__ import annotations

import tracemalloc
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import pytest

from postroad.distributed.entries.replacement import replacement_of
from postroad.distributed.maintenance.browse_start import BEYOND
from postroad.distributed.maintenance.row_maintenance import FEW
from postroad.domain.queues.entries import Mark
from postroad.domain.queues.selection import Selector
from support.in_memory_cluster import InMemoryCluster, Process
from support.memory.fault_injection import Fault, Step, Stopped

ALL = Selector.all()
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


@pytest.fixture
async def cluster() -> AsyncIterator[InMemoryCluster]:
    cluster = InMemoryCluster(window=MINUTE, buckets=3)
    yield cluster
    await cluster.close()


async def names(process: Process) -> list[str]:
    return sorted([view.mail.name or "" async for view in process.queue.browse()])


async def requests(process: Process) -> dict[str, int]:
    """Return how many requests size, browse, the picture of ages and a round of maintenance
    cost."""
    process.queue._maintenance._rows._due = timedelta(0)
    counted = {}
    for what in ("size", "ages", "maintain"):
        first = len(process.faults.steps)
        await getattr(process.queue, what)()
        counted[what] = len(process.faults.steps) - first
    first = len(process.faults.steps)
    await names(process)
    counted["browse"] = len(process.faults.steps) - first
    return counted


async def test_size_and_browse_of_an_idle_queue_ask_about_many_slices_at_once(
    cluster: InMemoryCluster, process: Process
) -> None:
    """No maintenance ran since the mail was held."""
    await cluster.enqueue(process, "held")
    await process.queue.hold(ALL)
    await cluster.pass_time(3 * DAY)

    first = len(process.faults.steps)
    assert (await process.queue.size()).held == 1
    assert len(process.faults.steps) - first < 200
    first = len(process.faults.steps)
    assert await names(process) == ["held"]
    assert len(process.faults.steps) - first < 200


async def test_queue_that_was_left_alone_is_gone_over_in_bounded_memory(
    cluster: InMemoryCluster, process: Process
) -> None:
    """Two weeks of slices of a second: a million of them."""
    process.queue._engine.configuration = InMemoryCluster(window=SECOND).configuration
    await cluster.pass_time(14 * DAY)
    asked = 0

    async def stop_soon(step: Step) -> None:
        nonlocal asked
        asked += step.operation == "occupied"
        if asked > 50:
            process.faults.stop()

    process.faults.before = stop_soon
    tracemalloc.start()
    with pytest.raises(Stopped):
        await process.queue.size()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert most < 10_000_000


async def test_idle_queue_keeps_up_with_few_requests(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.pass_time(3 * DAY)
    first = len(process.faults.steps)

    await process.queue.maintain()

    assert len(process.faults.steps) - first < 500
    start = cluster.tables.limits.browse_start
    assert start is not None
    assert start > cluster.clock.now() - 4 * MINUTE


async def test_what_is_over_behind_a_waiting_mail_is_left_out(
    cluster: InMemoryCluster, process: Process
) -> None:
    """Too many wait in the old slice to be given new entries."""
    waiting = [f"held {number}" for number in range(FEW + 1)]
    await cluster.enqueue(process, *waiting)
    await process.queue.hold(ALL)
    for number in range(40):
        await cluster.enqueue(process, f"goes {number}")
        await cluster.deliver(process, SECOND)
        await cluster.pass_time(MINUTE)
    (old,) = {entry.key.slice_start for entry in cluster.tables.live()}
    for _ in range(2):
        await cluster.pass_time(BEYOND)
        await process.queue.maintain()

    counted = await requests(process)

    assert cluster.tables.limits.browse_start == old
    assert await names(process) == sorted(waiting)
    assert (await process.queue.size()).size == len(waiting)
    drained = [each.drained for each in cluster.tables.slices.values()]
    assert (drained.count(False), drained.count(True)) == (1, 39)
    assert max(counted.values()) < 60, counted


async def test_successor_that_comes_late_into_a_slice_behind_a_waiting_mail_is_not_left_out(
    cluster: InMemoryCluster, process: Process
) -> None:
    """Its row was kept somewhere on the way to the view while the slice was judged."""
    await cluster.enqueue(
        process, "waits", *(f"waits {number}" for number in range(FEW)), delay=10**6
    )
    await cluster.enqueue(process, "retried")
    victim = await cluster.start()
    _, item = await cluster.take(victim)
    await cluster.pass_time(2 * MINUTE)
    victim.fail(lambda step: Fault.STOP_BEFORE if step.operation == "insert" else None)
    with pytest.raises(Stopped):
        await item.retry(timedelta(0))
    (predecessor, mark), *_ = cluster.tables.marks.items()
    successor, change = replacement_of(mark)
    beside = replace(
        cluster.tables.rows[predecessor].with_change(successor, change),
        key=successor._replace(enqueue_id=UUID(int=successor.enqueue_id.int + 1)),
    )
    cluster.tables.insert(beside)  # what is over makes a slice of it that is closed, and judged
    cluster.tables.marks[beside.key] = Mark(delivered_at=cluster.clock.now())
    await cluster.pass_time(5 * MINUTE)
    late = cluster.tables.rows[predecessor].with_change(successor, change)

    async def cannot_be_finished(step: Step) -> None:
        if step.operation == "change_successor":
            raise RuntimeError(step)

    process.faults.before = cannot_be_finished
    await process.queue.maintain()
    assert not cluster.tables.slices[successor.slice_start].drained

    cluster.tables.insert(late)
    process.faults.before = None
    await cluster.pass_time(BEYOND)
    await process.queue.maintain()

    assert "retried" in await names(process)
    assert await cluster.deliver(process, MINUTE) == ["retried"]


@pytest.mark.parametrize("waits", ["held", "delayed"])
async def test_mail_that_waits_alone_for_long_costs_as_much_as_a_new_one(
    cluster: InMemoryCluster, process: Process, waits: str
) -> None:
    await cluster.enqueue(process, "waits", delay=4 * 86400 if waits == "delayed" else 0)
    if waits == "held":
        await process.queue.hold(ALL)
    for _ in range(30):
        await cluster.pass_time(HOUR / 10)
        await process.queue.maintain()
    await cluster.pass_time(BEYOND)
    young = await requests(process)

    await cluster.pass_time(3 * DAY)
    for _ in range(3):
        await process.queue.maintain()
        await cluster.pass_time(BEYOND)
    old = await requests(process)

    assert await names(process) == ["waits"]
    assert max(old.values()) < 40, old
    assert all(old[what] <= young[what] + 10 for what in old), (young, old)
    if waits == "delayed":
        assert await cluster.deliver(process, 2 * DAY) == ["waits"]
        assert cluster.copies("waits") == 1


async def test_mail_that_may_be_in_flight_is_not_given_a_new_entry_for_waiting_alone(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, "in flight")
    _, item = await cluster.take(process)
    (before,) = cluster.tables.live()

    await cluster.pass_time(6 * HOUR)
    await process.queue.maintain()

    assert [entry.key for entry in cluster.tables.live()] == [before.key]
    await item.done()


async def test_many_mails_of_an_old_slice_keep_their_turns(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, *(f"mail {number}" for number in range(FEW + 1)), delay=10**6)
    before = {entry.key for entry in cluster.tables.live()}

    await cluster.pass_time(6 * HOUR)
    await process.queue.maintain()

    assert {entry.key for entry in cluster.tables.live()} == before
