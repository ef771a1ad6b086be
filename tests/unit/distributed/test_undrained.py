"""A slice that cannot drain costs itself: nothing behind it is taken for lost, one decision of a
person is enough, and what a server refuses for good is given up with an alarm."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from postroad.adapters.memory.blobs import MemoryBlobs
from postroad.domain.selection import Selector
from postroad.errors import BlobsRefused
from postroad.ports.view import FOREVER
from postroad.telemetry import metrics
from support.in_memory_cluster import NAME, WINDOW, Post, Process

ALL = Selector.all()
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
LIFETIME = 2 * HOUR


@pytest.fixture
async def post() -> AsyncIterator[Post]:
    post = Post()
    post.tables.row_lifetime = LIFETIME
    yield post
    await post.close()


async def traffic(post: Post, process: Process, duration: timedelta) -> None:
    """Mails come and are delivered at once; upkeep runs."""
    for number in range(duration // WINDOW):
        await post.enqueue(process, f"mail {number}")
        await post.deliver(process, SECOND)
        await post.pass_time(WINDOW)
        await process.queue.maintain()


def browse_start_lags(post: Post) -> timedelta:
    assert post.tables.limits.browse_start is not None
    return post.clock.now() - post.tables.limits.browse_start


def vanished() -> float:
    return float(metrics.VANISHED.labels(str(NAME))._value.get())


async def one_row_vanishes(post: Post, process: Process) -> None:
    await post.enqueue(process, "vanishes", delay=10**6)
    (lost,) = post.tables.live()
    await post.pass_time(WINDOW + 3 * MINUTE)
    await process.queue.maintain()
    del post.tables.rows[lost.key]
    del post.tables.expire_at[lost.key]


async def test_vanished_row_makes_no_other_slice_look_lost_however_late_it_is_accepted(
    post: Post, process: Process
) -> None:
    start = post.clock.now()
    await one_row_vanishes(post, process)
    await traffic(post, process, 2 * LIFETIME)
    await post.pass_time(LIFETIME)
    await process.queue.maintain()
    assert vanished() == 1
    assert browse_start_lags(post) > 3 * HOUR

    (lost,) = [each.slice_start for each in post.tables.slices.values() if not each.drained]
    assert lost <= start
    await process.queue.accept_loss(lost)
    await process.queue.maintain()

    assert vanished() == 0
    assert browse_start_lags(post) < 4 * WINDOW


async def test_loss_of_a_range_of_slices_is_accepted_at_once(post: Post, process: Process) -> None:
    for number in range(5):
        await post.enqueue(process, f"vanishes {number}", delay=10**6)
        await post.pass_time(WINDOW)
    await post.pass_time(2 * WINDOW)
    await process.queue.maintain()
    lost = sorted(post.tables.slices)
    post.tables.rows.clear()
    await process.queue.maintain()

    await process.queue.accept_loss(lost[1], lost[3])
    assert post.tables.limits.browse_start == lost[0]
    await process.queue.accept_loss(lost[0], lost[3])

    assert post.tables.limits.browse_start == lost[4]


async def test_rows_that_expired_behind_their_final_marks_did_not_vanish(
    post: Post, process: Process
) -> None:
    await post.enqueue(process, "one", "two")
    await post.pass_time(WINDOW + 3 * MINUTE)
    await process.queue.maintain()
    assert sum(sum(each.rows.values()) for each in post.tables.slices.values()) == 2
    assert sorted(await post.deliver(process, SECOND)) == ["one", "two"]

    await post.pass_time(LIFETIME)
    await process.queue.maintain()

    assert vanished() == 0
    assert browse_start_lags(post) < 4 * WINDOW


async def test_mark_of_one_turn_is_not_taken_for_that_of_a_row_that_vanished(
    post: Post, process: Process
) -> None:
    await post.enqueue(process, "vanishes", delay=10**6)
    await post.enqueue(process, "goes")
    await post.pass_time(WINDOW + 3 * MINUTE)
    await process.queue.maintain()
    await post.deliver(process, SECOND)
    (lost,) = post.tables.live()
    del post.tables.rows[lost.key]

    await process.queue.maintain()

    assert vanished() == 1
    assert post.tables.limits.browse_start == lost.key.slice_start


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


async def test_sweep_that_fails_for_half_a_lifetime_is_given_up_with_an_alarm(
    post: Post, process: Process, locked: set[str]
) -> None:
    await post.enqueue(process, "locked", "other")
    locked.add(next(iter(post.blobs)))
    await post.pass_time(2 * MINUTE)
    assert await process.queue.purge() == 2
    alarms = metrics.UNDELETED.labels(str(NAME))
    before = alarms._value.get()

    await traffic(post, process, LIFETIME / 2 - WINDOW)
    assert browse_start_lags(post) > LIFETIME / 2 - WINDOW
    assert alarms._value.get() == before
    await traffic(post, process, 3 * WINDOW)

    assert alarms._value.get() == before + 1
    assert browse_start_lags(post) < 4 * WINDOW
    assert vanished() == 0


async def test_sweep_that_fails_is_tried_for_ever_where_rows_never_expire(
    post: Post, process: Process, locked: set[str]
) -> None:
    post.tables.row_lifetime = FOREVER
    await post.enqueue(process, "locked", "other")
    locked.update(post.blobs)
    await post.pass_time(2 * MINUTE)
    await process.queue.purge()

    await traffic(post, process, HOUR)
    assert browse_start_lags(post) > HOUR
    locked.clear()
    await traffic(post, process, 3 * WINDOW)

    assert post.blobs == {}


async def test_sweep_that_is_refused_for_a_while_loses_no_alarm_and_no_bytes(
    post: Post, process: Process, locked: set[str]
) -> None:
    await post.enqueue(process, "locked", "other")
    locked.update(post.blobs)
    await post.pass_time(2 * MINUTE)
    await process.queue.purge()
    before = metrics.UNDELETED.labels(str(NAME))._value.get()
    await traffic(post, process, 30 * MINUTE)
    locked.clear()

    await traffic(post, process, 30 * MINUTE)

    assert post.blobs == {}
    assert metrics.UNDELETED.labels(str(NAME))._value.get() == before
    assert browse_start_lags(post) < 4 * WINDOW


async def test_mark_of_a_delivery_that_ends_after_cleanup_holds_back_no_slice(
    post: Post, process: Process
) -> None:
    """It has no row any more: it lies before browse start, and expires."""
    await post.enqueue(process, "removed in hand")
    consumer, item = await post.take(process)
    other = await post.start()
    assert await other.queue.remove(ALL) == 1
    for _ in range(4):
        await post.pass_time(2 * WINDOW)
        await other.queue.maintain()
    assert (post.tables.rows, post.tables.marks) == ({}, {})

    await item.done()
    assert len(post.tables.marks) == 1
    await consumer.close()
    await traffic(post, other, HOUR)

    start = post.tables.limits.browse_start
    assert start is not None
    assert browse_start_lags(post) < 4 * WINDOW
    assert all(key in post.tables.rows or key.slice_start < start for key in post.tables.marks)
    assert (await other.queue.size()).size == 0
    assert [view async for view in other.queue.browse()] == []
