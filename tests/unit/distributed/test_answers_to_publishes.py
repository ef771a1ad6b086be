"""Whatever the broker answers to the publishes of an enqueue, while the view fails too and a
consumer takes its time: a mail that was accepted is delivered once, and one that was reported as
failed is not, or is counted (invariant 1)."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta

import pytest

from contract.queue_harness import plain_mail
from postroad.errors import (
    BrokerRefused,
    BrokerUnavailable,
    CredentialsRefused,
    ExchangeGone,
    PostroadError,
    ServerError,
    Unroutable,
)
from support.in_memory_cluster import InMemoryCluster, Process, unwithdrawn
from support.memory import fault_injection
from support.memory.fault_injection import Fault, Step, no_fault

MINUTE = timedelta(minutes=1)

FAILING = {"claim", "release_claim", "end", "row", "insert", "mark", "records"}
"""The steps at the view that fail."""


class Answers:
    """The drawn answers of both servers to one process."""

    def __init__(self, randomness: random.Random, cluster: InMemoryCluster) -> None:
        self._randomness, self._cluster = randomness, cluster
        self._is_flaky = randomness.choice([0.0, 0.0, 0.2, 0.6])

    def plan(self, step: Step) -> Fault | None:
        drawn = self._randomness
        if step.operation == "publish":
            error: type[ServerError] = drawn.choice([BrokerUnavailable, ExchangeGone])
            fault_injection.UNAVAILABLE["broker"] = error
            return drawn.choice([Fault.AWAY, Fault.LOST, Fault.ANSWER_LOST, Fault.ANSWER_LOST])
        if step.operation in FAILING and drawn.random() < self._is_flaky:
            return drawn.choice([Fault.AWAY, Fault.ANSWER_LOST])
        return None

    async def before(self, step: Step) -> None:
        drawn = self._randomness
        if step.operation != "publish":
            return
        if drawn.random() < 0.15:
            raise drawn.choice([Unroutable, BrokerRefused, CredentialsRefused])("no")
        if drawn.random() < 0.5:
            await self._cluster.clock.sleep(timedelta(seconds=drawn.uniform(0, 10)))


async def deliver_slowly(
    cluster: InMemoryCluster, worker: Process, begin: timedelta, hold: timedelta
) -> None:
    """Deliver one mail, recorded as late as `hold` after its transmission."""
    await cluster.clock.sleep(begin)
    async for item in worker.queue.dequeue(10):
        cluster.transmit(item)
        await cluster.clock.sleep(hold)
        try:
            await item.done()
        except PostroadError:
            pass  # it ended otherwise meanwhile


@pytest.mark.parametrize("portion", range(8))
async def test_an_enqueue_is_one_mail_or_none_or_counted(
    portion: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a message that the broker may have counts as none, two or more of these seeds fail."""
    monkeypatch.setitem(fault_injection.UNAVAILABLE, "broker", BrokerUnavailable)
    for seed in range(40 * portion, 40 * portion + 40):
        await scenario(seed)


async def scenario(seed: int) -> None:
    drawn, cluster = random.Random(seed), InMemoryCluster(seed=seed)
    producer, worker = await cluster.start(), await cluster.start()
    answers, before = Answers(drawn, cluster), unwithdrawn()
    producer.faults.plan, producer.faults.before = answers.plan, answers.before

    delay = timedelta(seconds=drawn.choice([0, 0, 0, 5, 30]))
    work = asyncio.ensure_future(producer.queue.enqueue(plain_mail("mail"), delay))
    begin = timedelta(seconds=drawn.choice([0, 0, drawn.uniform(0, 60)]))
    hold = timedelta(seconds=drawn.choice([1, 9, 60, 600]))
    delivering = asyncio.ensure_future(deliver_slowly(cluster, worker, begin, hold))
    assert await cluster.outcome(work, 5 * MINUTE), seed
    await cluster.pass_time(15 * MINUTE)
    producer.faults.plan, producer.faults.before = no_fault, None
    await cluster.pass_time(60 * MINUTE)  # behind the longest lease, after which it is counted
    delivering.cancel()
    await asyncio.gather(delivering, return_exceptions=True)
    await cluster.recover()

    copies, counted = cluster.copies("mail"), unwithdrawn() - before
    assert counted in (0, 1), seed
    if work.exception() is None:
        assert copies == 1, seed
    else:
        assert isinstance(work.exception(), PostroadError), seed
        assert copies <= counted, seed
    cluster.check_nothing_is_left()
    await cluster.close()
