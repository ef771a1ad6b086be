"""Wrong clocks: of processes, of the view's hosts, of machines that run both, of virtual machines
that were paused. Whatever is acknowledged is delivered."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

import pytest

from contract.queue_harness import Consumer
from postroad.adapters.memory.fault_injection import Fault, Step, Stopped
from postroad.distributed.timing import Timing
from postroad.domain.entries import Turn
from postroad.domain.selection import Selector
from postroad.errors import ClockSkew
from postroad.telemetry import metrics
from support.in_memory_cluster import WINDOW, Post, Process

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


# Late mail


@pytest.fixture
async def paused(post: Post, process: Process) -> Process:
    """A process that was just resumed, and that knows nothing of it."""
    paused = await post.start()
    await upkeep(post, process, rounds=20)
    await post.enqueue(paused, "before the pause")
    assert await post.deliver(process, SECOND) == ["before the pause"]
    start = post.clock.elapsed()
    await upkeep(post, process, rounds=20)
    paused.clock.pause(post.clock.elapsed() - start)
    return paused


async def test_mail_of_a_machine_that_was_paused_is_delivered(
    post: Post, process: Process, paused: Process
) -> None:
    """Its clocks stood still, so that what it last read counts as fresh."""
    late = metrics.LATE.labels("mail.outgoing")._value
    before = late.get()

    await post.enqueue(paused, "mail1", "mail2", "mail3")

    assert browse_start(post) > min(turn.enqueued_at for turn in post.tables.live())
    assert sorted(await post.deliver(process)) == ["mail1", "mail2", "mail3"]
    assert late.get() - before == 3
    await post.pass_time(11 * SECOND)
    with pytest.raises(ClockSkew):
        await post.enqueue(paused, "later")
    assert all(post.copies(f"mail{number}") == 1 for number in (1, 2, 3))
    assert post.tables.live() == []
    assert len(post.blobs) == 0


async def test_late_mail_that_consumers_broke_down_over_gets_a_new_turn_too(
    post: Post, process: Process, paused: Process
) -> None:
    await post.enqueue(paused, "mail")
    post.broker.dead.append(post.broker.ready.pop())

    await process.queue.maintain()

    assert await post.deliver(process) == ["mail"]


async def test_late_mail_is_delivered_though_its_rescue_outlasts_the_slice_of_its_successor(
    post: Post, process: Process, paused: Process
) -> None:
    await post.enqueue(paused, "mail")
    await upkeep(post, process, rounds=20)
    rescuer = await post.start()
    suspended, resumed = asyncio.Event(), asyncio.Event()

    async def before(step: Step) -> None:
        if step.operation == "insert":
            suspended.set()
            await resumed.wait()

    rescuer.gate.before = before
    consumer = Consumer(post, rescuer.queue)
    assert await consumer.nothing(10 * SECOND)
    assert suspended.is_set()
    await upkeep(post, process, rounds=20)
    resumed.set()
    assert await consumer.nothing(SECOND)
    await consumer.close()

    assert await post.deliver(process) == ["mail"]


@pytest.mark.parametrize("is_rescued", [True, False])
async def test_late_mail_whose_burial_stopped_half_way_is_queued_once(
    post: Post, process: Process, paused: Process, is_rescued: bool
) -> None:
    await post.enqueue(paused, "mail")
    consumer = Consumer(post, paused.queue)
    item = await consumer.next()
    paused.fail(lambda step: Fault.STOP_AFTER if step.operation == "bury" else None)
    with pytest.raises(Stopped):
        await item.reject("550 no")
    if is_rescued:
        assert await post.deliver(process) == ["mail"]

    assert await process.queue.requeue(Selector.all()) == (not is_rescued)

    await post.recover()
    assert post.copies("mail") == 1
    post.check_nothing_is_left()


@pytest.mark.parametrize("ending", ["retry", "reject", "done"])
async def test_late_mail_in_hand_ends_as_any_other(
    post: Post, process: Process, paused: Process, ending: str
) -> None:
    """A consumer that took it by older limits finds it before browse start when it ends it."""
    await post.enqueue(paused, "mail")
    (live,) = post.tables.live()
    consumer = Consumer(post, paused.queue)
    item = await consumer.next()
    paused.clock.pause(paused.clock.elapsed() - post.clock.elapsed())  # its clock was set
    await paused.queue._engine.bearings.refresh()
    assert browse_start(post) > live.key.slice_start

    if ending == "retry":
        await item.retry(timedelta(0))
        await consumer.close()
        assert await post.deliver(process) == ["mail"]
    elif ending == "reject":
        await item.reject("550 no")
        assert [each.reason async for each in process.queue.dead_letters()] == ["550 no"]
    else:
        await item.done()
    await consumer.close()
    assert await post.recover() == []
    assert post.tables.live() == []


async def test_invariant_7_no_turn_is_made_before_browse_start(
    post: Post, process: Process
) -> None:
    """Also when no comparison of clocks shows that the local one is behind."""
    await upkeep(post, process, rounds=20)
    behind = -(post.clock.now() - browse_start(post) + SECOND)
    for name in post.world.view_hosts:
        post.world.view_hosts[name] = post.clock.beside(behind)
    wrong = await post.start(skew=behind)

    with pytest.raises(ClockSkew, match="browse start"):
        await post.enqueue(wrong, "mail")

    post.check_nothing_is_left()


@pytest.mark.parametrize("is_taken", [False, True])
async def test_mail_that_browse_start_passed_while_it_was_queued_is_withdrawn_or_rescued(
    post: Post, process: Process, paused: Process, is_taken: bool
) -> None:
    """The limits are read again once they are too old to tell."""

    async def before(step: Step) -> None:
        if step.operation == "publish":
            paused.clock.pause(-12 * SECOND)
        elif step.operation == "limits" and is_taken:
            assert await post.deliver(process) == ["mail"]

    paused.gate.before = before
    work = asyncio.ensure_future(post.enqueue(paused, "mail"))
    assert await post.outcome(work, HOUR)
    paused.gate.before = None

    assert (work.exception() is None) == is_taken
    assert is_taken or isinstance(work.exception(), ClockSkew)
    assert await post.recover() == []
    assert post.copies("mail") == is_taken
    assert post.blobs == {}


# Cleaning


async def late_row(post: Post, process: Process, paused: Process) -> Turn:
    """Return late mail that lies between content start and browse start, in a slice that others
    used, and that has lost its message."""
    await post.enqueue(paused, "late")
    (late,) = post.tables.live()
    post.broker.ready.clear()
    limits = post.tables.limits
    assert limits.content_start is not None
    assert limits.content_start <= late.key.slice_start < browse_start(post)
    assert late.key.slice_start in post.tables.slices
    return late


@pytest.fixture
async def resumed_beside(post: Post, process: Process) -> Process:
    return await resumed_beside_of(post, process)


async def resumed_beside_of(post: Post, process: Process) -> Process:
    """Start a process that was just resumed, whose last slice was passed and is not cleaned yet."""
    paused = await post.start()
    await upkeep(post, process, rounds=20)
    await post.enqueue(paused, "before the pause")
    assert await post.deliver(process, SECOND) == ["before the pause"]
    (row,) = post.tables.rows.values()
    start = post.clock.elapsed()
    while browse_start(post) <= row.key.slice_start:
        await upkeep(post, process, rounds=1)
    paused.clock.pause(post.clock.elapsed() - start)
    return paused


async def test_cleanup_rescues_late_mail(
    post: Post, process: Process, resumed_beside: Process
) -> None:
    late = await late_row(post, process, resumed_beside)

    await upkeep(post, process)

    assert late.key not in post.tables.rows
    assert [view.mail.name async for view in process.queue.browse()] == ["late"]
    assert post.tables.limits.content_start is not None
    assert post.tables.limits.content_start > late.key.slice_start
    await process.queue.republish(timedelta(0))
    assert await post.deliver(process) == ["late"]


async def test_late_mail_that_both_cleanup_and_a_consumer_meet_is_delivered_once(
    post: Post, process: Process, resumed_beside: Process
) -> None:
    await post.enqueue(resumed_beside, "late")
    other = await post.start()
    delivered: list[str] = []

    async def meanwhile(step: Step) -> None:
        if step.operation == "end" and not delivered:
            delivered.extend(await post.deliver(other))

    process.gate.before = meanwhile
    await upkeep(post, process, rounds=3)
    assert delivered == ["late"]

    assert await post.recover() == []
    assert post.copies("late") == 1


@pytest.mark.parametrize("seed", [0, 2], ids=["in another bucket", "beside cleaned mail"])
async def test_late_mail_that_comes_while_its_slice_is_cleaned_is_delivered(seed: int) -> None:
    """Cleanup has looked at the rows, and is about to delete them. The marks of a partition whose
    late row stays are left with it."""
    post = Post(seed)
    process = await post.start()
    resumed_beside = await resumed_beside_of(post, process)
    since = post.clock.elapsed()

    async def at_the_last_moment(step: Step) -> None:
        if step.operation == "delete_rows" and not post.tables.live():
            resumed_beside.clock.pause(post.clock.elapsed() - since)
            await post.enqueue(resumed_beside, "late")

    process.gate.before = at_the_last_moment
    await upkeep(post, process, rounds=2)

    (late,) = post.tables.live()
    assert late.envelope.name == "late"
    assert {mark.partition for mark in post.tables.marks} <= {late.key.partition}
    assert await post.recover() == ["late"]
    assert post.copies("late") == 1
    await post.close()


@pytest.mark.parametrize("operation", ["delete_rows", "delete_marks", "forget_slice"])
async def test_invariant_4_content_start_moves_only_behind_what_is_deleted(
    post: Post, process: Process, operation: str
) -> None:
    """A cleanup that stops at any step is resumed by another process."""
    await post.enqueue(process, "mail")
    await post.deliver(process, SECOND)
    await post.pass_time(2 * WINDOW)
    cleaner = await post.start()
    cleaner.gate.plan = lambda step: Fault.STOP_BEFORE if step.operation == operation else None
    with pytest.raises(Stopped):
        await upkeep(post, cleaner)
    left = min(post.tables.slices)
    assert post.tables.limits.content_start is not None
    assert post.tables.limits.content_start <= left < browse_start(post)

    await upkeep(post, process)

    assert post.tables.limits.content_start > left
    assert (post.tables.rows, post.tables.marks, post.tables.slices) == ({}, {}, {})


# Administration


@pytest.mark.parametrize("into_next_slice", [False, True])
@pytest.mark.parametrize("operation", ["remove", "purge", "hold", "flush"])
async def test_administration_includes_mail_of_a_tolerated_clock_ahead(
    post: Post, operation: str, into_next_slice: bool
) -> None:
    await post.start()
    ahead, admin = await post.start(skew=SKEW - SECOND), await post.start(skew=SECOND - SKEW)
    if into_next_slice:
        await post.pass_time(WINDOW - SKEW + SECOND)
    await post.enqueue(ahead, "mail", delay=3600)

    assert [view.mail.name async for view in admin.queue.browse()] == ["mail"]
    assert (await admin.queue.size()).size == 1
    if operation == "purge":
        assert await admin.queue.purge() == 1
    else:
        assert await getattr(admin.queue, operation)(Selector.all()) == 1
