"""Virtual machines that are paused between two steps of an operation, until the slice of the entry
is passed and cleaned while the mail goes on under another entry. Their clocks show no pause, and
what they last read counts as fresh: the operation must make no second entry of the mail, and must
not take its bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeVar

import pytest

from contract.queue_harness import Consumer
from postroad.domain.queues.selection import Selector
from postroad.errors import PostroadError
from support.in_memory_cluster import WINDOW, InMemoryCluster, Process, unwithdrawn
from support.memory.fault_injection import Fault, Step

ALL = Selector.all()
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
STEPS = 25

T = TypeVar("T")
Meanwhile = Callable[[InMemoryCluster, Process], Awaitable[object]]


async def cleaned(cluster: InMemoryCluster, other: Process) -> None:
    """Let maintenance pass and clean the slice of the first entry."""
    last = min(entry.key.slice_start for entry in cluster.tables.rows.values())
    while (cluster.tables.limits.content_start or last) <= last:
        await cluster.pass_time(MINUTE)
        await other.queue.maintain()
        if any(entry.key.slice_start <= last for entry in cluster.tables.live()):
            return  # the operation had replaced the entry, and that waits


class Pause:
    """Pauses a process before one of its steps from now on."""

    def __init__(
        self,
        cluster: InMemoryCluster,
        victim: Process,
        other: Process,
        number: int,
        meanwhile: Meanwhile,
    ) -> None:
        self._cluster, self._victim, self._other = cluster, victim, other
        self._number = number + len(victim.faults.steps)
        self._meanwhile = meanwhile
        self._over = asyncio.Event()
        self._over.set()
        victim.faults.before = self._before

    @property
    def has_step(self) -> bool:
        """Whether the process had this step."""
        return len(self._victim.faults.steps) > self._number

    async def _before(self, step: Step) -> None:
        await self._over.wait()
        if step.number != self._number:
            return
        start = self._cluster.clock.elapsed()
        self._over.clear()
        self._victim.queue._engine.broker.disconnect()  # type: ignore[attr-defined]
        await self._meanwhile(self._cluster, self._other)
        await cleaned(self._cluster, self._other)
        self._victim.clock.pause(self._cluster.clock.elapsed() - start)
        self._over.set()

    async def end_of(self, work: asyncio.Future[T]) -> None:
        """Let time pass until work is done, but none beside that of the pause."""
        while not work.done():
            if self._over.is_set():
                await self._cluster.pass_time(SECOND / 10)
            else:
                await asyncio.sleep(0)


async def retried_in_an_hour(cluster: InMemoryCluster, other: Process) -> None:
    consumer = Consumer(cluster, other.queue)
    if not await consumer.nothing(8 * MINUTE):
        await (await consumer.next()).retry(HOUR)
    await consumer.close()


async def kept_by_another_entry(cluster: InMemoryCluster, other: Process) -> None:
    await cluster.pass_time(WINDOW)
    await other.queue.hold(ALL)
    await other.queue.release(ALL)


async def over(cluster: InMemoryCluster, other: Process) -> None:
    await cluster.deliver(other)


async def settled(cluster: InMemoryCluster, victim: Process) -> None:
    """Let all that waits be delivered by a healthy process."""
    victim.faults.before = None
    healthy = await cluster.start()
    for _ in range(3):
        await cluster.pass_time(HOUR)
        await healthy.queue.release(ALL)
        await healthy.queue.republish(timedelta(0))
        await cluster.recover()


@pytest.mark.parametrize("meanwhile", [retried_in_an_hour, over])
async def test_a_retry_paused_before_any_step_makes_no_second_entry(meanwhile: Meanwhile) -> None:
    for number in range(STEPS):
        cluster = InMemoryCluster()
        victim, other = await cluster.start(), await cluster.start()
        await cluster.enqueue(other, "mail")
        consumer, item = await cluster.take(victim)
        await victim.queue._engine.limits_cache.refresh()
        pause = Pause(cluster, victim, other, number, meanwhile)
        try:
            await item.retry(timedelta(0))
        except PostroadError:
            pass
        await consumer.close()
        await settled(cluster, victim)
        assert cluster.copies("mail") == 1, victim.faults.steps[-STEPS:]
        cluster.check_nothing_is_left()
        await cluster.close()
        if not pause.has_step:
            return
    pytest.fail("the operation has more steps than this test expects")


@pytest.mark.parametrize("operation", ["hold", "flush", "remove"])
async def test_administration_paused_before_any_step_loses_and_repeats_nothing(
    operation: str,
) -> None:
    for number in range(STEPS):
        cluster = InMemoryCluster()
        victim, other = await cluster.start(), await cluster.start()
        await cluster.enqueue(other, "mail", delay=5 * 3600)
        await victim.queue._engine.limits_cache.refresh()
        pause = Pause(cluster, victim, other, number, kept_by_another_entry)
        count = 0
        try:
            count = await getattr(victim.queue, operation)(ALL)
        except PostroadError:
            pass
        await settled(cluster, victim)
        await cluster.pass_time(5 * HOUR)
        await settled(cluster, victim)
        removed = count if operation == "remove" else 0
        assert cluster.copies("mail") == 1 - removed, victim.faults.steps[-STEPS:]
        cluster.check_nothing_is_left()
        await cluster.close()
        if not pause.has_step:
            return
    pytest.fail("the operation has more steps than this test expects")


@pytest.mark.parametrize("meanwhile", [retried_in_an_hour, over])
async def test_an_enqueue_without_confirms_paused_before_any_step_fails_only_unsent(
    meanwhile: Meanwhile,
) -> None:
    """Its first message arrives. What fails is not transmitted, unless it is counted."""
    for number in range(STEPS):
        cluster = InMemoryCluster()
        victim, other = await cluster.start(), await cluster.start()
        await cluster.enqueue(other, "before")
        await cluster.deliver(other, SECOND)
        await victim.queue._engine.limits_cache.refresh()
        victim.faults.plan = lambda step: Fault.ANSWER_LOST if step.operation == "publish" else None
        before = unwithdrawn()
        pause = Pause(cluster, victim, other, number, meanwhile)
        work = asyncio.ensure_future(cluster.enqueue(victim, "mail"))
        await pause.end_of(work)
        victim.faults.plan = lambda step: None
        await settled(cluster, victim)
        failed = work.exception() is not None
        transmitted = cluster.copies("mail")
        assert transmitted <= 1
        assert failed or transmitted == 1
        assert not failed or not transmitted or unwithdrawn() > before
        assert [entry.envelope.name for entry in cluster.tables.live()] == []
        assert len(cluster.tables.dead_letters) == 0
        await cluster.close()
        if not pause.has_step:
            return
    pytest.fail("the operation has more steps than this test expects")
