"""Wrong clocks: of processes, of the view's hosts, of machines that run both, of virtual machines
that were paused. Whatever is acknowledged is delivered."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from postroad.errors import ClockSkew
from postroad.mailqueue.timing import Timing
from support.post import WINDOW, Post, Process

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
SKEW = Timing().skew


def browse_start(post: Post) -> datetime:
    start = post.tables.limits.browse_start
    assert start is not None
    return start


async def upkeep(post: Post, process: Process, rounds: int = 4, every: timedelta = MINUTE) -> None:
    for _ in range(rounds):
        await post.pass_time(every)
        await process.queue.maintain()


# Creation


@pytest.mark.parametrize("skew", [12 * MINUTE, HOUR, timedelta(days=365), -HOUR])
async def test_a_wrong_clock_creates_no_queue(post: Post, skew: timedelta) -> None:
    with pytest.raises(ClockSkew):
        await post.start(skew=skew)
    assert post.tables.limits.browse_start is None

    process = await post.start()
    await post.enqueue(process, "mail")

    assert await post.deliver(process) == ["mail"]


async def test_a_wrong_clock_opens_a_queue_that_exists(post: Post, process: Process) -> None:
    before = browse_start(post)

    await post.start(skew=HOUR)

    assert browse_start(post) == before


# Hosts


async def test_one_wrong_host_keeps_no_right_process_from_anything(post: Post) -> None:
    post.three_hosts(wrong=HOUR)
    process = await post.start()

    for number in range(20):
        await post.pass_time(11 * SECOND)
        await post.enqueue(process, f"mail{number}")
    await upkeep(post, process)

    assert len(await post.deliver(process)) == 20


@pytest.mark.parametrize("skew", [HOUR, -HOUR], ids=["ahead", "behind"])
async def test_a_process_is_refused_whatever_the_host_beside_it_shows(
    post: Post, skew: timedelta
) -> None:
    """A machine with a wrong clock runs a process and one of the view's three hosts."""
    post.three_hosts(wrong=skew)
    good, beside = await post.start(), await post.start(skew=skew)
    await upkeep(post, good, rounds=30)
    before = browse_start(post)

    for number in range(12):
        await post.pass_time(11 * SECOND)
        with pytest.raises(ClockSkew):
            await post.enqueue(beside, f"mail{number}")
        with pytest.raises(ClockSkew):
            await beside.queue.maintain()

    assert browse_start(post) == before
    await post.enqueue(good, "mail")
    assert await post.deliver(good) == ["mail"]
    post.check_nothing_is_left()


async def test_hosts_that_disagree_refuse_writers_and_no_consumer(post: Post) -> None:
    process = await post.start()
    await post.enqueue(process, "mail", delay=60)
    post.world.view_hosts["two"] = post.clock.beside(HOUR)
    await post.pass_time(MINUTE)

    with pytest.raises(ClockSkew, match="do not agree"):
        await post.enqueue(process, "refused")

    assert await post.deliver(process) == ["mail"]


async def test_a_moment_without_a_majority_is_bridged(post: Post, process: Process) -> None:
    await post.enqueue(process, "before")
    post.world.view_hosts["two"] = post.clock.beside(HOUR)
    await post.pass_time(15 * SECOND)

    await post.enqueue(process, "meanwhile")

    assert await post.deliver(process) == ["before", "meanwhile"]


# The wall clock


async def test_a_wall_clock_that_steps_is_noticed_before_the_next_reading(
    post: Post, process: Process
) -> None:
    await post.enqueue(process, "before")

    process.clock.skew = HOUR

    with pytest.raises(ClockSkew):
        await post.enqueue(process, "after")


@pytest.mark.parametrize("skew", [-SKEW, timedelta(0), SKEW])
async def test_invariant_5_browse_start_stays_a_grace_period_behind_the_views_time(
    post: Post, skew: timedelta
) -> None:
    """Also when a clock closes slices that is as far ahead as is tolerated."""
    process = await post.start(skew=skew)

    for _ in range(120):
        await upkeep(post, process, rounds=1, every=10 * SECOND)
        assert browse_start(post) <= post.clock.now() - WINDOW - Timing().grace

    assert browse_start(post) > post.clock.now() - 3 * WINDOW, "an idle queue keeps up"
