"""A purge ends old mail by lines, young mail by marks, and what changes its turn meanwhile too."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta

import pytest

from postroad.adapters.memory.fault_injection import Fault, Stopped, at, away
from postroad.domain.selection import Selector
from postroad.errors import ClockSkew, TurnEnded
from postroad.ports.mail_queue import Sizes
from support.in_memory_cluster import Before, Post, Process

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
GRACE = timedelta(seconds=61)
NOTHING = Sizes(0, 0, 0, 0)


@pytest.fixture
async def other(post: Post) -> Process:
    return await post.start()


def names(numbers: range) -> list[str]:
    return [f"mail {number}" for number in numbers]


def steps(process: Process, since: int, *operations: str) -> list[str]:
    done = [step.operation for step in process.gate.steps[since:]]
    return [each for each in done if each in operations]


async def test_old_mail_is_ended_by_one_line_a_partition(post: Post, process: Process) -> None:
    await post.enqueue(process, *names(range(40)))
    await post.pass_time(GRACE)
    began = len(process.gate.steps)

    assert await process.queue.purge() == 40

    assert steps(process, began, "draw_line", "end") == ["draw_line"] * 2  # one for each bucket
    assert post.blobs == {}
    assert await process.queue.size() == NOTHING
    assert [each async for each in process.queue.browse()] == []
    assert sum(sum(each.values()) for each in (await process.queue.ages()).values()) == 0
    assert await process.queue.purge() == 0
    assert await post.deliver(process) == []
    post.check_nothing_is_left()


async def test_mail_of_all_ages_is_purged_and_counted_once(post: Post, process: Process) -> None:
    for start in (0, 10, 20):
        await post.enqueue(process, *names(range(start, start + 10)))
        await post.pass_time(7 * MINUTE if start < 20 else GRACE)
        await process.queue.maintain()
    await post.enqueue(process, *names(range(30, 37)))
    await post.enqueue(process, "delayed", "delayed, too", delay=900)
    await process.queue.hold(Selector(name="mail 3"))
    await process.queue.remove(Selector(name="mail 4"))
    await process.queue.remove(Selector(name="mail 31"))

    assert await process.queue.purge() == 37

    assert await process.queue.size() == NOTHING
    assert await post.deliver(process, timedelta(minutes=20)) == []
    post.check_nothing_is_left()


async def test_what_comes_after_a_purge_stays(post: Post, process: Process) -> None:
    await post.enqueue(process, *names(range(6)))
    await post.pass_time(GRACE)

    assert await process.queue.purge() == 6
    await post.enqueue(process, *names(range(6, 12)))

    assert (await process.queue.size()).size == 6
    assert [each.mail.name async for each in process.queue.browse()] == names(range(6, 12))
    assert sorted(await post.deliver(process)) == sorted(names(range(6, 12)))
    post.check_nothing_is_left()


@pytest.mark.parametrize("moment", ["draw_line", "marked", "delete"])
async def test_mail_that_gets_another_turn_during_a_purge_is_purged(
    post: Post, process: Process, other: Process, moment: str
) -> None:
    await post.enqueue(process, *names(range(4)))
    await post.pass_time(GRACE)
    consumer, item = await post.take(other)

    async def retry() -> None:
        with suppress(TurnEnded):  # where the line was first
            await item.retry(timedelta(0))

    process.gate.before = before = Before(moment, retry)

    assert await process.queue.purge() == 4

    assert before.happened
    await consumer.close()
    assert await process.queue.size() == NOTHING
    assert await post.deliver(process) == []
    post.check_nothing_is_left()


@pytest.mark.parametrize("moment", ["insert", "publish", "mark_published", "ack"])
async def test_a_purge_in_the_middle_of_a_retry_takes_the_mail(
    post: Post, process: Process, other: Process, moment: str
) -> None:
    await post.enqueue(process, *names(range(4)))
    await post.pass_time(GRACE)
    consumer, item = await post.take(other)
    purged: list[int] = []

    async def purge() -> None:
        purged.append(await process.queue.purge())

    other.gate.before = Before(moment, purge)
    await item.retry(timedelta(0))

    assert purged == [4]
    await consumer.close()
    assert await post.deliver(process) == []
    assert await process.queue.size() == NOTHING
    post.check_nothing_is_left()


async def test_mail_in_hand_during_a_purge_may_still_be_delivered(
    post: Post, process: Process, other: Process
) -> None:
    await post.enqueue(process, "mail")
    await post.pass_time(GRACE)
    consumer, item = await post.take(other)

    assert await process.queue.purge() == 1
    post.transmit(item)
    await item.done()

    await consumer.close()
    assert await post.deliver(process) == []
    post.check_nothing_is_left()


@pytest.mark.parametrize("step", range(1, 5))
async def test_a_replacement_that_stopped_half_way_is_purged_and_counted(
    post: Post, process: Process, step: int
) -> None:
    await post.enqueue(process, "mail", "another")
    victim = await post.start()
    _, item = await post.take(victim)
    victim.fail(at(step, Fault.STOP_BEFORE))
    with pytest.raises(Stopped):
        await item.retry(timedelta(0))
    await post.pass_time(GRACE)

    assert await process.queue.purge() == 2

    assert await process.queue.size() == NOTHING
    victim.gate.stop()
    assert await post.recover() == []
    post.check_nothing_is_left()


async def test_dead_letters_survive_a_purge_with_their_bytes(post: Post, process: Process) -> None:
    await post.enqueue(process, "mail", "dead")
    consumer, first = await post.take(process)
    second = await consumer.next()
    dead = first if first.mail.name == "dead" else second
    await dead.reject("no")
    await consumer.close()
    await post.pass_time(GRACE)

    assert await process.queue.purge() == 1

    assert len(post.blobs) == 1
    assert await process.queue.requeue(Selector.all()) == 1
    assert await post.deliver(process) == ["dead"]
    post.check_nothing_is_left()


async def test_bytes_that_could_not_be_deleted_go_with_their_messages(
    post: Post, process: Process
) -> None:
    await post.enqueue(process, *names(range(3)))
    await post.pass_time(GRACE)
    process.gate.plan = away("blobs")

    assert await process.queue.purge() == 3

    assert len(post.blobs) == 3
    assert await post.recover() == []
    post.check_nothing_is_left()


async def test_two_purges_at_once_count_each_mail_once(
    post: Post, process: Process, other: Process
) -> None:
    await post.enqueue(process, *names(range(20)))
    await post.pass_time(GRACE)
    counts: list[int] = []

    async def purge_too() -> None:
        counts.append(await other.queue.purge())

    process.gate.before = Before("marked", purge_too)
    counts.append(await process.queue.purge())

    assert len(counts) == 2
    assert sum(counts) == 20
    assert post.blobs == {}


async def test_a_purge_by_a_clock_that_is_off_is_refused(post: Post, process: Process) -> None:
    await post.enqueue(process, "mail")
    ahead = await post.start(skew=timedelta(minutes=5))

    with pytest.raises(ClockSkew):
        await ahead.queue.purge()

    assert (await process.queue.size()).size == 1


async def test_purged_slices_are_drained_and_cleaned(post: Post, process: Process) -> None:
    await post.enqueue(process, *names(range(5)))
    await post.pass_time(GRACE)
    await process.queue.purge()
    post.broker.lose_everything()

    for _ in range(4):
        await post.pass_time(7 * MINUTE)
        await process.queue.maintain()

    tables = post.tables
    assert (tables.rows, tables.marks, tables.slices, tables.signs) == ({}, {}, {}, {})


async def test_a_mail_on_its_way_during_a_purge_is_not_lost(post: Post, process: Process) -> None:
    slow = await post.start(skew=-4 * SECOND)
    await post.enqueue(process, *names(range(8)))
    await post.pass_time(GRACE)

    async def purge() -> None:
        await post.pass_time(10 * SECOND)
        assert await process.queue.purge() == 8

    slow.gate.before = before = Before("insert", purge)
    await post.enqueue(slow, "mail")

    assert before.happened

    assert await post.deliver(process) == ["mail"]
    post.check_nothing_is_left()
