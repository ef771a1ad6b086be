"""A purge ends old mail by watermarks, young mail by marks, and replaced mail either way."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta

import pytest

from contract.queue_harness import Consumer
from postroad.domain.queues.documents import Sizes
from postroad.domain.queues.selection import Selector
from postroad.errors import ClockSkew, EntryEnded
from support.in_memory_cluster import Before, InMemoryCluster, Process
from support.memory.fault_injection import Fault, Stopped, at, away

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
GRACE = timedelta(seconds=61)
NOTHING = Sizes(0, 0, 0, 0)


@pytest.fixture
async def other(cluster: InMemoryCluster) -> Process:
    return await cluster.start()


def names(numbers: range) -> list[str]:
    return [f"mail {number}" for number in numbers]


def steps(process: Process, since: int, *operations: str) -> list[str]:
    done = [step.operation for step in process.faults.steps[since:]]
    return [each for each in done if each in operations]


async def test_old_mail_is_ended_by_one_line_a_partition(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, *names(range(40)))
    await cluster.pass_time(GRACE)
    began = len(process.faults.steps)

    assert await process.queue.purge() == 40

    assert (
        steps(process, began, "set_watermark", "end") == ["set_watermark"] * 2
    )  # one for each bucket
    assert cluster.blobs == {}
    assert await process.queue.size() == NOTHING
    assert [each async for each in process.queue.browse()] == []
    assert sum(sum(each.values()) for each in (await process.queue.ages()).values()) == 0
    assert await process.queue.purge() == 0
    assert await cluster.deliver(process) == []
    cluster.check_nothing_is_left()


async def test_mail_of_all_ages_is_purged_and_counted_once(
    cluster: InMemoryCluster, process: Process
) -> None:
    for start in (0, 10, 20):
        await cluster.enqueue(process, *names(range(start, start + 10)))
        await cluster.pass_time(7 * MINUTE if start < 20 else GRACE)
        await process.queue.maintain()
    await cluster.enqueue(process, *names(range(30, 37)))
    await cluster.enqueue(process, "delayed", "delayed, too", delay=900)
    await process.queue.hold(Selector(name="mail 3"))
    await process.queue.remove(Selector(name="mail 4"))
    await process.queue.remove(Selector(name="mail 31"))

    assert await process.queue.purge() == 37

    assert await process.queue.size() == NOTHING
    assert await cluster.deliver(process, timedelta(minutes=20)) == []
    cluster.check_nothing_is_left()


async def test_what_comes_after_a_purge_stays(cluster: InMemoryCluster, process: Process) -> None:
    await cluster.enqueue(process, *names(range(6)))
    await cluster.pass_time(GRACE)

    assert await process.queue.purge() == 6
    await cluster.enqueue(process, *names(range(6, 12)))

    assert (await process.queue.size()).size == 6
    assert [each.mail.name async for each in process.queue.browse()] == names(range(6, 12))
    assert sorted(await cluster.deliver(process)) == sorted(names(range(6, 12)))
    cluster.check_nothing_is_left()


@pytest.mark.parametrize("moment", ["set_watermark", "marked", "delete"])
async def test_mail_that_gets_another_entry_during_a_purge_is_purged(
    cluster: InMemoryCluster, process: Process, other: Process, moment: str
) -> None:
    await cluster.enqueue(process, *names(range(4)))
    await cluster.pass_time(GRACE)
    consumer, item = await cluster.take(other)

    async def retry() -> None:
        with suppress(EntryEnded):  # where the watermark was first
            await item.retry(timedelta(0))

    process.faults.before = before = Before(moment, retry)

    assert await process.queue.purge() == 4

    assert before.happened
    await consumer.close()
    assert await process.queue.size() == NOTHING
    assert await cluster.deliver(process) == []
    cluster.check_nothing_is_left()


async def test_young_mail_whose_slice_is_cleaned_during_a_purge_is_purged(
    cluster: InMemoryCluster, process: Process, other: Process
) -> None:
    """Deleting bytes takes so long that its next entry lies many slices later."""
    await cluster.enqueue(process, "old")
    await cluster.pass_time(GRACE)
    await cluster.enqueue(process, "young")

    async def retry_and_clean() -> None:
        consumer = Consumer(cluster, other.queue, prefetch=5)
        items = [await consumer.next()]
        if items[0].mail.name != "young":
            items.append(await consumer.next())
        await cluster.pass_time(4 * MINUTE)
        with suppress(EntryEnded):
            for item in items:
                await item.retry(timedelta(hours=1))
        for _ in range(20):
            await cluster.pass_time(MINUTE)
            await other.queue.maintain()
        await consumer.close()

    process.faults.before = before = Before("delete", retry_and_clean)

    assert await process.queue.purge() == 2

    assert before.happened
    assert await process.queue.size() == NOTHING
    assert await cluster.deliver(process, timedelta(hours=2)) == []


async def test_a_purge_begins_when_it_has_read_the_views_time(
    cluster: InMemoryCluster, process: Process, other: Process
) -> None:
    async def slowly() -> None:
        await cluster.pass_time(30 * SECOND)
        await cluster.enqueue(other, "accepted meanwhile")

    process.faults.before = Before("limits", slowly)

    assert await process.queue.purge() == 1


@pytest.mark.parametrize("moment", ["insert", "publish", "mark_published", "ack"])
async def test_a_purge_in_the_middle_of_a_retry_takes_the_mail(
    cluster: InMemoryCluster, process: Process, other: Process, moment: str
) -> None:
    await cluster.enqueue(process, *names(range(4)))
    await cluster.pass_time(GRACE)
    consumer, item = await cluster.take(other)
    purged: list[int] = []

    async def purge() -> None:
        purged.append(await process.queue.purge())

    other.faults.before = Before(moment, purge)
    await item.retry(timedelta(0))

    assert purged == [4]
    await consumer.close()
    assert await cluster.deliver(process) == []
    assert await process.queue.size() == NOTHING
    cluster.check_nothing_is_left()


async def test_mail_in_flight_during_a_purge_may_still_be_delivered(
    cluster: InMemoryCluster, process: Process, other: Process
) -> None:
    await cluster.enqueue(process, "mail")
    await cluster.pass_time(GRACE)
    consumer, item = await cluster.take(other)

    assert await process.queue.purge() == 1
    cluster.transmit(item)
    await item.done()

    await consumer.close()
    assert await cluster.deliver(process) == []
    cluster.check_nothing_is_left()


@pytest.mark.parametrize("step", range(1, 5))
async def test_a_replacement_that_stopped_half_way_is_purged_and_counted(
    cluster: InMemoryCluster, process: Process, step: int
) -> None:
    await cluster.enqueue(process, "mail", "another")
    victim = await cluster.start()
    _, item = await cluster.take(victim)
    victim.fail(at(step, Fault.STOP_BEFORE))
    with pytest.raises(Stopped):
        await item.retry(timedelta(0))
    await cluster.pass_time(GRACE)

    assert await process.queue.purge() == 2

    assert await process.queue.size() == NOTHING
    victim.faults.stop()
    assert await cluster.recover() == []
    cluster.check_nothing_is_left()


async def test_dead_letters_survive_a_purge_with_their_bytes(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, "mail", "dead")
    consumer, first = await cluster.take(process)
    second = await consumer.next()
    dead = first if first.mail.name == "dead" else second
    await dead.reject("no")
    await consumer.close()
    await cluster.pass_time(GRACE)

    assert await process.queue.purge() == 1

    assert len(cluster.blobs) == 1
    assert await process.queue.requeue(Selector.all()) == 1
    assert await cluster.deliver(process) == ["dead"]
    cluster.check_nothing_is_left(in_flight=1)


async def test_bytes_that_could_not_be_deleted_go_with_their_messages(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, *names(range(3)))
    await cluster.pass_time(GRACE)
    process.faults.plan = away("blobs")

    assert await process.queue.purge() == 3

    assert len(cluster.blobs) == 3
    assert await cluster.recover() == []
    cluster.check_nothing_is_left()


async def test_two_purges_at_once_count_each_mail_once(
    cluster: InMemoryCluster, process: Process, other: Process
) -> None:
    await cluster.enqueue(process, *names(range(20)))
    await cluster.pass_time(GRACE)
    counts: list[int] = []

    async def purge_too() -> None:
        counts.append(await other.queue.purge())

    process.faults.before = Before("marked", purge_too)
    counts.append(await process.queue.purge())

    assert len(counts) == 2
    assert sum(counts) == 20
    assert cluster.blobs == {}


async def test_a_purge_by_a_clock_that_is_off_is_refused(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, "mail")
    ahead = await cluster.start(skew=timedelta(minutes=5))

    with pytest.raises(ClockSkew):
        await ahead.queue.purge()

    assert (await process.queue.size()).size == 1


async def test_purged_slices_are_drained_and_cleaned(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, *names(range(5)))
    await cluster.pass_time(GRACE)
    await process.queue.purge()
    cluster.broker.lose_everything()

    for _ in range(4):
        await cluster.pass_time(7 * MINUTE)
        await process.queue.maintain()

    tables = cluster.tables
    assert (tables.rows, tables.marks, tables.slices, tables.version) == ({}, {}, {}, {})


async def test_a_mail_on_its_way_during_a_purge_is_not_lost(
    cluster: InMemoryCluster, process: Process
) -> None:
    slow = await cluster.start(skew=-4 * SECOND)
    await cluster.enqueue(process, *names(range(8)))
    await cluster.pass_time(GRACE)

    async def purge() -> None:
        await cluster.pass_time(10 * SECOND)
        assert await process.queue.purge() == 8

    slow.faults.before = before = Before("insert", purge)
    await cluster.enqueue(slow, "mail")

    assert before.happened

    assert await cluster.deliver(process) == ["mail"]
    cluster.check_nothing_is_left()
