"""A mail in a worker's hands whose turn was replaced meanwhile, passed by browse start and cleaned:
nothing tells the worker any more that somebody was first, but for the limits (invariant 4)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from contract.queue_harness import Consumer, letter
from postroad.adapters.memory.fault_injection import Fault, Step, Stopped, no_fault
from postroad.domain.mail import Outcome
from postroad.domain.selection import Selector
from postroad.errors import ViewUnavailable
from postroad.ports.mail_queue import Item
from support.in_memory_cluster import WINDOW, Before, Post, Process

ALL = Selector.all()
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
ROUND = WINDOW + 3 * MINUTE
"""Until a slice that was written into can be closed, and cleanup waited its lease."""

LATE: dict[str, Callable[[Item], Awaitable[None]]] = {
    "retry": lambda item: item.retry(timedelta(0)),
    "reject": lambda item: item.reject("no"),
}


async def taken_and_held(post: Post, worker: Process, person: Process) -> Item:
    """Return an item whose mail is held under a new turn, in a later slice."""
    await post.enqueue(worker, "mail")
    _, item = await post.take(worker)
    await post.pass_time(2 * ROUND)
    assert await person.queue.hold(ALL) == 1
    return item


async def clean(post: Post, person: Process, item: Item) -> None:
    """Let maintenance pass and clean the slice of an item's turn."""
    for _ in range(4):
        await post.pass_time(ROUND)
        await person.queue.maintain()
    held = [key for key in post.tables.rows if key.enqueue_id == item.enqueue_id]
    assert held == []


def limits_are_away(step: Step) -> Fault | None:
    return Fault.AWAY if step.operation == "limits" else None


@pytest.mark.parametrize("late", LATE)
async def test_ending_of_a_turn_that_was_replaced_and_cleaned_changes_nothing(
    post: Post, late: str
) -> None:
    worker, person = await post.start(), await post.start()
    item = await taken_and_held(post, worker, person)
    await clean(post, person, item)

    await LATE[late](item)

    (live,) = post.tables.live()
    assert live.held
    assert post.tables.letters == {}
    assert await post.recover() == []
    await person.queue.release(ALL)
    assert await post.recover() == ["mail"]
    post.check_nothing_is_left()
    post.check_marks_have_rows()


@pytest.mark.parametrize("limits_away", [False, True])
async def test_suspended_between_the_limits_and_the_ending_a_retry_makes_no_second_turn(
    post: Post, limits_away: bool
) -> None:
    worker, person = await post.start(), await post.start()
    item = await taken_and_held(post, worker, person)

    async def suspend() -> None:
        await clean(post, person, item)
        if limits_away:
            worker.gate.plan = limits_are_away

    worker.gate.before = before = Before("end", suspend)
    if limits_away:
        with pytest.raises(ViewUnavailable):
            await item.retry(timedelta(0))
        worker.gate.plan = no_fault
    await item.retry(timedelta(0))
    assert before.happened

    (live,) = post.tables.live()
    assert live.held
    assert await post.recover() == []


async def test_administrator_who_was_suspended_makes_no_second_turn(post: Post) -> None:
    worker, person = await post.start(), await post.start()
    await post.enqueue(worker, "mail")
    _, item = await post.take(worker)
    await post.pass_time(ROUND)

    async def suspend(step: Step) -> None:
        if step.operation == "end":
            person.gate.before = None
            post.transmit(item)
            await item.done()
            await clean(post, worker, item)

    person.gate.before = suspend
    await person.queue.hold(ALL)

    assert post.tables.live() == []
    assert await post.recover() == []
    assert post.copies("mail") == 1


async def test_what_a_late_retry_had_delivered_is_not_delivered_by_the_successor(
    post: Post,
) -> None:
    worker, person = await post.start(), await post.start()
    both = ("one@example.net", "two@example.net")
    await worker.queue.enqueue(letter("mail", recipients=both))
    consumer, item = await post.take(worker)
    await post.pass_time(ROUND)
    await person.queue.hold(ALL)
    await clean(post, person, item)

    await item.retry(timedelta(0), remaining=both[1:])
    await consumer.close()
    await post.pass_time(3 * MINUTE)  # the claim on what was in hand lapses

    await person.queue.release(ALL)
    _, again = await post.take(person)
    assert again.mail.recipients == both[1:]


@pytest.mark.parametrize("how", ["done", "record"])
async def test_delivery_of_a_held_mail_reaches_its_successor(post: Post, how: str) -> None:
    """At the close of its slice, before browse start passes, before cleanup, and after it."""
    for rounds in range(5):
        post = Post()
        worker, person = await post.start(), await post.start()
        item = await taken_and_held(post, worker, person)
        for _ in range(rounds):
            await post.pass_time(ROUND)
            await person.queue.maintain()

        post.transmit(item)
        if how == "record":
            await item.record(item.mail.recipients, Outcome.delivered("250"))
        await item.done()
        for _ in range(4):
            await post.pass_time(ROUND)
            await person.queue.maintain()

        await person.queue.release(ALL)
        await post.recover()
        where = f"after {rounds} rounds"
        assert (post.copies("mail"), post.tables.letters) == (1, {}), where
        post.check_nothing_is_left()
        await post.close()


async def test_delivered_mail_is_not_shown_held_once_its_slice_was_examined(post: Post) -> None:
    worker, person = await post.start(), await post.start()
    item = await taken_and_held(post, worker, person)
    post.transmit(item)
    await item.done()
    assert len(post.tables.live()) == 1

    await person.queue.maintain()

    assert post.tables.live() == []
    assert (await person.queue.size()).held == 0


@pytest.mark.parametrize("before", ["marks", "delete_rows", "delete_marks", "forget_slice"])
async def test_delivery_during_the_cleanup_of_its_slice_reaches_the_successor(
    post: Post, before: str
) -> None:
    worker, person = await post.start(), await post.start()
    item = await taken_and_held(post, worker, person)

    async def deliver(step: Step) -> None:
        if step.operation == before and post.tables.limits.have_passed(item_slice):
            person.gate.before = None
            post.transmit(item)
            await item.done()

    (item_slice,) = {key.slice_start for key in post.tables.marks}
    person.gate.before = deliver
    await clean(post, person, item)

    assert post.copies("mail") == 1
    await person.queue.release(ALL)
    await post.recover()
    assert (post.copies("mail"), post.tables.letters) == (1, {})
    post.check_nothing_is_left()


async def test_delivery_by_who_did_not_know_that_browse_start_had_passed_reaches_the_successor(
    post: Post,
) -> None:
    worker, person = await post.start(), await post.start()
    item = await taken_and_held(post, worker, person)

    async def pass_meanwhile() -> None:
        await person.queue.maintain()
        assert post.tables.limits.have_passed(item_slice)

    (item_slice,) = {key.slice_start for key in post.tables.marks}
    worker.gate.before = before = Before("mark_delivered", pass_meanwhile)
    post.transmit(item)
    await item.done()
    assert before.happened
    await clean(post, person, item)

    await person.queue.release(ALL)
    await post.recover()
    assert (post.copies("mail"), post.tables.letters) == (1, {})
    post.check_nothing_is_left()


async def test_administrator_who_was_suspended_removes_no_bytes_of_a_successor(post: Post) -> None:
    """They were retried, their slice was passed and cleaned; then their marks are written."""
    worker, person = await post.start(), await post.start()
    await post.enqueue(worker, *(f"mail{number}" for number in range(6)))
    consumer = Consumer(post, worker.queue)
    items = [await consumer.next() for _ in range(6)]
    await post.pass_time(2 * ROUND)

    async def suspend(step: Step) -> None:
        if step.operation == "marks":
            person.gate.before = None
            await post.pass_time(ROUND)  # the successors are none of those that wait now
            for item in items:
                await item.retry(timedelta(hours=9))
            await clean(post, worker, items[0])

    person.gate.before = suspend
    await person.queue.remove(ALL)

    assert len(post.tables.live()) == 6
    assert set(post.blobs) == {turn.blob_key for turn in post.tables.live()}
    await consumer.close()


@pytest.mark.parametrize("step", ["mark_delivered", "insert"])
async def test_delivery_that_is_handed_down_half_way_leaves_no_mail_that_waits(
    post: Post, process: Process, step: str
) -> None:
    """It was delivered while a hold stopped half way; upkeep stops where it finishes the hold."""
    await post.enqueue(process, "mail")
    consumer, item = await post.take(process)
    dying = await post.start()
    dying.fail(lambda at: Fault.STOP_AFTER if at.operation == "end" else None)
    with pytest.raises(Stopped):
        await dying.queue.hold(ALL)
    post.transmit(item)
    await item.done()
    await consumer.close()
    await post.pass_time(2 * WINDOW)
    upkeep = await post.start()
    upkeep.fail(lambda at: Fault.STOP_AFTER if at.operation == step else None)

    with pytest.raises(Stopped):
        await upkeep.queue.maintain()

    assert post.tables.live() == []
    await post.recover()
    assert post.copies("mail") == 1
    post.check_nothing_is_left()
