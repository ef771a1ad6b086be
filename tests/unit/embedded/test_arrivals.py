"""Which mails a sync waits for, which consumers an alarm wakes, and what a full disk refuses."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import PurePosixPath
from types import SimpleNamespace
from typing import Any, cast

import pytest

from postroad.embedded.log.layout import NEW, Lane, Layout
from postroad.embedded.log.options import FreeSpace, StoreLimits, StoreOptions, reason_of
from postroad.embedded.log.segments import LiveEntry, Segment, State
from postroad.embedded.store.engine import RECENT_SECONDS, ArrivalRate
from postroad.embedded.store.ready_queues import ReadyQueues, Wakeups
from postroad.errors import InvalidMail, MailTooLarge, StoreFailed, StoreFull
from postroad.ports.files import DiskSpace, Files
from support.memory.clock import ManualClock

SECOND, MS = timedelta(seconds=1), timedelta(milliseconds=1)


def test_an_announcement_is_crowded_by_the_last_but_one() -> None:
    rate = ArrivalRate()

    found = [rate.announce(now, 2.0) for now in (0.0, 1.0, 1.5, 3.0, 3.5)]

    assert found == [False, False, True, False, False]
    assert rate.announce(4.5, 2.0)


def test_another_mail_is_expected_just_after_one_or_while_one_comes() -> None:
    rate = ArrivalRate()
    assert not rate.is_busy(0.0)
    rate.announce(1.0, 1.0)

    assert rate.is_busy(1.0 + RECENT_SECONDS / 2)
    assert not rate.is_busy(1.0 + RECENT_SECONDS)
    rate.under_way = 1
    assert rate.is_busy(9.0)


async def woken(*waiting: asyncio.Future[None]) -> list[bool]:
    await asyncio.sleep(0)
    return [each.done() for each in waiting]


async def test_an_alarm_wakes_all_at_the_earliest_due_time() -> None:
    clock = ManualClock()
    wakeups = Wakeups(clock)
    waiting = [asyncio.ensure_future(wakeups.wait(due)) for due in (5.0, 3.0, 4.0, None)]
    await asyncio.sleep(0)

    await clock.advance(3 * SECOND - MS)
    assert await woken(*waiting) == [False] * 4
    await clock.advance(MS)

    assert await woken(*waiting) == [True] * 4


async def test_an_alarm_can_be_set_again_after_it_rang_or_was_cancelled() -> None:
    clock = ManualClock()
    wakeups = Wakeups(clock)
    for due in (1.0, 2.0):
        waiting = asyncio.ensure_future(wakeups.wait(due))
        await asyncio.sleep(0)
        await clock.advance(SECOND)
        assert await woken(waiting) == [True]

    later = asyncio.ensure_future(wakeups.wait(3.0))
    await asyncio.sleep(0)
    wakeups.close()
    await clock.advance(9 * SECOND)

    assert await woken(later) == [False]
    wakeups.wake_all()
    assert await woken(later) == [True]


async def test_an_alarm_for_the_past_rings_at_once() -> None:
    clock = ManualClock()
    await clock.advance(9 * SECOND)
    wakeups = Wakeups(clock)
    waiting = asyncio.ensure_future(wakeups.wait(1.0))

    await clock.advance(0 * SECOND)

    assert await woken(waiting) == [True]


async def test_one_entry_wakes_the_consumer_that_has_waited_longest() -> None:
    wakeups = Wakeups(ManualClock())
    waiting = [asyncio.ensure_future(wakeups.wait(None)) for _ in range(3)]
    await asyncio.sleep(0)

    wakeups.wake_one()
    assert await woken(*waiting) == [True, False, False]
    waiting[1].cancel()
    await asyncio.sleep(0)
    wakeups.wake_one()

    assert await woken(*waiting) == [True, True, True]
    wakeups.wake_one()


def entry(lane: Lane, due: float) -> LiveEntry:
    segment = cast("Segment", SimpleNamespace(lane=lane))
    return LiveEntry(segment, 0, 0, 0, b"", 0, 0, "", due=due)


async def test_a_consumer_that_goes_as_it_is_woken_wakes_the_next() -> None:
    wakeups = Wakeups(ManualClock())
    waiting = [asyncio.ensure_future(wakeups.wait(None)) for _ in range(3)]
    await asyncio.sleep(0)

    waiting[0].cancel()  # was not woken: wakes none
    for _ in range(3):
        await asyncio.sleep(0)
    assert await woken(*waiting) == [True, False, False]
    wakeups.wake_one()
    waiting[1].cancel()
    for _ in range(3):
        await asyncio.sleep(0)

    assert waiting[1].cancelled()
    assert waiting[2].done()


async def test_an_earlier_alarm_rings_instead_of_a_later_one() -> None:
    clock = ManualClock()
    wakeups = Wakeups(clock)
    wakeups.wake_at(5.0)
    wakeups.wake_at(3.0)
    await asyncio.sleep(0)
    first = asyncio.ensure_future(wakeups.wait(None))
    await asyncio.sleep(0)
    await clock.advance(3 * SECOND)
    assert await woken(first) == [True]

    second = asyncio.ensure_future(wakeups.wait(None))
    await clock.advance(2 * SECOND)

    assert await woken(second) == [False]
    second.cancel()


def test_an_entry_is_ready_from_its_due_time_on() -> None:
    queues = ReadyQueues()
    now, later, last = entry(NEW, 1.0), entry(60, 2.0), entry(60, 3.0)
    for each in (now, last, later):
        queues.add(each, 1.0)

    assert (now.state, later.state) == (State.READY, State.DELAYED)
    assert (queues.delayed, queues.next_due()) == (2, 2.0)
    assert [queues.take(1.9), queues.take(1.9)] == [now, None]
    assert queues.take(2.0) is later
    assert (queues.delayed, queues.next_due()) == (1, 3.0)
    assert queues.take(3.0) is last
    assert (queues.delayed, queues.next_due()) == (0, None)


def test_an_entry_that_ends_while_it_waits_is_passed_over() -> None:
    queues = ReadyQueues()
    delayed, ready, other = entry(60, 5.0), entry(60, 0.0), entry(60, 0.0)
    for each in (delayed, ready, other):
        queues.add(each, 0.0)
    for each in (delayed, ready):
        queues.withdraw(each)
        each.state = State.ENDED

    assert queues.delayed == 0
    assert queues.take(0.0) is other
    assert queues.next_due() is None, "promoting drops what ended"


def test_an_entry_that_was_given_back_is_the_next_of_its_lane() -> None:
    queues = ReadyQueues()
    first, second = entry(NEW, 0.0), entry(NEW, 0.0)
    for each in (first, second):
        queues.add(each, 0.0)
    taken = queues.take(0.0)
    assert taken is first
    taken.state = State.LEASED

    queues.give_back(taken)

    assert [queues.take(0.0), queues.take(0.0)] == [first, second]


ROOT = PurePosixPath("/store")


class Disks:
    """Two file systems with so much space."""

    def __init__(self, log: DiskSpace, mail: DiskSpace) -> None:
        self.spaces = {"log": log, "mail": mail}
        self.asked = 0
        self.error: StoreFailed | None = None

    def room(self, path: PurePosixPath) -> DiskSpace:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return self.spaces["mail" if path.name == "mail" else "log"]


class Seconds:
    """A clock in seconds."""

    def __init__(self) -> None:
        self.now = 5.0

    def __call__(self) -> float:
        return self.now


def limits(disks: Disks, seconds: Seconds, **options: Any) -> tuple[StoreLimits, FreeSpace]:
    free = FreeSpace(cast("Files", disks), Layout(ROOT, ROOT / "mail"), seconds)
    return StoreLimits(StoreOptions(**options), free), free


def test_the_lesser_space_counts_and_is_asked_once_a_second() -> None:
    disks, seconds = Disks(DiskSpace(100, None), DiskSpace(200, 7)), Seconds()
    _, free = limits(disks, seconds)

    assert free.after(30) == DiskSpace(70, 7)
    seconds.now += 0.99
    assert free.if_stored(10) == DiskSpace(60, 7)
    assert free.after(20) == DiskSpace(50, 7)
    assert disks.asked == 2
    seconds.now += 0.01
    assert free.after(1) == DiskSpace(99, 7)
    assert disks.asked == 4
    disks.spaces["mail"] = DiskSpace(50, None)
    seconds.now += 1
    assert free.after(0) == DiskSpace(50, None)


def test_a_mail_is_refused_that_would_leave_too_little() -> None:
    disks, seconds = Disks(DiskSpace(100, 9), DiskSpace(100, 5)), Seconds()
    enough, _ = limits(disks, seconds, least_free_bytes=70, least_free_inodes=5)

    assert enough.has_room(30)
    assert not enough.has_room(31)
    enough.check(b"", 30)
    with pytest.raises(StoreFull, match="70 octets"):
        enough.check(b"", 1)

    few, _ = limits(disks, seconds, least_free_bytes=0, least_free_inodes=6)
    with pytest.raises(StoreFull, match="6 inodes"):
        few.check_room(0)
    disks.spaces = dict.fromkeys(("log", "mail"), DiskSpace(100, None))
    uncounted, _ = limits(disks, seconds, least_free_bytes=0, least_free_inodes=6)
    uncounted.check_room(0)


def test_a_store_keeps_at_most_a_quarter_of_a_small_volume_free() -> None:
    disks = Disks(DiskSpace(60, None, 64), DiskSpace(60, None, 64))
    limited, _ = limits(disks, Seconds(), least_free_bytes=1000)

    assert limited.has_room(60 - 16)
    assert not limited.has_room(60 - 15)
    with pytest.raises(StoreFull, match="less than 16 octets"):
        limited.check_room(60 - 15)


def test_mails_and_envelopes_have_their_limits() -> None:
    disks = Disks(DiskSpace(100, None), DiskSpace(100, None))
    bounded, _ = limits(disks, Seconds(), largest_mail=9, largest_envelope=4, least_free_bytes=0)

    bounded.check(b"four", 9)
    with pytest.raises(InvalidMail, match="envelope"):
        bounded.check(b"five.", 1)
    with pytest.raises(MailTooLarge, match="9 octets"):
        bounded.check(b"", 10)
    unbounded, _ = limits(disks, Seconds())
    unbounded.check_size(10**15)


def test_a_disk_that_fails_is_an_error_of_the_mail_and_no_refusal() -> None:
    disks = Disks(DiskSpace(100, None), DiskSpace(100, None))
    disks.error = StoreFailed("Input/output error")
    checked, _ = limits(disks, Seconds())

    assert checked.has_room(1)
    with pytest.raises(StoreFailed):
        checked.check_room(1)
    assert [reason_of(each) for each in (StoreFull("x"), StoreFailed("x"))] == ["full", "other"]
