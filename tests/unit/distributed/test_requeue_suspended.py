"""A requeue that is suspended between two of its steps, past the grace period, while others close,
drain and pass the slice of the new turn: the letter is neither lost nor queued twice."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta

import pytest

from contract.queue_harness import Consumer
from postroad.adapters.memory.fault_injection import Fault, Step
from postroad.domain.selection import Selector
from postroad.errors import ClockSkew
from postroad.ports.mail_queue import Item
from support.in_memory_cluster import WINDOW, Post, Process

ALL = Selector.all()
MINUTE = timedelta(minutes=1)
STEPS = 20


async def with_a_letter() -> tuple[Post, Process, Process]:
    post = Post()
    victim, other = await post.start(), await post.start()
    await post.enqueue(other, "mail")
    consumer, item = await post.take(other)
    await item.reject("no")
    await consumer.close()
    return post, victim, other


async def maintained(post: Post, other: Process, duration: timedelta) -> None:
    """Let time pass, with a worker that maintains and delivers."""
    for _ in range(duration // (WINDOW + 3 * MINUTE) or 1):
        await post.pass_time(min(duration, WINDOW + 3 * MINUTE))
        await other.queue.maintain()
        await post.deliver(other, MINUTE)


@pytest.mark.parametrize("is_paused", [False, True], ids=["suspended", "paused"])
@pytest.mark.parametrize("minutes", [0.5, 1.5, 40])
async def test_requeue_that_stands_still_before_any_step_loses_and_repeats_nothing(
    minutes: float, is_paused: bool
) -> None:
    """The clocks of a machine that is paused do not show it."""
    for number in range(STEPS):
        if not await stands_still(number, timedelta(minutes=minutes), is_paused=is_paused):
            return
    pytest.fail("the operation has more steps than this test expects")


async def stands_still(number: int, duration: timedelta, *, is_paused: bool) -> bool:
    """Stop a requeue before one of its steps for a time; return whether it has this step."""
    post, victim, other = await with_a_letter()
    await victim.queue._engine.bearings.refresh()
    number += len(victim.gate.steps)

    async def stand_still(step: Step) -> None:
        if step.number == number:
            start = post.clock.elapsed()
            await maintained(post, other, duration)
            if is_paused:
                victim.clock.pause(post.clock.elapsed() - start)

    victim.gate.before = stand_still
    with suppress(ClockSkew):
        await victim.queue.requeue(ALL)
    reached = len(victim.gate.steps) > number

    victim.gate.before = None
    await recovered(post)
    if post.tables.letters:
        assert await other.queue.requeue(ALL) == 1
        await recovered(post)
    assert post.copies("mail") == 1, victim.gate.steps[number:][:1]
    post.check_nothing_is_left()
    await post.close()
    return reached


@pytest.mark.parametrize("is_paused", [False, True], ids=["suspended", "paused"])
@pytest.mark.parametrize("is_delivered", [False, True], ids=["waits", "delivered"])
async def test_requeue_that_stands_still_while_another_is_made_makes_no_second_turn(
    is_delivered: bool, is_paused: bool
) -> None:
    """Its claim lapsed, and the letter that it read is gone."""
    for number in range(STEPS):
        if not await another_is_made(number, is_delivered=is_delivered, is_paused=is_paused):
            return
    pytest.fail("the operation has more steps than this test expects")


async def another_is_made(number: int, *, is_delivered: bool, is_paused: bool) -> bool:
    """Requeue the letter before a step of another requeue; return whether that has this step."""
    post, victim, other = await with_a_letter()
    await victim.queue._engine.bearings.refresh()
    number += len(victim.gate.steps)

    async def stand_still(step: Step) -> None:
        if step.number == number:
            start = post.clock.elapsed()
            await post.pass_time(3 * MINUTE)
            await other.queue.requeue(ALL)
            if is_delivered:
                await post.deliver(other, MINUTE)
            if is_paused:
                victim.clock.pause(post.clock.elapsed() - start)

    victim.gate.before = stand_still
    with suppress(ClockSkew):
        await victim.queue.requeue(ALL)
    reached = len(victim.gate.steps) > number

    victim.gate.before = None
    await recovered(post)
    assert post.copies("mail") == 1, victim.gate.steps[number:][:1]
    post.check_nothing_is_left()
    await post.close()
    return reached


async def recovered(post: Post) -> None:
    """Let everything that waits for its time have it."""
    for _ in range(3):
        await post.pass_time(10 * MINUTE)
        await post.recover()


async def test_row_that_comes_after_its_turn_was_given_up_is_not_published() -> None:
    """Somebody else has requeued the letter meanwhile; the slice of the first turn is still open to
    consumers."""
    post, victim, other = await with_a_letter()
    consumer = Consumer(post, other.queue)

    async def suspend(step: Step) -> None:
        if step.operation == "insert":
            await post.pass_time(3 * MINUTE)
            assert await other.queue.requeue(ALL) == 1
        if not await consumer.nothing():
            item = await consumer.next()
            post.transmit(item)
            await item.done()

    victim.gate.before = suspend
    assert await victim.queue.requeue(ALL) == 0

    victim.gate.before = None
    await consumer.close()
    await recovered(post)
    assert post.copies("mail") == 1
    post.check_nothing_is_left()


@pytest.mark.parametrize("before", ["rebury", "publish"])
async def test_letter_whose_turn_was_given_up_by_a_process_that_died_stays(before: str) -> None:
    """The other requeue goes on behind it, and publishes the turn that was withdrawn."""
    post, victim, _ = await with_a_letter()
    dying = await post.start()
    met = [0]

    async def suspend(step: Step) -> None:
        met[0] += step.operation == before
        if step.operation == before and met[0] == (2 if before == "rebury" else 1):
            await post.pass_time(3 * MINUTE)
            dying.fail(lambda each: Fault.STOP_BEFORE if each.operation == "rebury" else None)
            await asyncio.wait([asyncio.ensure_future(dying.queue.requeue(ALL))])
            dying.gate.stop()

    victim.gate.before = suspend
    await victim.queue.requeue(ALL)

    victim.gate.before = None
    await recovered(post)
    assert post.copies("mail") == 1
    post.check_nothing_is_left()


async def test_requeue_that_died_after_a_suspension_is_done_again() -> None:
    """Its row came late, into a slice that browse start had passed; nobody withdrew it."""
    post, victim, other = await with_a_letter()

    async def suspend(step: Step) -> None:
        if step.operation == "insert":
            for _ in range(3):
                await post.pass_time(WINDOW + MINUTE)
                await other.queue._upkeep._advancing.run()

    victim.gate.before = suspend
    victim.fail(lambda step: Fault.STOP_AFTER if step.operation == "insert" else None)
    work = asyncio.ensure_future(victim.queue.requeue(ALL))
    await asyncio.wait([work])

    assert victim.gate.stopped
    assert await post.recover() == ["mail"]
    assert post.copies("mail") == 1
    post.check_nothing_is_left()


async def test_requeued_mail_in_a_workers_hands_is_not_given_a_turn_again() -> None:
    """The requeue died after its message went out, so the letter is still there."""
    post, victim, other = await with_a_letter()
    victim.fail(lambda step: Fault.STOP_AFTER if step.operation == "publish" else None)
    await asyncio.wait([asyncio.ensure_future(victim.queue.requeue(ALL))])
    consumer = Consumer(post, other.queue)
    item = await consumer.next()

    for _ in range(4):
        await post.pass_time(11 * MINUTE)
        await other.queue.maintain()
        assert await consumer.nothing(MINUTE)
    post.transmit(item)
    await item.done()
    await consumer.close()
    await post.pass_time(11 * MINUTE)

    assert await post.recover() == []
    assert post.copies("mail") == 1
    post.check_nothing_is_left()


ENDED: dict[str, Callable[[Item, Process], Awaitable[object]]] = {
    "deferred": lambda item, other: item.retry(timedelta(hours=2)),
    "removed": lambda item, other: other.queue.remove(ALL),
}


@pytest.mark.parametrize("ended", ENDED)
@pytest.mark.parametrize("fault", [Fault.STOP_BEFORE, Fault.AWAY], ids=["killed", "no answer"])
async def test_requeue_whose_turn_is_over_and_cleaned_makes_no_second_one(
    ended: str, fault: Fault
) -> None:
    """The letter was not deleted behind the publish; the slice of the new turn is passed and
    cleaned before upkeep comes to the letter."""
    post, victim, other = await with_a_letter()
    victim.fail(lambda step: fault if step.operation == "unbury" else None)
    await asyncio.wait([asyncio.ensure_future(victim.queue.requeue(ALL))])
    victim.gate.stop()
    consumer = Consumer(post, other.queue)
    item = await consumer.next()
    await post.pass_time(WINDOW)
    await ENDED[ended](item, other)
    await consumer.close()
    for _ in range(4):
        await post.pass_time(WINDOW + MINUTE)
        await other.queue._upkeep._advancing.run()
        await other.queue._upkeep._cleaning.run()
    assert item.enqueue_id not in {key.enqueue_id for key in post.tables.rows}

    await other.queue.maintain()

    assert post.tables.letters == {}
    assert len(post.tables.live()) == (ended == "deferred")
    await post.pass_time(timedelta(hours=2))
    assert await post.recover() == ["mail"] * (ended == "deferred")
    post.check_nothing_is_left()


@pytest.mark.parametrize("operation", ["rebury", "insert", "publish"])
@pytest.mark.parametrize("fault", [Fault.STOP_BEFORE, Fault.STOP_AFTER])
async def test_requeue_that_died_before_its_turn_was_seen_is_done_again(
    operation: str, fault: Fault
) -> None:
    """Nothing is in the slice of the new turn, or nothing but its row."""
    post, victim, other = await with_a_letter()
    victim.fail(lambda step: fault if step.operation == operation else None)
    await asyncio.wait([asyncio.ensure_future(victim.queue.requeue(ALL))])
    assert victim.gate.stopped
    for _ in range(4):
        await post.pass_time(WINDOW + MINUTE)
        await other.queue._upkeep._advancing.run()
        await other.queue._upkeep._cleaning.run()

    await recovered(post)
    if (operation, fault) == ("rebury", Fault.STOP_BEFORE):
        assert len(post.tables.letters) == 1
        assert await other.queue.requeue(ALL) == 1
        await recovered(post)
    assert post.copies("mail") == 1
    post.check_nothing_is_left()
