"""A process that is suspended between what it reads and what it does by it, for so long that others
finish the mail, pass its slice and clean it: a missing mark says nothing any more (invariant 4)."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from contract.queue_harness import Consumer, letter
from postroad.adapters.memory.fault_injection import Fault, Step, Stopped, away, no_fault
from postroad.domain.selection import Selector
from support.in_memory_cluster import LONG, WINDOW, Post, Process, every_other

ALL = Selector.all()
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
ROUND = WINDOW + 3 * MINUTE


class Suspension:
    """Suspends a process before each step of one name, from the one with this `number` on, until
    `end`."""

    def __init__(self, process: Process, operation: str, number: int = 1) -> None:
        self._operation, self._left = operation, number
        self._awake = asyncio.Event()
        self.began = asyncio.Event()
        process.gate.before = self._before

    async def _before(self, step: Step) -> None:
        if step.operation == self._operation:
            self._left -= 1
            if self._left <= 0:
                self.began.set()
                await self._awake.wait()

    def end(self) -> None:
        self._awake.set()


def lose_connection(process: Process) -> None:
    """The broker gives what a process has in hand to others."""
    broker = process.queue._engine.broker
    broker.disconnect()  # type: ignore[attr-defined]


async def maintained(post: Post, process: Process, rounds: int = 4) -> None:
    for _ in range(rounds):
        await post.pass_time(ROUND)
        await process.queue.maintain()


@pytest.mark.parametrize("held_before", [False, True], ids=["no claim", "a claim"])
async def test_consumer_delivers_no_mail_that_was_removed_and_cleaned(
    post: Post, held_before: bool
) -> None:
    """The bytes are still there: the object store was away when the mail was removed."""
    sleeper, other = await post.start(), await post.start()
    await post.enqueue(other, "mail")
    if held_before:
        await other.queue.hold(ALL)
        await other.queue.release(ALL)
    suspension = Suspension(sleeper, "mark", number=3 if held_before else 1)
    consumer = Consumer(post, sleeper.queue, prefetch=1)
    assert await consumer.nothing(10 * SECOND)
    assert suspension.began.is_set()

    other.gate.plan = away("blobs")
    assert await other.queue.remove(ALL) == 1
    other.gate.plan = no_fault
    await maintained(post, other)
    assert post.tables.marks == {}
    suspension.end()

    assert await consumer.nothing(MINUTE)


async def test_consumer_delivers_no_mail_that_another_one_deferred(post: Post) -> None:
    sleeper, other = await post.start(), await post.start()
    await post.enqueue(sleeper, "mail")
    suspension = Suspension(sleeper, "mark")
    consumer = Consumer(post, sleeper.queue, prefetch=1)
    assert await consumer.nothing(SECOND)
    lose_connection(sleeper)
    _, item = await post.take(other)
    await post.pass_time(WINDOW)
    await item.retry(timedelta(hours=2))
    await maintained(post, other)
    suspension.end()

    assert await consumer.nothing(MINUTE)


async def test_consumer_that_read_the_mark_long_ago_takes_a_claim(post: Post) -> None:
    """Its row took so long that the hop of a replacement is over."""
    slow, other = await post.start(), await post.start()
    recipients = tuple(f"{number:040}@example.net" for number in range(1000))
    await slow.queue.enqueue(letter("mail", recipients=recipients))
    suspension = Suspension(slow, "row")
    consumers = [Consumer(post, each.queue) for each in (slow, other)]
    assert await consumers[0].nothing(SECOND)
    assert await other.queue.republish(timedelta(0)) == 1
    item = await consumers[1].next()
    suspension.end()

    assert await consumers[0].nothing(2 * SECOND)
    await item.done()


async def test_letter_of_a_mail_that_another_one_buried_is_not_lost(post: Post) -> None:
    """The worker was suspended between the letter and the mark; the broker gave its message to
    another, which found the letter and finished the burial."""
    sleeper, other = await post.start(), await post.start()
    await post.enqueue(sleeper, "mail")
    consumer, item = await post.take(sleeper)
    suspension = Suspension(sleeper, "end")
    rejecting = asyncio.ensure_future(item.reject("no"))
    await post.pass_time(SECOND)
    assert suspension.began.is_set()
    lose_connection(sleeper)
    await post.pass_time(3 * MINUTE)
    assert await post.deliver(other) == []
    await maintained(post, other)
    suspension.end()
    await rejecting
    await consumer.close()

    assert [each.reason for each in post.tables.letters.values()] == ["no"]
    await post.pass_time(3 * MINUTE)  # the claim on what was in hand lapses
    assert await other.queue.requeue(ALL) == 1
    assert await post.recover() == ["mail"]


@pytest.mark.parametrize("operation", ["discard", "requeue"])
async def test_letter_of_a_mail_that_waits_under_a_successor_does_not_outlive_the_mark(
    post: Post, operation: str
) -> None:
    """The worker was suspended between the letter and the mark, and the mail was held meanwhile."""
    sleeper, other = await post.start(), await post.start()
    await post.enqueue(other, "mail")
    consumer, item = await post.take(sleeper)
    await consumer.close()
    await post.pass_time(2 * WINDOW)
    await other.queue.maintain()  # letters are not gone over again before the slice is cleaned
    suspension = Suspension(sleeper, "end")
    rejecting = asyncio.ensure_future(item.reject("no"))
    await post.pass_time(SECOND)
    assert suspension.began.is_set()
    assert await other.queue.hold(ALL) == 1
    for _ in range(5):
        await post.pass_time(MINUTE)
        await other.queue.maintain()
    assert post.tables.marks == {}
    suspension.end()
    await rejecting

    assert await getattr(other.queue, operation)(ALL) == 0
    assert [turn.blob_key for turn in post.tables.live()] == list(post.blobs) != []


@pytest.mark.parametrize("answer_lost", [False, True], ids=["", "answer lost"])
@pytest.mark.parametrize("count", [1, 3], ids=["one mail", "mails of one partition together"])
async def test_administrator_removes_no_bytes_of_a_successor(
    post: Post, count: int, answer_lost: bool
) -> None:
    sleeper, other = await post.start(), await post.start()
    await post.enqueue(other, *(f"mail{number}" for number in range(count)))
    consumer = Consumer(post, other.queue)
    items = [await consumer.next() for _ in range(count)]
    await post.pass_time(ROUND)
    suspension = Suspension(sleeper, "end")
    removing = asyncio.ensure_future(sleeper.queue.remove(ALL))
    await post.pass_time(SECOND)
    assert suspension.began.is_set()
    for item in items:
        await item.retry(timedelta(hours=9))
    await maintained(post, other)
    if answer_lost:
        sleeper.gate.plan = every_other("end", Fault.ANSWER_LOST)
    suspension.end()
    assert await post.outcome(removing, LONG)

    assert len(post.tables.live()) == count
    assert set(post.blobs) == {turn.blob_key for turn in post.tables.live()}


async def test_sweep_takes_no_bytes_of_a_mail_whose_first_turn_was_cleaned_meanwhile(
    post: Post,
) -> None:
    """The purge died behind its line; the sweep stops between the rows and their marks."""
    dying, sleeper, other = [await post.start() for _ in range(3)]
    await post.enqueue(other, "mail")
    await post.pass_time(ROUND)
    assert await other.queue.hold(ALL) == 1
    dying.fail(lambda step: Fault.STOP_AFTER if step.operation == "draw_line" else None)
    with pytest.raises(Stopped):
        await dying.queue.purge()
    await post.pass_time(11 * MINUTE)
    suspension = Suspension(sleeper, "marked")
    sweeping = asyncio.ensure_future(sleeper.queue.maintain())
    await post.pass_time(SECOND)
    assert suspension.began.is_set()
    await maintained(post, other)
    assert len(post.tables.rows) == 1
    suspension.end()
    await sweeping

    assert [turn.blob_key for turn in post.tables.live()] == list(post.blobs) != []


@pytest.mark.parametrize("step", ["publish", "mark_published"])
async def test_successor_that_others_published_is_not_withdrawn(post: Post, step: str) -> None:
    """The mark that names it was cleaned away, and names no other either."""
    sleeper, other = await post.start(), await post.start()
    await post.enqueue(other, "mail")
    consumer, item = await post.take(sleeper)
    await consumer.close()
    await post.pass_time(ROUND)
    suspension = Suspension(sleeper, step)
    retrying = asyncio.ensure_future(item.retry(timedelta(hours=9)))
    await post.pass_time(SECOND)
    assert suspension.began.is_set()
    lose_connection(sleeper)
    await maintained(post, other)
    assert post.tables.marks == {}
    suspension.end()
    await retrying

    await post.pass_time(timedelta(hours=9))
    assert await post.recover() == ["mail"]
    post.check_nothing_is_left()


async def test_row_of_a_successor_that_came_back_is_not_taken_for_late_mail(post: Post) -> None:
    """The retry stopped before the row. Others delivered the mail under another successor."""
    sleeper, other = await post.start(), await post.start()
    await post.enqueue(other, "mail")
    consumer, item = await post.take(sleeper)
    await consumer.close()
    await post.pass_time(ROUND)
    insertion = Suspension(sleeper, "insert")
    retrying = asyncio.ensure_future(item.retry(timedelta(0)))
    await post.pass_time(SECOND)
    assert insertion.began.is_set()
    lose_connection(sleeper)
    await maintained(post, other)
    assert await post.deliver(other) == ["mail"]
    await maintained(post, other, rounds=8)
    publication = Suspension(sleeper, "change_successor")
    insertion.end()
    await post.pass_time(SECOND)
    assert publication.began.is_set()

    assert await post.deliver(other) == []
    publication.end()
    await retrying
    assert post.copies("mail") == 1


async def test_administrator_removes_no_bytes_by_a_replacement_of_long_ago(post: Post) -> None:
    """Others finished it, under another successor than the one that the administrator read."""
    dead, sleeper, other = await post.start(), await post.start(), await post.start()
    await post.enqueue(other, "mail")
    await post.pass_time(ROUND)
    Suspension(dead, "insert")
    holding = asyncio.ensure_future(dead.queue.hold(ALL))
    await post.pass_time(SECOND)
    suspension = Suspension(sleeper, "insert")
    removing = asyncio.ensure_future(sleeper.queue.remove(ALL))
    await post.pass_time(SECOND)
    assert suspension.began.is_set()
    await maintained(post, other, rounds=8)
    assert await other.queue.release(ALL) == 1
    await maintained(post, other, rounds=8)
    suspension.end()

    assert await removing == 0
    assert set(post.blobs) == {turn.blob_key for turn in post.tables.live()} != set()
    holding.cancel()


async def test_discard_of_a_letter_that_came_after_its_slice_was_cleaned_takes_no_bytes(
    post: Post,
) -> None:
    """The burial was suspended over all of it; meanwhile the mail was held, and waits."""
    sleeper, other = await post.start(), await post.start()
    await post.enqueue(other, "mail")
    consumer, item = await post.take(sleeper)
    await consumer.close()
    await post.pass_time(ROUND)
    suspension = Suspension(sleeper, "bury")
    rejection = asyncio.ensure_future(item.reject("no"))
    await post.pass_time(SECOND)
    assert suspension.began.is_set()
    assert await other.queue.hold(ALL) == 1
    await maintained(post, other)
    suspension.end()
    await rejection

    await other.queue.discard(ALL)

    assert len(post.tables.live()) == 1
    assert len(post.blobs) == 1
