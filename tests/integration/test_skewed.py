"""Producers whose clocks are wrong, within the tolerance and beyond it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

import servers as names
from contract.queue_harness import Consumer, RealTime, plain_mail
from postroad.distributed.engine.timing import Timing
from postroad.distributed.mail_queue import DistributedQueue
from postroad.domain.queues.names import QueueName
from postroad.errors import ClockSkew
from support.engines import RealQueue
from support.keyspaces import keyspace

__all__ = ["keyspace"]

pytestmark = [pytest.mark.needs("rabbitmq", "cassandra", "s3"), pytest.mark.timeout(300)]

EACH = 100
SKEW = timedelta(seconds=30)
TOLERANT = Timing(skew=SKEW + timedelta(seconds=2), grace=timedelta(minutes=3))


@pytest.fixture
async def place(keyspace: str) -> AsyncIterator[RealQueue]:
    name = QueueName("test", names.fresh())
    made = RealQueue(name, keyspace, timedelta(seconds=5), TOLERANT)
    yield made
    await made.delete()


async def browsed(queue: DistributedQueue) -> list[str]:
    return [each.mail.name or "" async for each in queue.browse()]


async def test_nothing_is_lost_from_sight_with_clocks_that_differ_by_a_minute(
    place: RealQueue,
) -> None:
    reader = await place.open(create=True)
    producers = {
        name: await place.open(skew) for name, skew in (("ahead", SKEW), ("behind", -SKEW))
    }
    acknowledged: set[str] = set()

    async def produce(name: str) -> None:
        for number in range(EACH):
            await producers[name].enqueue(plain_mail(f"{name}{number}"))
            acknowledged.add(f"{name}{number}")

    producing = asyncio.gather(*(produce(name) for name in producers))
    browses = 0
    while not producing.done():
        there = set(acknowledged)
        found = await browsed(reader)
        assert there <= set(found)
        assert len(found) == len(set(found))
        browses += 1
    await producing
    await reader.maintain()

    assert sorted(await browsed(reader)) == sorted(acknowledged)
    assert (await reader.size()).size == len(acknowledged) == 2 * EACH
    worker = await place.open()
    consumer = Consumer(RealTime(), worker)
    delivered: Counter[str] = Counter()
    while delivered.total() < 2 * EACH:
        item = await consumer.next()
        delivered[item.mail.name or ""] += 1
        await item.done()
    print(f"{2 * EACH} acknowledged, {browses} browses, {len(delivered)} delivered")
    assert delivered == Counter(acknowledged)
    assert await browsed(reader) == []
    await consumer.close()
    for queue in (worker, reader, *producers.values()):
        await queue.close()


@pytest.mark.parametrize("direction", [1, -1], ids=["ahead", "behind"])
async def test_a_clock_beyond_what_is_tolerated_makes_no_mail(
    place: RealQueue, direction: int
) -> None:
    reader = await place.open(create=True)
    producer = await place.open(direction * (TOLERANT.skew + timedelta(seconds=10)))

    for _ in range(3):
        with pytest.raises(ClockSkew):
            await producer.enqueue(plain_mail("refused"))
    with pytest.raises(ClockSkew):
        await producer.maintain()

    assert await browsed(reader) == []
    await producer.close()
    await reader.close()
