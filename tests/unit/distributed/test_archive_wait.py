"""Cleanup waits for the archive of a queue that has one: as long as a quarter of the row lifetime,
and never until rows expire."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from prometheus_client import REGISTRY

from postroad.distributed.maintenance.row_maintenance import ArchiveWait
from postroad.ports.view import FOREVER, Limits
from support.in_memory_cluster import NAME, WINDOW, InMemoryCluster, Process
from support.memory.fault_injection import Fault, Step

MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)
LIFETIME = timedelta(days=14)
QUARTER = LIFETIME / 4
STEP = QUARTER / 16
ROUND = WINDOW + 3 * MINUTE
"""Until a slice that was written into can be closed, and cleanup waited its lease."""


async def one_mail_over(cluster: InMemoryCluster, process: Process) -> datetime:
    """Deliver one mail; return its slice."""
    await cluster.enqueue(process, "mail")
    await cluster.deliver(process, MINUTE)
    return max(key.slice_start for key in cluster.tables.marks)


async def rounds(
    cluster: InMemoryCluster, process: Process, duration: timedelta, step: timedelta = ROUND
) -> None:
    end = cluster.clock.elapsed() + duration
    while cluster.clock.elapsed() < end:
        await cluster.pass_time(min(step, end - cluster.clock.elapsed()))
        await process.queue.maintain()


def is_cleaned(cluster: InMemoryCluster) -> bool:
    return not cluster.tables.marks and not cluster.tables.rows


async def archive(process: Process, through: datetime) -> None:
    await process.queue._engine.view.advance(archived_through=through)


def unarchived() -> float:
    name = "postroad_unarchived_slices_total"
    return REGISTRY.get_sample_value(name, {"namespace": NAME.namespace, "name": NAME.name}) or 0.0


async def test_a_queue_without_an_archive_is_cleaned_at_once(
    cluster: InMemoryCluster, process: Process
) -> None:
    before = unarchived()
    await one_mail_over(cluster, process)

    await rounds(cluster, process, 4 * ROUND)

    assert is_cleaned(cluster)
    assert unarchived() == before


async def test_slices_wait_until_they_are_archived(
    cluster: InMemoryCluster, process: Process
) -> None:
    before = unarchived()
    first = await one_mail_over(cluster, process)
    await cluster.pass_time(3 * WINDOW)
    second = await one_mail_over(cluster, process)
    await archive(process, first)

    await rounds(cluster, process, DAY, timedelta(hours=2))
    limits = cluster.tables.limits
    assert limits.browse_start is not None
    assert limits.browse_start > second
    assert limits.content_start == first
    assert set(cluster.tables.slices) == {first, second}
    assert len(cluster.tables.rows) == len(cluster.tables.marks) == 2

    await archive(process, first + WINDOW)
    await rounds(cluster, process, 2 * ROUND)
    assert {key.slice_start for key in cluster.tables.marks} == {second}
    assert cluster.tables.limits.content_start == first + WINDOW

    await archive(process, second + WINDOW)
    await rounds(cluster, process, 2 * ROUND)
    assert is_cleaned(cluster)
    assert cluster.tables.slices == {}
    limits = cluster.tables.limits
    assert limits.content_start is not None
    assert limits.content_start > second
    assert unarchived() == before
    assert await cluster.recover() == []
    cluster.check_nothing_is_left()


async def test_while_slices_wait_a_round_of_cleanup_costs_two_reads(
    cluster: InMemoryCluster, process: Process
) -> None:
    """It reads neither rows, nor marks, nor dead letters."""
    start = await one_mail_over(cluster, process)
    await archive(process, start)
    await rounds(cluster, process, DAY, timedelta(hours=2))
    cleanup = process.queue._maintenance._cleanup
    first = len(process.faults.steps)

    assert await cleanup.run() == 0

    view = [step.operation for step in process.faults.steps[first:] if step.server == "view"]
    assert view == ["limits", "server_times"]


async def test_after_a_quarter_of_the_lifetime_cleanup_goes_on_and_counts(
    cluster: InMemoryCluster, process: Process
) -> None:
    before = unarchived()
    start = await one_mail_over(cluster, process)
    await archive(process, start)

    await rounds(cluster, process, QUARTER - STEP, STEP / 4)
    assert len(cluster.tables.marks) == 1
    assert unarchived() == before

    await rounds(cluster, process, 3 * STEP, STEP / 4)
    assert is_cleaned(cluster)
    assert unarchived() == before + 1
    limits = cluster.tables.limits
    assert limits.archived_through == start, "the archive finds the gap by the limits"
    assert limits.content_start is not None
    assert limits.content_start > start


async def test_processes_that_are_always_new_clean_before_rows_expire(
    cluster: InMemoryCluster,
) -> None:
    first = await cluster.start()
    start = await one_mail_over(cluster, first)
    await archive(first, start)
    days = 0

    while cluster.tables.marks:
        process = await cluster.start()
        await rounds(cluster, process, DAY, timedelta(hours=4))
        await process.queue.close()
        days += 1
        assert days < LIFETIME / DAY, "rows have expired"

    assert days >= 3 / 4 * (LIFETIME / DAY)


async def test_a_cleanup_that_failed_does_not_wait_anew(
    cluster: InMemoryCluster, process: Process
) -> None:
    start = await one_mail_over(cluster, process)
    await archive(process, start)
    await rounds(cluster, process, QUARTER - STEP, STEP / 4)

    def no_deletion(step: Step) -> Fault | None:
        return Fault.AWAY if step.operation == "delete_rows" else None

    process.fail(no_deletion)
    with pytest.raises(Exception, match="delete_rows"):
        await rounds(cluster, process, 3 * STEP, STEP / 4)
    process.fail(lambda _: None)
    await rounds(cluster, process, 2 * ROUND)

    assert cluster.tables.marks == {}


async def test_a_slice_that_drained_late_waits_as_long_as_any(
    cluster: InMemoryCluster, process: Process
) -> None:
    """Mail that waited kept browse start back for half of the lifetime."""
    wait, now = ArchiveWait(process.queue._engine), cluster.clock.now()
    archived, passed = now - LIFETIME / 2, now
    limits = Limits(passed, archived, archived)

    assert await wait.until(limits, passed) == archived
    await cluster.pass_time(QUARTER - MINUTE)
    assert await wait.until(limits, passed + DAY) == archived
    await cluster.pass_time(2 * MINUTE)

    assert await wait.until(limits, passed + DAY) == passed


async def test_an_archive_that_came_ends_the_wait_and_the_next_one_begins_anew(
    cluster: InMemoryCluster, process: Process
) -> None:
    wait, now = ArchiveWait(process.queue._engine), cluster.clock.now()
    behind, level = Limits(now, now - DAY, now - DAY), Limits(now, now - DAY, now)
    assert await wait.until(behind, now) == now - DAY
    await cluster.pass_time(QUARTER)

    assert await wait.until(level, now) == now

    later = now + QUARTER
    assert await wait.until(Limits(later, now, now), later) == now


async def test_a_queue_that_was_never_cleaned_waits_too(
    cluster: InMemoryCluster, process: Process
) -> None:
    wait, now = ArchiveWait(process.queue._engine), cluster.clock.now()
    limits = Limits(now, None, now - DAY)

    for _ in range(2):
        assert await wait.until(limits, now) == now - DAY
        await cluster.pass_time(MINUTE)

    await cluster.pass_time(QUARTER)
    assert await wait.until(limits, now) == now


async def test_what_comes_behind_cleaned_slices_waits_no_longer_than_they_did(
    cluster: InMemoryCluster, process: Process
) -> None:
    wait, now = ArchiveWait(process.queue._engine), cluster.clock.now()
    first, second = now, now + MINUTE
    assert await wait.until(Limits(first, now - DAY, now - DAY), first) == now - DAY
    await cluster.pass_time(MINUTE)
    limits = Limits(second, first, first)
    assert await wait.until(limits, second) == first

    await cluster.pass_time(QUARTER - MINUTE)
    assert await wait.until(limits, second) == first
    await cluster.pass_time(MINUTE)

    assert await wait.until(limits, second) == second


@pytest.mark.parametrize("lifetime", [FOREVER, timedelta(days=3650)])
async def test_where_rows_live_long_cleanup_waits_two_weeks(
    cluster: InMemoryCluster, process: Process, lifetime: timedelta
) -> None:
    cluster.tables.row_lifetime = lifetime
    wait, now = ArchiveWait(process.queue._engine), cluster.clock.now()
    limits = Limits(now, now - DAY, now - DAY)
    assert await wait.until(limits, now) == now - DAY

    await cluster.pass_time(14 * DAY - MINUTE)
    assert await wait.until(limits, now) == now - DAY
    await cluster.pass_time(2 * MINUTE)

    assert await wait.until(limits, now) == now
