"""Late mail that is removed while its rescue is under way, and successors that were given up half
way: each mail is delivered once or removed once."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from contract.queue_harness import Consumer
from postroad.adapters.memory.fault_injection import Fault, Step, Stopped
from postroad.domain.selection import Selector
from support.in_memory_cluster import WINDOW, Post, Process

ALL = Selector.all()
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
ROUND = WINDOW + 3 * MINUTE


class Suspension:
    """Suspends a process before its next step of one name until `end`."""

    def __init__(self, process: Process, operation: str) -> None:
        self._operation = operation
        self.began, self._ended = asyncio.Event(), asyncio.Event()
        process.gate.before = self._before

    async def _before(self, step: Step) -> None:
        if step.operation == self._operation:
            self.began.set()
            await self._ended.wait()

    def end(self) -> None:
        self._ended.set()


async def begun(post: Post, suspension: Suspension) -> None:
    await post.pass_time(SECOND)
    assert suspension.began.is_set()


async def upkeep(post: Post, process: Process, rounds: int) -> None:
    for _ in range(rounds):
        await post.pass_time(MINUTE)
        await process.queue.maintain()


@pytest.mark.parametrize("rescuer_dies", [True, False])
async def test_removal_of_late_mail_that_outlasts_the_slice_of_its_successor_loses_no_mail(
    rescuer_dies: bool,
) -> None:
    """It either removes the mail and counts it, or the mail is delivered."""
    post = Post(buckets=1)
    process, paused, rescuer, admin = [await post.start() for _ in range(4)]
    await post.enqueue(paused, "first", delay=600)
    start = post.clock.elapsed()
    await post.pass_time(ROUND)
    listing = Suspension(admin, "rows")
    removing = asyncio.ensure_future(admin.queue.remove(Selector(name="late")))
    await begun(post, listing)
    await post.pass_time(ROUND)
    assert await post.deliver(process, MINUTE) == ["first"]
    await upkeep(post, process, 2)
    paused.clock.pause(post.clock.elapsed() - start)
    await post.enqueue(paused, "late")
    rescue = Suspension(rescuer, "insert")
    consumer = Consumer(post, rescuer.queue)
    assert await consumer.nothing(SECOND)
    await begun(post, rescue)

    insertion = Suspension(admin, "insert")
    listing.end()
    await begun(post, insertion)
    await upkeep(post, process, 20)
    if rescuer_dies:
        rescuer.gate.stop()
    insertion.end()
    removed = await removing
    rescue.end()
    await consumer.close()
    await post.pass_time(3 * MINUTE)
    await post.recover()

    assert removed + post.copies("late") == 1
    post.check_nothing_is_left()


async def test_successor_that_was_given_up_half_way_and_comes_late_makes_no_second_copy(
    post: Post,
) -> None:
    """The process that chose another successor died before it withdrew the first one, whose row
    comes just as browse start passes its slice."""
    sleeper, dying, other = [await post.start() for _ in range(3)]
    await post.enqueue(other, "mail")
    consumer, item = await post.take(sleeper)
    await consumer.close()
    await post.pass_time(ROUND)
    insertion = Suspension(sleeper, "insert")
    retrying = asyncio.ensure_future(item.retry(timedelta(0)))
    await begun(post, insertion)
    (mark,) = post.tables.marks.values()
    assert mark.ending is not None
    assert mark.ending.successor is not None
    first = mark.ending.successor.slice_start
    await post.pass_time(MINUTE)
    dying.fail(lambda step: Fault.STOP_AFTER if step.operation == "change_successor" else None)
    with pytest.raises(Stopped):
        await dying.queue.release(ALL)  # meets the replacement, and finishes it
    await other.queue.release(ALL)
    broker = sleeper.queue._engine.broker
    broker.disconnect()  # type: ignore[attr-defined]
    await upkeep(post, other, 6)
    assert {key.slice_start for key in post.tables.marks} == {first}, "the first turn is cleaned"
    assert await post.deliver(other, MINUTE) == ["mail"]
    publication: list[Suspension] = []

    async def let_its_row_come(step: Step) -> None:
        slice_ = post.tables.slices.get(first)
        is_drained = slice_ is not None and slice_.drained
        if step.operation == "advance" and is_drained and not publication:
            publication.append(Suspension(sleeper, "publish"))
            insertion.end()
            while not publication[0].began.is_set():
                await asyncio.sleep(0)

    other.gate.before = let_its_row_come
    while (post.tables.limits.browse_start or first) <= first:
        await upkeep(post, other, 1)
    assert publication
    publication[0].end()
    await retrying

    await post.recover()
    assert post.copies("mail") == 1
    post.check_nothing_is_left()
