"""An operation on many mails changes none that came of it while it goes on: mail that it made
due is attempted once, however quickly the next hop answers."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta

import pytest

from postroad.cli.mail.task import carry_out, count_selected
from postroad.domain.queues.selection import Selector
from postroad.ports.mail_queue import Item
from support.in_memory_cluster import InMemoryCluster, Process
from support.memory.fault_injection import Step

NAMES = [f"mail-{number}" for number in range(24)]
A_STEP = timedelta(milliseconds=2)


async def slow(cluster: InMemoryCluster) -> Process:
    """Start a process whose servers take a moment for each step, so that others run between."""
    process = await cluster.start()

    async def latency(step: Step) -> None:
        await cluster.clock.sleep(A_STEP)

    process.faults.before = latency
    return process


async def refuse(item: Item) -> None:
    await item.reject("550 no such user")


async def defer(item: Item) -> None:
    await item.retry(timedelta(hours=1))


@pytest.mark.parametrize(("operation", "answer"), [("flush", defer), ("requeue", refuse)])
async def test_mail_that_fails_again_at_once_is_attempted_once(
    cluster: InMemoryCluster, process: Process, operation: str, answer: object
) -> None:
    if operation == "flush":
        await cluster.enqueue(process, *NAMES, delay=3600)
    else:
        await cluster.give_up(process, *NAMES)
    await cluster.pass_time(timedelta(seconds=10))
    selector = Selector(everything=True, accepted_before=cluster.clock.now())
    assert await count_selected(process.queue, operation, selector) == len(NAMES)
    attempts: Counter[str | None] = Counter()

    async def attempt() -> None:
        async for item in (await cluster.start()).queue.dequeue(prefetch=10):
            attempts[item.mail.name] += 1
            await answer(item)  # type: ignore[operator]

    attempting = asyncio.ensure_future(attempt())
    task = asyncio.ensure_future(
        carry_out((await slow(cluster)).queue, operation, selector, cluster.clock)
    )
    await cluster.outcome(task, timedelta(minutes=10))
    attempting.cancel()
    await asyncio.gather(attempting, return_exceptions=True)

    assert task.result() == len(NAMES)
    assert attempts == dict.fromkeys(NAMES, 1)
