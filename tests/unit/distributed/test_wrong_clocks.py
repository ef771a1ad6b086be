"""Wrong clocks: of processes, of the view's hosts, of machines that run both, of virtual machines
that were paused. Whatever is acknowledged is delivered."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import datetime, timedelta

import pytest

from contract.queue_harness import Consumer
from postroad.distributed.engine.timing import Timing
from postroad.domain.queues.entries import Entry
from postroad.domain.queues.selection import Selector
from postroad.errors import ClockSkew
from postroad.ports.mail_queue import Item
from postroad.telemetry import metrics
from support.in_memory_cluster import WINDOW, InMemoryCluster, Process
from support.memory.fault_injection import Fault, Step, Stopped

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
SKEW = Timing().skew


def browse_start(cluster: InMemoryCluster) -> datetime:
    start = cluster.tables.limits.browse_start
    assert start is not None
    return start


async def maintenance(
    cluster: InMemoryCluster, process: Process, rounds: int = 4, every: timedelta = MINUTE
) -> None:
    for _ in range(rounds):
        await cluster.pass_time(every)
        await process.queue.maintain()


# Creation


@pytest.mark.parametrize("skew", [12 * MINUTE, HOUR, timedelta(days=365), -HOUR])
async def test_a_wrong_clock_creates_no_queue(cluster: InMemoryCluster, skew: timedelta) -> None:
    with pytest.raises(ClockSkew):
        await cluster.start(skew=skew)
    assert cluster.tables.limits.browse_start is None

    process = await cluster.start()
    await cluster.enqueue(process, "mail")

    assert await cluster.deliver(process) == ["mail"]


async def test_a_wrong_clock_opens_a_queue_that_exists(
    cluster: InMemoryCluster, process: Process
) -> None:
    before = browse_start(cluster)

    await cluster.start(skew=HOUR)

    assert browse_start(cluster) == before


# Hosts


async def test_one_wrong_host_keeps_no_right_process_from_anything(
    cluster: InMemoryCluster,
) -> None:
    cluster.three_hosts(wrong=HOUR)
    process = await cluster.start()

    for number in range(20):
        await cluster.pass_time(11 * SECOND)
        await cluster.enqueue(process, f"mail{number}")
    await maintenance(cluster, process)

    assert len(await cluster.deliver(process)) == 20


@pytest.mark.parametrize("skew", [HOUR, -HOUR], ids=["ahead", "behind"])
async def test_a_process_is_refused_whatever_the_host_beside_it_shows(
    cluster: InMemoryCluster, skew: timedelta
) -> None:
    """A machine with a wrong clock runs a process and one of the view's three hosts."""
    cluster.three_hosts(wrong=skew)
    good, beside = await cluster.start(), await cluster.start(skew=skew)
    await maintenance(cluster, good, rounds=30)
    before = browse_start(cluster)

    for number in range(12):
        await cluster.pass_time(11 * SECOND)
        with pytest.raises(ClockSkew):
            await cluster.enqueue(beside, f"mail{number}")
        with pytest.raises(ClockSkew):
            await beside.queue.maintain()

    assert browse_start(cluster) == before
    await cluster.enqueue(good, "mail")
    assert await cluster.deliver(good) == ["mail"]
    cluster.check_nothing_is_left()


async def test_hosts_that_disagree_refuse_writers_and_no_consumer(cluster: InMemoryCluster) -> None:
    process = await cluster.start()
    await cluster.enqueue(process, "mail", delay=60)
    cluster.world.view_hosts["two"] = cluster.clock.beside(HOUR)
    await cluster.pass_time(MINUTE)

    with pytest.raises(ClockSkew, match="do not agree"):
        await cluster.enqueue(process, "refused")

    assert await cluster.deliver(process) == ["mail"]


async def test_a_moment_without_a_majority_is_bridged(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, "before")
    cluster.world.view_hosts["two"] = cluster.clock.beside(HOUR)
    await cluster.pass_time(15 * SECOND)

    await cluster.enqueue(process, "meanwhile")

    assert await cluster.deliver(process) == ["before", "meanwhile"]


# The wall clock


async def test_a_wall_clock_that_steps_is_noticed_before_the_next_reading(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, "before")

    process.clock.skew = HOUR

    with pytest.raises(ClockSkew):
        await cluster.enqueue(process, "after")


@pytest.mark.parametrize("skew", [-SKEW, timedelta(0), SKEW])
async def test_invariant_5_browse_start_stays_a_grace_period_behind_the_views_time(
    cluster: InMemoryCluster, skew: timedelta
) -> None:
    """Also when a clock closes slices that is as far ahead as is tolerated. Rounds are closer
    together than the clocks are apart, so that none steps over the difference."""
    process = await cluster.start(skew=skew)

    for _ in range(400):
        await maintenance(cluster, process, rounds=1, every=3 * SECOND)
        assert browse_start(cluster) <= cluster.clock.now() - WINDOW - Timing().grace

    assert browse_start(cluster) > cluster.clock.now() - 3 * WINDOW, "an idle queue keeps up"


# Late mail


@pytest.fixture
async def paused(cluster: InMemoryCluster, process: Process) -> Process:
    """A process that was just resumed, and that knows nothing of it."""
    paused = await cluster.start()
    await maintenance(cluster, process, rounds=20)
    await cluster.enqueue(paused, "before the pause")
    assert await cluster.deliver(process, SECOND) == ["before the pause"]
    start = cluster.clock.elapsed()
    await maintenance(cluster, process, rounds=20)
    paused.clock.pause(cluster.clock.elapsed() - start)
    return paused


async def test_mail_of_a_machine_that_was_paused_is_delivered(
    cluster: InMemoryCluster, process: Process, paused: Process
) -> None:
    """Its clocks stood still, so that what it last read counts as fresh."""
    late = metrics.LATE.labels("mail", "outgoing")._value
    skipped = metrics.SKIPPED.labels("mail", "outgoing", "late")._value
    before, skipped_before = late.get(), skipped.get()

    await cluster.enqueue(paused, "mail1", "mail2", "mail3")

    assert browse_start(cluster) > min(entry.enqueued_at for entry in cluster.tables.live())
    assert sorted(await cluster.deliver(process)) == ["mail1", "mail2", "mail3"]
    assert late.get() - before == 3
    assert skipped.get() - skipped_before == 3
    await cluster.pass_time(11 * SECOND)
    with pytest.raises(ClockSkew):
        await cluster.enqueue(paused, "later")
    assert all(cluster.copies(f"mail{number}") == 1 for number in (1, 2, 3))
    assert cluster.tables.live() == []
    assert len(cluster.blobs) == 0


async def test_late_mail_is_delivered_though_its_consumer_reads_new_limits_with_the_claim(
    cluster: InMemoryCluster, process: Process, paused: Process
) -> None:
    """The consumer was paused, too: by the limits that it had, the mail was not late."""
    await cluster.enqueue(paused, "mail", delay=1)
    consumer = Consumer(cluster, paused.queue)

    async def before(step: Step) -> None:
        if step.operation == "mark":
            paused.clock.pause(-12 * SECOND)
            paused.faults.before = None

    paused.faults.before = before
    assert await consumer.nothing(2 * SECOND)
    await consumer.close()

    assert await cluster.deliver(process) == ["mail"]
    assert cluster.copies("mail") == 1


async def test_late_mail_that_consumers_broke_down_over_gets_a_new_entry_too(
    cluster: InMemoryCluster, process: Process, paused: Process
) -> None:
    await cluster.enqueue(paused, "mail")
    cluster.broker.dead.append(cluster.broker.ready.pop())

    await process.queue.maintain()

    assert await cluster.deliver(process) == ["mail"]


async def test_late_mail_is_delivered_though_its_rescue_outlasts_the_slice_of_its_successor(
    cluster: InMemoryCluster, process: Process, paused: Process
) -> None:
    await cluster.enqueue(paused, "mail")
    await maintenance(cluster, process, rounds=20)
    rescuer = await cluster.start()
    suspended, resumed = asyncio.Event(), asyncio.Event()

    async def before(step: Step) -> None:
        if step.operation == "insert":
            suspended.set()
            await resumed.wait()

    rescuer.faults.before = before
    consumer = Consumer(cluster, rescuer.queue)
    assert await consumer.nothing(10 * SECOND)
    assert suspended.is_set()
    await maintenance(cluster, process, rounds=20)
    resumed.set()
    assert await consumer.nothing(SECOND)
    await consumer.close()

    assert await cluster.deliver(process) == ["mail"]


@pytest.mark.parametrize("is_rescued", [True, False])
async def test_late_mail_whose_burial_stopped_half_way_is_queued_once(
    cluster: InMemoryCluster, process: Process, paused: Process, is_rescued: bool
) -> None:
    await cluster.enqueue(paused, "mail")
    consumer = Consumer(cluster, paused.queue)
    item = await consumer.next()
    paused.fail(lambda step: Fault.STOP_AFTER if step.operation == "write_dead_letter" else None)
    with pytest.raises(Stopped):
        await item.reject("550 no")
    if is_rescued:
        assert await cluster.deliver(process) == ["mail"]

    assert await process.queue.requeue(Selector.all()) == (not is_rescued)

    await cluster.recover()
    assert cluster.copies("mail") == 1
    cluster.check_nothing_is_left()


@pytest.mark.parametrize("ending", ["retry", "reject", "done"])
async def test_late_mail_in_flight_ends_as_any_other(
    cluster: InMemoryCluster, process: Process, paused: Process, ending: str
) -> None:
    """A consumer that took it by older limits finds it before browse start when it ends it."""
    await cluster.enqueue(paused, "mail")
    (live,) = cluster.tables.live()
    consumer = Consumer(cluster, paused.queue)
    item = await consumer.next()
    paused.clock.pause(paused.clock.elapsed() - cluster.clock.elapsed())  # its clock was set
    await paused.queue._engine.limits_cache.refresh()
    assert browse_start(cluster) > live.key.slice_start

    if ending == "retry":
        await item.retry(timedelta(0))
        await consumer.close()
        assert await cluster.deliver(process) == ["mail"]
    elif ending == "reject":
        await item.reject("550 no")
        assert [each.reason async for each in process.queue.dead_letters()] == ["550 no"]
    else:
        await item.done()
    await consumer.close()
    assert await cluster.recover() == []
    assert cluster.tables.live() == []


async def test_invariant_7_no_entry_is_made_before_browse_start(
    cluster: InMemoryCluster, process: Process
) -> None:
    """Also when no comparison of clocks shows that the local one is behind."""
    await maintenance(cluster, process, rounds=20)
    behind = -(cluster.clock.now() - browse_start(cluster) + SECOND)
    for name in cluster.world.view_hosts:
        cluster.world.view_hosts[name] = cluster.clock.beside(behind)
    wrong = await cluster.start(skew=behind)

    with pytest.raises(ClockSkew, match="browse start"):
        await cluster.enqueue(wrong, "mail")

    cluster.check_nothing_is_left()


async def retry_or_hold_or_requeue(process: Process, change: str, item: Item) -> None:
    """Change a mail by its replacement."""
    if change == "retry":
        await item.retry(timedelta(0))
    elif change == "hold":
        await process.queue.hold(Selector.all())
    else:
        await process.queue.requeue(Selector.all())


async def one_of_each(cluster: InMemoryCluster, process: Process) -> tuple[Consumer, Item]:
    """Let a process have a mail in flight, and let another wait, and a third be a dead letter."""
    await cluster.give_up(process, "dead")
    await cluster.enqueue(process, "waits", delay=6 * 3600)
    await cluster.pass_time(2 * HOUR)
    await cluster.enqueue(process, "in flight")
    return await cluster.take(process)


@pytest.mark.parametrize("change", ["retry", "hold", "requeue"])
@pytest.mark.parametrize("skew", [HOUR, -HOUR], ids=["ahead", "behind"])
async def test_a_wrong_clock_replaces_no_mail(
    cluster: InMemoryCluster, process: Process, skew: timedelta, change: str
) -> None:
    wrong = await cluster.start()
    consumer, item = await one_of_each(cluster, wrong)
    rows, dead_letters = dict(cluster.tables.rows), dict(cluster.tables.dead_letters)
    wrong.clock.skew = skew

    with pytest.raises(ClockSkew):
        await retry_or_hold_or_requeue(wrong, change, item)

    assert (cluster.tables.rows, cluster.tables.dead_letters) == (rows, dead_letters)
    wrong.clock.skew = timedelta(0)
    await item.done()
    await consumer.close()


@pytest.mark.parametrize(
    ("change", "reason"), [("retry", "stepped back"), ("requeue", "browse start")]
)
async def test_invariant_7_no_successor_is_made_before_browse_start(
    cluster: InMemoryCluster, process: Process, change: str, reason: str
) -> None:
    """Also when no comparison of clocks shows that the local one is behind. A successor follows
    its predecessor, so only that of a dead letter can come so early."""
    await cluster.give_up(process, "dead")
    await maintenance(cluster, process, rounds=20)
    behind = -(cluster.clock.now() - browse_start(cluster) + SECOND)
    wrong = await cluster.start()
    await cluster.enqueue(process, "in flight")
    consumer, item = await cluster.take(wrong)
    rows, dead_letters = dict(cluster.tables.rows), dict(cluster.tables.dead_letters)
    for name in cluster.world.view_hosts:
        cluster.world.view_hosts[name] = cluster.clock.beside(behind)
    wrong.clock.skew = behind
    await wrong.queue._engine.limits_cache.refresh()

    with pytest.raises(ClockSkew, match=reason):
        await retry_or_hold_or_requeue(wrong, change, item)

    assert cluster.tables.rows == rows
    assert cluster.tables.dead_letters.keys() == dead_letters.keys()
    await item.done()
    await consumer.close()


@pytest.fixture(params=[25 * SECOND, HOUR], ids=str)
async def behind(
    cluster: InMemoryCluster, process: Process, request: pytest.FixtureRequest
) -> Process:
    """A process whose machine stood still while another one accepted mail."""
    behind = await cluster.start()
    start = cluster.clock.elapsed()
    await maintenance(cluster, process, 1, request.param)
    await cluster.enqueue(process, "mail")
    await cluster.pass_time(SECOND)
    behind.clock.pause(cluster.clock.elapsed() - start)
    return behind


async def test_mail_that_a_process_with_a_clock_behind_removes_does_not_come_back(
    cluster: InMemoryCluster, process: Process, behind: Process
) -> None:
    """What waits is what waits by the view's time."""
    assert await behind.queue.remove(Selector.all()) == 1

    assert await cluster.deliver(process) == []


async def test_a_process_with_a_clock_behind_shows_all_that_waits(
    cluster: InMemoryCluster, process: Process, behind: Process
) -> None:
    assert [each.enqueue_id async for each in behind.queue.browse()]
    assert (await behind.queue.size()).size == 1
    assert [sum(each.values()) for each in (await behind.queue.ages()).values()] == [1]

    assert await cluster.deliver(process) == ["mail"]


async def test_a_process_with_a_clock_ahead_counts_no_ages_of_mail_that_is_delivered(
    cluster: InMemoryCluster, process: Process
) -> None:
    """Marks are of one instant, and a count between them is no final one."""
    ahead = await cluster.start(skew=2 * HOUR)
    for number in range(4):
        await cluster.enqueue(process, f"mail {number}")
    await maintenance(cluster, process, 4, HOUR / 2)
    consumer = Consumer(cluster, process.queue, prefetch=4)
    items = [await consumer.next() for _ in range(4)]
    for item in items[:2]:
        await item.done()
    assert [sum(each.values()) for each in (await ahead.queue.ages()).values()] == [2]

    for item in items[2:]:
        await item.done()
    await cluster.pass_time(2 * MINUTE)

    assert not await ahead.queue.ages()
    await consumer.close()


@pytest.mark.parametrize("change", ["hold", "expire"])
async def test_a_process_with_a_clock_behind_changes_what_waits_or_is_refused(
    cluster: InMemoryCluster, process: Process, behind: Process, change: str
) -> None:
    """It never answers that nothing waits."""
    if change == "hold":
        with pytest.raises(ClockSkew):
            await behind.queue.hold(Selector.all())
        assert await cluster.deliver(process) == ["mail"]
    else:
        assert await behind.queue.expire(Selector.all()) == 1
        assert await cluster.deliver(process) == []


@pytest.mark.parametrize("is_taken", [False, True])
async def test_mail_that_browse_start_passed_while_it_was_queued_is_withdrawn_or_rescued(
    cluster: InMemoryCluster, process: Process, paused: Process, is_taken: bool
) -> None:
    """The limits are read again once they are too old to tell."""

    async def before(step: Step) -> None:
        if step.operation == "publish":
            paused.clock.pause(-12 * SECOND)
        elif step.operation == "limits" and is_taken:
            assert await cluster.deliver(process) == ["mail"]

    paused.faults.before = before
    work = asyncio.ensure_future(cluster.enqueue(paused, "mail"))
    assert await cluster.outcome(work, HOUR)
    paused.faults.before = None

    assert (work.exception() is None) == is_taken
    assert is_taken or isinstance(work.exception(), ClockSkew)
    assert await cluster.recover() == []
    assert cluster.copies("mail") == is_taken
    assert cluster.blobs == {}


# Cleanup


async def late_row(cluster: InMemoryCluster, process: Process, paused: Process) -> Entry:
    """Return late mail that lies between content start and browse start, in a slice that others
    used, and that has lost its message."""
    await cluster.enqueue(paused, "late")
    (late,) = cluster.tables.live()
    cluster.broker.ready.clear()
    limits = cluster.tables.limits
    assert limits.content_start is not None
    assert limits.content_start <= late.key.slice_start < browse_start(cluster)
    assert late.key.slice_start in cluster.tables.slices
    return late


@pytest.fixture
async def resumed_beside(cluster: InMemoryCluster, process: Process) -> Process:
    return await resumed_beside_of(cluster, process)


async def resumed_beside_of(cluster: InMemoryCluster, process: Process) -> Process:
    """Start a process that was just resumed, whose last slice was passed and is not cleaned yet."""
    paused = await cluster.start()
    await maintenance(cluster, process, rounds=20)
    await cluster.enqueue(paused, "before the pause")
    assert await cluster.deliver(process, SECOND) == ["before the pause"]
    (row,) = cluster.tables.rows.values()
    start = cluster.clock.elapsed()
    while browse_start(cluster) <= row.key.slice_start:
        await maintenance(cluster, process, rounds=1)
    paused.clock.pause(cluster.clock.elapsed() - start)
    return paused


async def test_cleanup_rescues_late_mail(
    cluster: InMemoryCluster, process: Process, resumed_beside: Process
) -> None:
    late = await late_row(cluster, process, resumed_beside)

    await maintenance(cluster, process)

    assert late.key not in cluster.tables.rows
    assert [view.mail.name async for view in process.queue.browse()] == ["late"]
    assert cluster.tables.limits.content_start is not None
    assert cluster.tables.limits.content_start > late.key.slice_start
    await process.queue.republish(timedelta(0))
    assert await cluster.deliver(process) == ["late"]


async def test_cleanup_finishes_the_rescue_of_late_mail_that_stopped_half_way(
    cluster: InMemoryCluster, process: Process, resumed_beside: Process
) -> None:
    await late_row(cluster, process, resumed_beside)
    victim = await cluster.start()
    victim.faults.plan = lambda step: Fault.STOP_AFTER if step.operation == "end" else None
    with pytest.raises(Stopped):
        await maintenance(cluster, victim, rounds=3)

    await maintenance(cluster, process, rounds=3)

    assert [view.mail.name async for view in process.queue.browse()] == ["late"]
    (waiting,) = cluster.tables.live()
    assert waiting.key in cluster.tables.rows
    await process.queue.republish(timedelta(0))
    assert await cluster.recover() == ["late"]
    assert cluster.copies("late") == 1


async def test_late_mail_that_both_cleanup_and_a_consumer_meet_is_delivered_once(
    cluster: InMemoryCluster, process: Process, resumed_beside: Process
) -> None:
    await cluster.enqueue(resumed_beside, "late")
    other = await cluster.start()
    delivered: list[str] = []

    async def meanwhile(step: Step) -> None:
        if step.operation == "end" and not delivered:
            delivered.extend(await cluster.deliver(other))

    process.faults.before = meanwhile
    await maintenance(cluster, process, rounds=3)
    assert delivered == ["late"]

    assert await cluster.recover() == []
    assert cluster.copies("late") == 1


@pytest.mark.parametrize("seed", [0, 2], ids=["in another bucket", "beside cleaned mail"])
async def test_late_mail_that_comes_while_its_slice_is_cleaned_is_delivered(seed: int) -> None:
    """Cleanup has looked at the rows, and is about to delete them. The marks of a partition whose
    late row stays are left with it."""
    cluster = InMemoryCluster(seed)
    process = await cluster.start()
    resumed_beside = await resumed_beside_of(cluster, process)
    since = cluster.clock.elapsed()

    async def at_the_last_moment(step: Step) -> None:
        if step.operation == "delete_rows" and not cluster.tables.live():
            resumed_beside.clock.pause(cluster.clock.elapsed() - since)
            await cluster.enqueue(resumed_beside, "late")

    process.faults.before = at_the_last_moment
    await maintenance(cluster, process, rounds=2)

    (late,) = cluster.tables.live()
    assert late.envelope.name == "late"
    assert {mark.partition for mark in cluster.tables.marks} <= {late.key.partition}
    assert await cluster.recover() == ["late"]
    assert cluster.copies("late") == 1
    await cluster.close()


@pytest.mark.parametrize("operation", ["delete_rows", "delete_marks", "forget_slice"])
async def test_invariant_4_content_start_moves_only_behind_what_is_deleted(
    cluster: InMemoryCluster, process: Process, operation: str
) -> None:
    """A cleanup that stops at any step is resumed by another process."""
    await cluster.enqueue(process, "mail")
    await cluster.deliver(process, SECOND)
    await cluster.pass_time(2 * WINDOW)
    cleaner = await cluster.start()
    cleaner.faults.plan = lambda step: Fault.STOP_BEFORE if step.operation == operation else None
    with pytest.raises(Stopped):
        await maintenance(cluster, cleaner)
    left = min(cluster.tables.slices)
    assert cluster.tables.limits.content_start is not None
    assert cluster.tables.limits.content_start <= left < browse_start(cluster)

    await maintenance(cluster, process)

    assert cluster.tables.limits.content_start > left
    assert (cluster.tables.rows, cluster.tables.marks, cluster.tables.slices) == ({}, {}, {})


# Administration


@pytest.mark.parametrize("into_next_slice", [False, True])
@pytest.mark.parametrize("operation", ["remove", "purge", "hold", "flush"])
async def test_administration_includes_mail_of_a_tolerated_clock_ahead(
    cluster: InMemoryCluster, operation: str, into_next_slice: bool
) -> None:
    await cluster.start()
    ahead, admin = await cluster.start(skew=SKEW - SECOND), await cluster.start(skew=SECOND - SKEW)
    if into_next_slice:
        await cluster.pass_time(WINDOW - SKEW + SECOND)
    await cluster.enqueue(ahead, "mail", delay=3600)

    assert [view.mail.name async for view in admin.queue.browse()] == ["mail"]
    assert (await admin.queue.size()).size == 1
    if operation == "purge":
        assert await admin.queue.purge() == 1
    else:
        assert await getattr(admin.queue, operation)(Selector.all()) == 1


@pytest.mark.parametrize("skew", [-HOUR, HOUR])
async def test_a_wrong_clock_makes_dead_letters_neither_older_nor_younger(
    cluster: InMemoryCluster, process: Process, skew: timedelta
) -> None:
    await cluster.give_up(process, "dead_letter")
    await cluster.pass_time(30 * MINUTE)
    wrong = await cluster.start(skew=skew)

    older, younger = Selector(older_than=20 * MINUTE), Selector(older_than=40 * MINUTE)
    assert await wrong.queue.discard(younger) == 0
    assert len([each async for each in wrong.queue.dead_letters(older)]) == 1
    assert await wrong.queue.discard(older) == 1


# Delays


@pytest.mark.parametrize("skew", [-HOUR, HOUR])
async def test_consumer_with_a_wrong_clock_hands_out_delayed_mail_when_it_is_due(
    cluster: InMemoryCluster, process: Process, skew: timedelta
) -> None:
    wrong = await cluster.start(skew=skew)
    await cluster.enqueue(process, "mail", delay=100)

    early = await cluster.deliver(wrong, within=90 * SECOND)
    on_time = await cluster.deliver(wrong, within=MINUTE)

    assert (early, on_time) == ([], ["mail"])


@pytest.mark.parametrize("skew", [-HOUR, HOUR])
async def test_maintenance_with_a_wrong_clock_delays_what_comes_from_the_dead_queue_until_it_is_due(
    cluster: InMemoryCluster, process: Process, skew: timedelta
) -> None:
    wrong = await cluster.start(skew=skew)
    await cluster.enqueue(process, "mail", delay=100)
    delayed = cluster.broker.delayed_messages
    cluster.broker.lose_everything()
    cluster.broker.dead.extend(delayed)
    with suppress(ClockSkew):
        await wrong.queue.maintain()

    early = await cluster.deliver(process, within=90 * SECOND)
    on_time = await cluster.deliver(process, within=MINUTE)

    assert (early, on_time) == ([], ["mail"])
