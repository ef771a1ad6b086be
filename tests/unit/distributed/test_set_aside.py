"""What the view holds and this release cannot decode is set aside, and in the way of nothing."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import pytest

from contract.queue_harness import Consumer, letter
from postroad.domain.entries import Ending, EndingKind, Mark, Turn
from postroad.domain.selection import Selector
from postroad.domain.slices import TurnKey
from postroad.telemetry import metrics
from support.in_memory_cluster import LONG, NAME, WINDOW, Before, Post, Process

ALL = Selector.all()
MINUTE = timedelta(minutes=1)
LIFETIME = timedelta(hours=2)


@pytest.fixture
async def post() -> AsyncIterator[Post]:
    post = Post()
    post.tables.row_lifetime = LIFETIME
    yield post
    await post.close()


def row_of(post: Post, name: str) -> Turn:
    return next(each for each in post.tables.live() if each.envelope.name == name)


def spoil(post: Post, name: str) -> TurnKey:
    """Let a mail's row be one that this release cannot decode; its message is gone."""
    key = row_of(post, name).key
    post.tables.undecodable.add(key)
    post.broker.ready = type(post.broker.ready)(
        each for each in post.broker.ready if each.message_id != key.enqueue_id
    )
    return key


def mark_unknown(post: Post, name: str) -> Turn:
    """Let a mail's turn have an ending of a newer release."""
    turn = row_of(post, name)
    post.tables.marks[turn.key] = Mark(ending=Ending(EndingKind.UNKNOWN, post.clock.now()))
    post.tables.traits[turn.key] = turn.traits
    return turn


async def names(process: Process) -> list[str | None]:
    return [view.mail.name async for view in process.queue.browse()]


def found(what: str) -> float:
    return float(metrics.UNDECODABLE.labels(str(NAME), what)._value.get())


async def upkeep(post: Post, process: Process, rounds: int) -> None:
    for _ in range(rounds):
        await post.pass_time(10 * MINUTE)
        await process.queue.maintain()


async def test_row_that_cannot_be_decoded_stops_no_operation_on_the_others(
    post: Post, process: Process
) -> None:
    await post.enqueue(process, "bad", "held", "removed", "delayed", delay=10**6)
    spoil(post, "bad")

    assert await process.queue.hold(Selector(name="held")) == 1
    assert await process.queue.remove(Selector(name="removed")) == 1
    assert await process.queue.flush(ALL) == 1
    assert await names(process) == ["held", "delayed"]
    assert await process.queue.release(ALL) == 1
    assert sum((await process.queue.ages())["example.net"].values()) == 2
    assert (await process.queue.size()).size == 3


async def test_row_that_cannot_be_decoded_lets_no_other_expire_and_does_not_itself(
    post: Post, process: Process
) -> None:
    await post.enqueue(process, "bad", "held", delay=10**6)
    await process.queue.hold(Selector(name="held"))
    key = spoil(post, "bad")

    await upkeep(post, process, rounds=40)

    assert sorted(each.envelope.name or "" for each in post.tables.live()) == ["bad", "held"]
    post.tables.undecodable.remove(key)
    assert sorted(str(each) for each in await names(process)) == ["bad", "held"]


async def test_slice_of_a_row_that_cannot_be_decoded_is_kept_until_its_mail_has_ended(
    post: Post, process: Process
) -> None:
    await post.enqueue(process, "bad", delay=10**6)
    key = spoil(post, "bad")
    await upkeep(post, process, rounds=3)
    start = post.tables.limits.browse_start
    assert start is not None
    assert start <= key.slice_start
    post.tables.marks[key] = Mark(delivered_at=post.clock.now())

    await upkeep(post, process, rounds=4)

    assert key not in post.tables.rows
    assert key not in post.tables.marks


async def test_purge_ends_a_row_that_cannot_be_decoded(post: Post, process: Process) -> None:
    await post.enqueue(process, "bad", "good", delay=10**6)
    spoil(post, "bad")
    await post.pass_time(WINDOW)

    assert await process.queue.purge() == 2
    assert post.blobs == {}


async def test_what_is_set_aside_is_alarmed_by_place_and_never_by_address(
    post: Post, process: Process, caplog: pytest.LogCaptureFixture
) -> None:
    await post.enqueue(process, "bad", "ended", "good", delay=10**6)
    key = spoil(post, "bad")
    mark_unknown(post, "ended")

    with caplog.at_level(logging.WARNING):
        await process.queue.maintain()

    [line] = [
        each for each in caplog.records if "row" in each.message and each.levelname == "ERROR"
    ]
    said = vars(line)
    assert (said["slice"], said["bucket"], said["enqueue_id"]) == (
        key.slice_start.isoformat(),
        key.bucket_id,
        str(key.enqueue_id),
    )
    assert not [each for each in caplog.records if "@" in str(vars(each))]
    assert (found("row"), found("mark"), found("letter")) == (1, 1, 0)
    del post.tables.marks[next(iter(post.tables.marks))]
    post.tables.undecodable.clear()
    await upkeep(post, process, rounds=1)
    assert (found("row"), found("mark")) == (0, 0)


async def test_mail_whose_ending_is_unknown_is_never_delivered_and_keeps_its_bytes(
    post: Post, process: Process
) -> None:
    await post.enqueue(process, "ended", "good")
    turn = mark_unknown(post, "ended")
    delivered = replace(post.tables.marks[turn.key], delivered_at=post.clock.now())

    assert await post.deliver(process) == ["good"]
    assert await names(process) == []
    assert (await process.queue.size()).size == 0
    assert await process.queue.remove(ALL) == 0
    for mark in (post.tables.marks[turn.key], delivered):
        post.tables.marks[turn.key] = mark
        await upkeep(post, process, rounds=5)
        assert turn.key in post.tables.rows
        assert turn.key in post.tables.marks
        assert set(post.blobs) == {turn.blob_key}


async def test_consumer_whose_mail_gets_an_unknown_ending_stops(
    post: Post, process: Process
) -> None:
    await post.enqueue(process, "ended")
    consumer, item = await post.take(process)
    turn = mark_unknown(post, "ended")

    await item.retry(MINUTE)

    assert post.tables.marks[turn.key].is_unknown
    assert await consumer.nothing(LONG)
    assert set(post.blobs) == {turn.blob_key}


async def test_message_without_envelope_waits_for_a_release_that_decodes_its_row(
    post: Post, process: Process
) -> None:
    """A large envelope is not in the message. Meanwhile others are delivered."""
    recipients = tuple(f"user{number}@{'x' * 50}.example" for number in range(500))
    await process.queue.enqueue(letter("bad", recipients=recipients))
    await post.enqueue(process, "good")
    key = row_of(post, "bad").key
    post.tables.undecodable.add(key)

    assert await post.deliver(process) == ["good"]
    assert post.tables.letters == {}
    post.tables.undecodable.clear()
    assert await post.deliver(process) == ["bad"]


async def test_letter_that_cannot_be_decoded_is_listed_and_stays(
    post: Post, process: Process
) -> None:
    await post.enqueue(process, "bad", "good")
    ids: dict[str, UUID] = {}
    consumer = Consumer(post, process.queue)
    for item in [await consumer.next(), await consumer.next()]:
        ids[item.mail.name or ""] = item.enqueue_id
        await item.reject("no")
    await consumer.close()
    spoilt = post.tables.letters[ids["bad"]]
    post.tables.letters[ids["bad"]] = replace(spoilt, turn=None, is_decoded=False)

    listed = [each.enqueue_id async for each in process.queue.dead_letters()]

    assert sorted(listed) == sorted(ids.values())
    assert await process.queue.requeue(ALL) == 1
    await upkeep(post, process, rounds=1)
    assert list(post.tables.letters) == [ids["bad"]]
    assert found("letter") == 1


async def test_letter_of_a_turn_whose_ending_is_unknown_stays(post: Post, process: Process) -> None:
    await post.enqueue(process, "ended")
    _, item = await post.take(process)
    await item.reject("no")
    [key] = post.tables.marks
    post.tables.marks[key] = Mark(ending=Ending(EndingKind.UNKNOWN, post.clock.now()))

    await upkeep(post, process, rounds=2)

    assert await process.queue.requeue(ALL) == 0
    assert list(post.tables.letters) == [key.enqueue_id]


@pytest.mark.parametrize("is_paused", [False, True], ids=["suspended", "paused"])
async def test_row_renewed_after_its_slice_was_cleaned_is_no_late_mail(
    post: Post, process: Process, is_paused: bool
) -> None:
    """Another release decoded and flushed it meanwhile; the message of its old turn comes later."""
    victim = await post.start()
    await post.enqueue(process, "bad", delay=2.5 * 3600)
    key = row_of(post, "bad").key
    post.tables.undecodable.add(key)
    await post.pass_time(65 * MINUTE)

    async def stand_still() -> None:
        start = post.clock.elapsed()
        post.tables.undecodable.clear()
        assert await process.queue.flush(ALL) == 1
        assert await post.deliver(process) == ["bad"]
        while key in post.tables.rows or key in post.tables.marks:
            await upkeep(post, process, rounds=1)
        if is_paused:
            victim.clock.pause(post.clock.elapsed() - start)

    before = Before("renew_row", stand_still)
    victim.gate.before = before
    await victim.queue._upkeep._tending.run()

    assert before.happened
    assert key in post.tables.rows
    await post.pass_time(60 * MINUTE)
    assert await post.recover() == []
    assert post.copies("bad") == 1
