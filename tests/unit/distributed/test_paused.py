"""Virtual machines that are paused between two steps of an operation, until the slice of the turn
is passed and cleaned while the mail goes on under another turn. Their clocks show no pause, and
what they last read counts as fresh: the operation must make no second turn of the mail, and must
not take its bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeVar

import pytest

from contract.queue_harness import Consumer
from postroad.adapters.memory.fault_injection import Fault, Step
from postroad.domain.selection import Selector
from postroad.errors import PostroadError
from postroad.telemetry import metrics
from support.in_memory_cluster import WINDOW, Post, Process

ALL = Selector.all()
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
STEPS = 20

T = TypeVar("T")
Meanwhile = Callable[[Post, Process], Awaitable[object]]


async def cleaned(post: Post, other: Process) -> None:
    """Let upkeep pass and clean the slice of the first turn."""
    last = min(turn.key.slice_start for turn in post.tables.rows.values())
    while (post.tables.limits.content_start or last) <= last:
        await post.pass_time(MINUTE)
        await other.queue.maintain()
        if any(turn.key.slice_start <= last for turn in post.tables.live()):
            return  # the operation had replaced the turn, and that waits


class Pause:
    """Pauses a process before one of its steps from now on."""

    def __init__(
        self, post: Post, victim: Process, other: Process, number: int, meanwhile: Meanwhile
    ) -> None:
        self._post, self._victim, self._other = post, victim, other
        self._number = number + len(victim.gate.steps)
        self._meanwhile = meanwhile
        self._over = asyncio.Event()
        self._over.set()
        victim.gate.before = self._before

    @property
    def has_step(self) -> bool:
        """Whether the process had this step."""
        return len(self._victim.gate.steps) > self._number

    async def _before(self, step: Step) -> None:
        await self._over.wait()
        if step.number != self._number:
            return
        start = self._post.clock.elapsed()
        self._over.clear()
        self._victim.queue._engine.broker.disconnect()  # type: ignore[attr-defined]
        await self._meanwhile(self._post, self._other)
        await cleaned(self._post, self._other)
        self._victim.clock.pause(self._post.clock.elapsed() - start)
        self._over.set()

    async def end_of(self, work: asyncio.Future[T]) -> None:
        """Let time pass until work is done, but none beside that of the pause."""
        while not work.done():
            if self._over.is_set():
                await self._post.pass_time(SECOND / 10)
            else:
                await asyncio.sleep(0)


async def retried_in_an_hour(post: Post, other: Process) -> None:
    consumer = Consumer(post, other.queue)
    if not await consumer.nothing(8 * MINUTE):
        await (await consumer.next()).retry(HOUR)
    await consumer.close()


async def kept_by_another_turn(post: Post, other: Process) -> None:
    await post.pass_time(WINDOW)
    await other.queue.hold(ALL)
    await other.queue.release(ALL)


async def over(post: Post, other: Process) -> None:
    await post.deliver(other)


async def settled(post: Post, victim: Process) -> None:
    """Let all that waits be delivered by a healthy process."""
    victim.gate.before = None
    healthy = await post.start()
    for _ in range(3):
        await post.pass_time(HOUR)
        await healthy.queue.release(ALL)
        await healthy.queue.republish(timedelta(0))
        await post.recover()


@pytest.mark.parametrize("meanwhile", [retried_in_an_hour, over])
async def test_a_retry_paused_before_any_step_makes_no_second_turn(meanwhile: Meanwhile) -> None:
    for number in range(STEPS):
        post = Post()
        victim, other = await post.start(), await post.start()
        await post.enqueue(other, "mail")
        consumer, item = await post.take(victim)
        await victim.queue._engine.bearings.refresh()
        pause = Pause(post, victim, other, number, meanwhile)
        try:
            await item.retry(timedelta(0))
        except PostroadError:
            pass
        await consumer.close()
        await settled(post, victim)
        assert post.copies("mail") == 1, victim.gate.steps[-STEPS:]
        post.check_nothing_is_left()
        await post.close()
        if not pause.has_step:
            return
    pytest.fail("the operation has more steps than this test expects")


@pytest.mark.parametrize("operation", ["hold", "flush", "remove"])
async def test_administration_paused_before_any_step_loses_and_repeats_nothing(
    operation: str,
) -> None:
    for number in range(STEPS):
        post = Post()
        victim, other = await post.start(), await post.start()
        await post.enqueue(other, "mail", delay=5 * 3600)
        await victim.queue._engine.bearings.refresh()
        pause = Pause(post, victim, other, number, kept_by_another_turn)
        count = 0
        try:
            count = await getattr(victim.queue, operation)(ALL)
        except PostroadError:
            pass
        await settled(post, victim)
        await post.pass_time(5 * HOUR)
        await settled(post, victim)
        removed = count if operation == "remove" else 0
        assert post.copies("mail") == 1 - removed, victim.gate.steps[-STEPS:]
        post.check_nothing_is_left()
        await post.close()
        if not pause.has_step:
            return
    pytest.fail("the operation has more steps than this test expects")


@pytest.mark.parametrize("meanwhile", [retried_in_an_hour, over])
async def test_an_enqueue_without_confirms_paused_before_any_step_fails_only_unsent(
    meanwhile: Meanwhile,
) -> None:
    """Its first message arrives. What fails is not transmitted, unless it is counted."""
    for number in range(STEPS):
        post = Post()
        victim, other = await post.start(), await post.start()
        await post.enqueue(other, "before")
        await post.deliver(other, SECOND)
        await victim.queue._engine.bearings.refresh()
        victim.gate.plan = lambda step: Fault.ANSWER_LOST if step.operation == "publish" else None
        counted = metrics.UNWITHDRAWN.labels("mail.outgoing")._value
        before = counted.get()
        pause = Pause(post, victim, other, number, meanwhile)
        work = asyncio.ensure_future(post.enqueue(victim, "mail"))
        await pause.end_of(work)
        victim.gate.plan = lambda step: None
        await settled(post, victim)
        failed = work.exception() is not None
        transmitted = post.copies("mail")
        assert transmitted <= 1
        assert failed or transmitted == 1
        assert not failed or not transmitted or counted.get() > before
        assert [turn.envelope.name for turn in post.tables.live()] == []
        assert len(post.tables.letters) == 0
        await post.close()
        if not pause.has_step:
            return
    pytest.fail("the operation has more steps than this test expects")
