"""How long what waits for a server waits, and what the durations of the protocol must keep."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from postroad.distributed.dequeue.leases import WaitLimits
from postroad.distributed.engine.engine import Engine
from postroad.distributed.engine.timing import Backoff, Timing, each_of, persist, results
from postroad.domain.queues.entries import EntryKey
from postroad.domain.values.identifiers import id_at
from postroad.errors import BrokerUnavailable, InvalidSettings, ViewRefused, ViewUnavailable
from support.memory.clock import START, ManualClock

SECOND, MINUTE, US = timedelta(seconds=1), timedelta(minutes=1), timedelta(microseconds=1)
TIMING = Timing()


def test_the_durations_keep_their_relation() -> None:
    assert TIMING.apart == 10 * SECOND
    assert Timing(deadline=40 * SECOND - US)
    with pytest.raises(InvalidSettings, match="grace period"):
        Timing(deadline=40 * SECOND)
    assert Timing(keep_after=8 * SECOND - US)
    assert Timing(read_lease=20 * SECOND)
    with pytest.raises(InvalidSettings, match="others wait"):
        Timing(longest_read_lease=30 * SECOND - US)
    with pytest.raises(InvalidSettings, match="claimed before"):
        Timing(keep_after=8 * SECOND)


def test_other_processes_and_servers_count_on_the_durations() -> None:
    """Claims outlive a redelivery delay; leases end before RabbitMQ's consumer_timeout."""
    assert (TIMING.deadline, TIMING.skew) == (20 * SECOND, 5 * SECOND)
    assert TIMING.grace == 60 * SECOND
    assert (TIMING.read_lease, TIMING.longest_read_lease) == (30 * SECOND, 30 * SECOND)
    assert (TIMING.redelivery_delay, TIMING.keep_after) == (8 * SECOND, 4 * SECOND)
    assert (TIMING.claim, TIMING.upload) == (2 * MINUTE, 360 * MINUTE)
    assert (TIMING.wait, TIMING.longest_wait) == (5 * SECOND, 10 * MINUTE)
    assert (TIMING.longest_mail_lease, TIMING.ages) == (25 * MINUTE, MINUTE)
    assert (TIMING.backoff, TIMING.longest_backoff) == (SECOND / 5, 10 * SECOND)


class Slept:
    """A clock that notes how long it was to sleep, and a randomness of one number."""

    def __init__(self, uniform: float) -> None:
        self.slept: list[float] = []
        self._uniform = uniform

    async def sleep(self, duration: timedelta) -> None:
        self.slept.append(duration.total_seconds())

    def uniform(self) -> float:
        return self._uniform


def backoff(slept: Slept) -> Backoff:
    return Backoff(cast("Any", slept), cast("Any", slept), 2 * SECOND, 7 * SECOND)


@pytest.mark.parametrize(("uniform", "waits"), [(0.0, [1, 2, 3.5, 3.5]), (1.0, [2, 4, 7, 7])])
async def test_each_wait_is_half_to_all_of_one_that_doubles(
    uniform: float, waits: list[float]
) -> None:
    slept = Slept(uniform)
    one = backoff(slept)

    for _ in waits:
        await one.wait()

    assert slept.slept == waits


@pytest.mark.parametrize(
    ("failures", "tries", "succeeds"), [(0, 1, True), (2, 3, True), (3, 3, False)]
)
async def test_work_is_repeated_while_the_view_is_away(
    failures: int, tries: int, succeeds: bool
) -> None:
    slept, done = Slept(1.0), []

    async def work() -> str:
        done.append("try")
        if len(done) <= failures:
            raise ViewUnavailable("away")
        return "done"

    if succeeds:
        assert await persist(backoff(slept), tries, work) == "done"
    else:
        with pytest.raises(ViewUnavailable):
            await persist(backoff(slept), tries, work)
    assert len(done) == min(failures + 1, tries)
    assert len(slept.slept) == len(done) - 1


async def test_any_other_error_is_not_repeated() -> None:
    slept, done = Slept(1.0), []

    async def work() -> None:
        done.append("try")
        raise ViewRefused("no")

    with pytest.raises(ViewRefused):
        await persist(backoff(slept), 5, work)
    assert (len(done), slept.slept) == (1, [])


class View:
    """A view that answers or not."""

    def __init__(self) -> None:
        self.answers = True
        self.asked = 0

    async def limits(self) -> None:
        self.asked += 1
        if not self.answers:
            raise ViewUnavailable("away")


AWAY, OTHER = ViewUnavailable("one partition"), BrokerUnavailable("one queue")


def key(start: datetime = START) -> EntryKey:
    return EntryKey(start, 0, id_at(start, 0, 0))


@pytest.fixture
async def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def view() -> View:
    return View()


@pytest.fixture
async def limits(clock: ManualClock, view: View) -> WaitLimits:
    engine = SimpleNamespace(clock=clock, timing=TIMING, view=view)
    return WaitLimits(cast("Engine", engine))


async def is_over(limits: WaitLimits, error: Exception = AWAY, since: timedelta = US * 0) -> bool:
    return await limits.is_over(since, key(), error)


async def test_a_reference_waits_for_seconds_while_the_view_answers_others(
    limits: WaitLimits, clock: ManualClock
) -> None:
    clock.jump(5 * SECOND - US)
    assert not await is_over(limits)

    clock.jump(US)

    assert await is_over(limits)


async def test_it_waits_for_minutes_while_nothing_answers(
    limits: WaitLimits, clock: ManualClock, view: View
) -> None:
    view.answers = False
    clock.jump(10 * MINUTE - US)
    assert not await is_over(limits)

    clock.jump(US)

    assert await is_over(limits)


async def test_a_view_that_did_not_answer_is_asked_again_after_a_while(
    limits: WaitLimits, clock: ManualClock, view: View
) -> None:
    view.answers = False
    clock.jump(5 * SECOND)
    assert not await is_over(limits)
    view.answers = True
    clock.jump(30 * SECOND - US)
    assert not await is_over(limits)
    assert view.asked == 1

    clock.jump(US)

    assert await is_over(limits)
    assert view.asked == 2


async def test_a_reference_that_was_served_since_is_answer_enough(
    limits: WaitLimits, clock: ManualClock, view: View
) -> None:
    view.answers = False
    clock.jump(SECOND)
    limits.was_served()
    clock.jump(5 * SECOND)

    assert await is_over(limits)
    assert view.asked == 0
    assert not await limits.is_over(SECOND, key(START + MINUTE), AWAY), "served before it waited"


async def test_a_broker_that_refuses_defers_without_asking_the_view(
    limits: WaitLimits, clock: ManualClock, view: View
) -> None:
    assert not await is_over(limits, OTHER)
    clock.jump(5 * SECOND)

    assert await is_over(limits, OTHER)
    assert view.asked == 0
    clock.jump(SECOND)
    assert not await is_over(limits, AWAY, clock.elapsed()), "the partition is not to blame"


async def test_others_of_a_partition_that_was_away_wait_no_seconds_for_a_minute(
    limits: WaitLimits, clock: ManualClock
) -> None:
    clock.jump(5 * SECOND)
    assert await is_over(limits)

    assert await is_over(limits, AWAY, clock.elapsed())
    assert not await limits.is_over(clock.elapsed(), key(START + MINUTE), AWAY)
    assert not await limits.is_over(clock.elapsed(), None, AWAY)
    clock.jump(MINUTE)
    assert await is_over(limits, AWAY, clock.elapsed())
    clock.jump(MINUTE + US)
    assert not await is_over(limits, AWAY, clock.elapsed())


async def test_results_end_what_is_under_way_with_the_first_error_also_of_the_last_items() -> None:
    ended: list[str] = []

    async def work(item: str) -> str:
        if item == "slow":
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                ended.append(item)
                raise
        if item == "broken":
            await asyncio.sleep(0.01)
            raise ViewUnavailable("away")
        return item

    found: list[str] = []

    async def collect() -> None:
        async for each in results(each_of(["slow", "quick", "broken"]), work, at_once=8):
            found.append(each)

    async with asyncio.timeout(10):
        with pytest.raises(ViewUnavailable):
            await collect()
    assert (found, ended) == (["quick"], ["slow"])
