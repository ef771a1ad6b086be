"""Purged mail is not delivered, even when its marks were cleaned away and only its messages are
left."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest

import servers as names
from contract.queue_harness import Consumer, RealTime, plain_mail
from postroad.distributed.engine.timing import Timing
from postroad.distributed.mail_queue import DistributedQueue
from postroad.domain.queues.entries import Partition, PurgeWatermark, slices_between
from postroad.domain.queues.names import QueueName, key_of_owner
from postroad.errors import ServerError
from postroad.ports.view import View
from support.engines import RealQueue
from support.keyspaces import keyspace

__all__ = ["keyspace"]

pytestmark = [pytest.mark.needs("rabbitmq", "cassandra", "s3"), pytest.mark.timeout(900)]

MANY, AT_ONCE = 600, 50
WINDOW = timedelta(seconds=2)
TIMING = Timing(
    deadline=timedelta(seconds=10),
    skew=timedelta(seconds=1),
    grace=timedelta(seconds=19),
    read_lease=timedelta(seconds=5),
    longest_read_lease=timedelta(seconds=5),
)
"""As short as a busy machine allows, so that slices are closed and cleaned within the test."""


@pytest.fixture
async def place(keyspace: str) -> AsyncIterator[RealQueue]:
    made = RealQueue(QueueName("test", names.fresh()), keyspace, WINDOW, TIMING)
    yield made
    await made.delete()


async def enqueue_many(queue: DistributedQueue, count: int) -> int:
    """Queue so many mails; return how many more were refused on the way."""
    left = iter(range(count))
    refused = 0

    async def producer() -> None:
        nonlocal refused
        for number in left:
            done = False
            while not done:
                with suppress(ServerError):
                    await queue.enqueue(plain_mail(f"mail{number}"))
                    done = True
                refused += not done

    await asyncio.gather(*(producer() for _ in range(AT_ONCE)))
    return refused


async def watermarks_of(place: RealQueue, view: View, until: datetime) -> list[PurgeWatermark]:
    """Return the watermarks in the partitions of the last minutes."""
    starts = slices_between(until - timedelta(minutes=10), until, WINDOW)
    partitions = [Partition(start, bucket) for start in starts for bucket in range(place.buckets)]
    version = await asyncio.gather(*(view.version(each) for each in partitions))
    return [each.watermark for each in version if each.watermark is not None]


async def clean_until(place: RealQueue, queue: DistributedQueue, moment: datetime) -> None:
    """Maintain until everything before a moment is cleaned."""
    servers = place.servers()
    view = place.view(servers)
    async with asyncio.timeout(300):
        while True:
            await queue.maintain()
            content_start = (await view.limits()).content_start
            if content_start is not None and content_start > moment:
                break
            await asyncio.sleep(1)
    assert [each async for each in view.closed_slices(moment - timedelta(days=1))] == []
    await servers.close()


async def test_purged_mail_that_is_still_with_the_broker_is_not_delivered_after_cleanup(
    place: RealQueue, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "postroad")
    queue = await place.open(create=True)
    refused = await enqueue_many(queue, MANY)
    enqueued = await queue.size()
    await asyncio.sleep((TIMING.grace + WINDOW).total_seconds())
    purged = await queue.purge()
    last = datetime.now(UTC)
    servers = place.servers()
    watermarks = await watermarks_of(place, place.view(servers), last)
    await clean_until(place, queue, last)

    broker = place.broker(servers)
    before = await broker.depths()
    worker = await place.open()
    consumer = Consumer(RealTime(), worker, prefetch=200)
    async with asyncio.timeout(300):
        while (left := await broker.depths()).work:
            assert await consumer.nothing()

    print(f"{MANY} acknowledged, {refused} refused, {purged} purged, {before.work} still with the")
    print(f"broker after cleanup, 0 delivered, {left.dead} dead")
    assert (enqueued.size, purged) == (MANY, MANY)
    assert watermarks
    assert before.work >= MANY
    assert left.dead == 0
    assert [each async for each in queue.dead_letters()] == []
    keys = {each async for each in servers.blobs(place.bucket).keys("")}
    assert keys == {key_of_owner(place.name)}
    assert [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR] == []
    await servers.close()
    await consumer.close()
    await worker.close()
    await queue.close()
