"""A slice that cannot drain costs itself: nothing behind it is taken for lost, one decision of a
person is enough, and what a server refuses for good is given up with an alarm."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from postroad.adapters.memory.blobs import MemoryBlobs
from postroad.distributed.maintenance.browse_start import BEYOND
from postroad.domain.queues.entries import Ending, EndingKind
from postroad.domain.queues.selection import Selector
from postroad.errors import BlobsRefused
from postroad.ports.view import FOREVER
from postroad.telemetry import metrics
from support.in_memory_cluster import NAME, WINDOW, InMemoryCluster, Process

ALL = Selector.all()
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
LIFETIME = 2 * HOUR


@pytest.fixture
async def cluster() -> AsyncIterator[InMemoryCluster]:
    cluster = InMemoryCluster()
    cluster.tables.row_lifetime = LIFETIME
    yield cluster
    await cluster.close()


async def traffic(cluster: InMemoryCluster, process: Process, duration: timedelta) -> None:
    """Mails come and are delivered at once; maintenance runs."""
    for number in range(duration // WINDOW):
        await cluster.enqueue(process, f"mail {number}")
        await cluster.deliver(process, SECOND)
        await cluster.pass_time(WINDOW)
        await process.queue.maintain()


def browse_start_lags(cluster: InMemoryCluster) -> timedelta:
    assert cluster.tables.limits.browse_start is not None
    return cluster.clock.now() - cluster.tables.limits.browse_start


def vanished() -> float:
    return float(metrics.VANISHED.labels(NAME.namespace, NAME.name)._value.get())


async def one_row_vanishes(cluster: InMemoryCluster, process: Process) -> None:
    before = {each.key for each in cluster.tables.live()}
    await cluster.enqueue(process, "vanishes", delay=10**6)
    (lost,) = (each for each in cluster.tables.live() if each.key not in before)
    await cluster.pass_time(WINDOW + 3 * MINUTE)
    await process.queue.maintain()
    del cluster.tables.rows[lost.key]
    del cluster.tables.expire_at[lost.key]


async def test_vanished_row_makes_no_other_slice_look_lost_however_late_it_is_accepted(
    cluster: InMemoryCluster, process: Process
) -> None:
    start = cluster.clock.now()
    await one_row_vanishes(cluster, process)
    await traffic(cluster, process, 2 * LIFETIME)
    await cluster.pass_time(LIFETIME)
    await process.queue.maintain()
    assert vanished() == 1
    assert browse_start_lags(cluster) > 3 * HOUR

    (lost,) = [each.slice_start for each in cluster.tables.slices.values() if not each.drained]
    assert lost <= start
    await process.queue.accept_loss(lost)
    await process.queue.maintain()

    assert vanished() == 0
    assert browse_start_lags(cluster) < 4 * WINDOW


async def test_loss_of_a_range_of_slices_is_accepted_at_once(
    cluster: InMemoryCluster, process: Process
) -> None:
    for number in range(5):
        await cluster.enqueue(process, f"vanishes {number}", delay=10**6)
        await cluster.pass_time(WINDOW)
    await cluster.pass_time(2 * WINDOW)
    await process.queue.maintain()
    lost = sorted(cluster.tables.slices)
    cluster.tables.rows.clear()
    await process.queue.maintain()

    await process.queue.accept_loss(lost[1], lost[3])
    assert cluster.tables.limits.browse_start == lost[0]
    await process.queue.accept_loss(lost[0], lost[3])

    assert cluster.tables.limits.browse_start == lost[4]


async def test_loss_that_is_accepted_behind_a_waiting_mail_is_over(
    cluster: InMemoryCluster, process: Process
) -> None:
    """The alert goes by the number, and browse start may stand there for as long as mail waits."""
    await cluster.enqueue(process, "waits", delay=10**6)
    await cluster.pass_time(WINDOW)
    await one_row_vanishes(cluster, process)
    other = await cluster.start()
    await other.queue.maintain()
    assert vanished() == 1

    lost = max(cluster.tables.slices)
    await process.queue.accept_loss(lost)
    await cluster.pass_time(BEYOND)
    await other.queue.maintain()

    assert vanished() == 0
    assert cluster.tables.limits.browse_start is not None
    assert cluster.tables.limits.browse_start < lost


async def test_rows_that_expired_behind_their_final_marks_did_not_vanish(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, "one", "two")
    await cluster.pass_time(WINDOW + 3 * MINUTE)
    await process.queue.maintain()
    assert sum(sum(each.rows.values()) for each in cluster.tables.slices.values()) == 2
    assert sorted(await cluster.deliver(process, SECOND)) == ["one", "two"]

    await cluster.pass_time(LIFETIME)
    await process.queue.maintain()

    assert vanished() == 0
    assert browse_start_lags(cluster) < 4 * WINDOW


async def test_mark_of_one_entry_is_not_taken_for_that_of_a_row_that_vanished(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, "vanishes", delay=10**6)
    await cluster.enqueue(process, "goes")
    await cluster.pass_time(WINDOW + 3 * MINUTE)
    await process.queue.maintain()
    await cluster.deliver(process, SECOND)
    (lost,) = cluster.tables.live()
    del cluster.tables.rows[lost.key]

    await process.queue.maintain()

    assert vanished() == 1
    assert cluster.tables.limits.browse_start == lost.key.slice_start


@pytest.fixture
def locked(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Objects that the store refuses to delete, as by a retention policy."""
    names: set[str] = set()
    delete = MemoryBlobs.delete

    async def refuse(self: MemoryBlobs, key: str) -> None:
        if key in names:
            raise BlobsRefused("AccessDenied by object lock")
        await delete(self, key)

    monkeypatch.setattr(MemoryBlobs, "delete", refuse)
    return names


@pytest.mark.parametrize(("kind", "missed"), [(EndingKind.REMOVED, 1), (EndingKind.WITHDRAWN, 2)])
async def test_a_row_that_expired_behind_its_ending_hides_no_row_that_vanished(
    kind: EndingKind, missed: int
) -> None:
    """A withdrawn entry may have got its row after the close, so its mark stands for none."""
    cluster = InMemoryCluster(buckets=1)
    process = await cluster.start()
    await cluster.enqueue(process, "over", "lost", delay=10**6)
    over, lost = cluster.tables.live()
    await cluster.pass_time(WINDOW + 3 * MINUTE)
    await process.queue.maintain()
    await process.queue._engine.view.end(over.key, Ending(kind, cluster.clock.now()), over.traits)
    for key in (over.key, lost.key):
        del cluster.tables.rows[key]
        del cluster.tables.expire_at[key]

    await process.queue.maintain()

    assert vanished() == missed
    assert not cluster.tables.limits.have_passed(lost.key.slice_start)
    await cluster.close()


async def test_blob_deletion_that_fails_for_half_a_lifetime_is_given_up_with_an_alarm(
    cluster: InMemoryCluster, process: Process, locked: set[str]
) -> None:
    await cluster.enqueue(process, "locked", "other")
    locked.add(next(iter(cluster.blobs)))
    await cluster.pass_time(2 * MINUTE)
    assert await process.queue.purge() == 2
    alarms = metrics.UNDELETED.labels(NAME.namespace, NAME.name)
    before = alarms._value.get()

    await traffic(cluster, process, LIFETIME / 2 - WINDOW)
    assert browse_start_lags(cluster) > LIFETIME / 2 - WINDOW
    assert alarms._value.get() == before
    await traffic(cluster, process, 3 * WINDOW)

    assert alarms._value.get() == before + 1
    assert browse_start_lags(cluster) < 4 * WINDOW
    assert vanished() == 0


async def test_blob_deletion_that_was_given_up_is_not_tried_again(
    cluster: InMemoryCluster, process: Process, locked: set[str]
) -> None:
    """Mail that waits in the same slice keeps browse start there."""
    await cluster.enqueue(process, "locked")
    locked.update(cluster.blobs)
    await cluster.pass_time(2 * MINUTE)
    await process.queue.purge()
    await cluster.enqueue(process, "waits", delay=10**6)
    alarms = metrics.UNDELETED.labels(NAME.namespace, NAME.name)
    before = alarms._value.get()
    await cluster.pass_time(LIFETIME / 2)

    for _ in range(3):
        await process.queue.maintain()
        await cluster.pass_time(WINDOW)

    assert alarms._value.get() == before + 1


async def test_blob_deletion_that_fails_is_tried_for_ever_where_rows_never_expire(
    cluster: InMemoryCluster, process: Process, locked: set[str]
) -> None:
    cluster.tables.row_lifetime = FOREVER
    await cluster.enqueue(process, "locked", "other")
    locked.update(cluster.blobs)
    await cluster.pass_time(2 * MINUTE)
    await process.queue.purge()

    await traffic(cluster, process, HOUR)
    assert browse_start_lags(cluster) > HOUR
    locked.clear()
    await traffic(cluster, process, 3 * WINDOW)

    assert cluster.blobs == {}


async def test_blob_deletion_that_is_refused_for_a_while_loses_no_alarm_and_no_bytes(
    cluster: InMemoryCluster, process: Process, locked: set[str]
) -> None:
    await cluster.enqueue(process, "locked", "other")
    locked.update(cluster.blobs)
    await cluster.pass_time(2 * MINUTE)
    await process.queue.purge()
    before = metrics.UNDELETED.labels(NAME.namespace, NAME.name)._value.get()
    await traffic(cluster, process, 30 * MINUTE)
    locked.clear()

    await traffic(cluster, process, 30 * MINUTE)

    assert cluster.blobs == {}
    assert metrics.UNDELETED.labels(NAME.namespace, NAME.name)._value.get() == before
    assert browse_start_lags(cluster) < 4 * WINDOW


async def test_mark_of_a_delivery_that_ends_after_cleanup_holds_back_no_slice(
    cluster: InMemoryCluster, process: Process
) -> None:
    """It has no row any more: it lies before browse start, and expires."""
    await cluster.enqueue(process, "removed in flight")
    consumer, item = await cluster.take(process)
    other = await cluster.start()
    assert await other.queue.remove(ALL) == 1
    for _ in range(4):
        await cluster.pass_time(2 * WINDOW)
        await other.queue.maintain()
    assert (cluster.tables.rows, cluster.tables.marks) == ({}, {})

    await item.done()
    assert len(cluster.tables.marks) == 1
    await consumer.close()
    await traffic(cluster, other, HOUR)

    start = cluster.tables.limits.browse_start
    assert start is not None
    assert browse_start_lags(cluster) < 4 * WINDOW
    assert all(
        key in cluster.tables.rows or key.slice_start < start for key in cluster.tables.marks
    )
    assert (await other.queue.size()).size == 0
    assert [view async for view in other.queue.browse()] == []
