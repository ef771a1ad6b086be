"""Thousands of mails at once, and slices of a second, on three nodes of which one may be away.

POSTROAD_TEST_MANY is the number of mails (1,000 by default); the tests print how long they took.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta

from integration.cluster.clients import cql, execute
from integration.cluster.load import DRAIN_SECONDS, mail_of, patiently, under_load, variables_of
from postroad import open_queue
from postroad.adapters.cassandra.session import Session
from postroad.adapters.cassandra.store import CassandraViewStore
from postroad.domain.configuration.rules import ViewConfiguration
from postroad.domain.queues.selection import Selector
from postroad.errors import PostroadError
from postroad.ports.mail_queue import MailQueue
from postroad.ports.view import TableOptions
from postroad.settings import from_environment
from servers import fresh
from stack.clusters import Cluster
from support.access import cassandra_of

MANY = int(os.environ.get("POSTROAD_TEST_MANY", "1000"))
AT_ONCE = 32
LONG = timedelta(days=14)


async def enqueued(queue: MailQueue, delay: timedelta) -> set[str]:
    """Enqueue the mails of a test; return their names."""
    names = [f"many-{number}" for number in range(MANY)]
    left = iter(names)

    async def send() -> None:
        for name in left:
            await patiently(lambda: queue.enqueue(mail_of(name), delay))  # noqa: B023

    await asyncio.gather(*(send() for _ in range(AT_ONCE)))
    return set(names)


@contextlib.asynccontextmanager
async def delivering(*consumers: MailQueue) -> AsyncIterator[Counter[str]]:
    """Deliver all mail that comes; yield how often each one came."""
    delivered = Counter[str]()

    async def deliver(consumer: MailQueue) -> None:
        async for item in consumer.dequeue(prefetch=20):
            delivered[str(item.mail.name)] += 1
            with contextlib.suppress(PostroadError):  # it comes again
                await item.done()

    tasks = [asyncio.create_task(deliver(consumer)) for consumer in consumers]
    try:
        yield delivered
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def drained(delivered: Counter[str], names: set[str]) -> None:
    """Return once all have come, or no longer come."""
    deadline = time.monotonic() + DRAIN_SECONDS
    while names - delivered.keys() and time.monotonic() < deadline:
        await asyncio.sleep(0.5)


async def test_many_delayed_mails_of_one_hour_are_flushed_by_two_nodes_under_load(
    cluster: Cluster,
) -> None:
    variables = variables_of(cluster)
    url, settings = f"distributed://test.{fresh()}", from_environment(variables)
    async with open_queue(url, create=True, settings=settings) as queue:
        names = await enqueued(queue, timedelta(hours=1))
        async with under_load(cluster, variables) as load:
            await asyncio.to_thread(cluster.pause, "cassandra-3")
            await load.progresses()
            flushed: list[int] = []
            began, refused = time.monotonic(), 0
            while flushed[-1:] != [0] and time.monotonic() - began < DRAIN_SECONDS:
                try:
                    flushed.append(await queue.flush(Selector.all()))
                except PostroadError as error:
                    if not error.transient:
                        raise
                    refused += 1
            took = time.monotonic() - began
            await asyncio.to_thread(cluster.resume, "cassandra-3")
        async with delivering(queue) as delivered:
            await drained(delivered, names)
    print(f"flushed {flushed} of {MANY} in {took:.1f} s, {refused} calls failed half way")
    load.report("flush by two nodes")

    assert delivered == Counter(names)
    assert load.violations == []


async def test_rows_are_rolled_forward_before_they_expire(cluster: Cluster) -> None:
    """The rows' lifetime is half over when maintenance begins: what it does not reach in the other
    half is lost."""
    short = timedelta(minutes=4) + MANY * timedelta(seconds=0.1)  # half of it is to enqueue them in
    variables = variables_of(cluster)
    keyspace = variables["POSTROAD_CASSANDRA_KEYSPACE"]
    session = Session(cassandra_of(cluster.environment(), keyspace))
    await CassandraViewStore(session).create(
        TableOptions(
            replication={"class": "NetworkTopologyStrategy", "dc1": "3"},
            row_lifetime=short,
            compaction_window=timedelta(minutes=1),
            gc_grace=timedelta(hours=3),
        )
    )
    url, settings = f"distributed://test.{fresh()}", from_environment(variables)
    minute = ViewConfiguration(timedelta(minutes=1))  # a lifetime has four slices at least
    async with open_queue(url, create=True, configuration=minute, settings=settings) as queue:
        names = await enqueued(queue, timedelta(days=1))
        last = time.monotonic()
        with cql(cluster, "cassandra-1") as administrator:
            tables = execute(
                administrator,
                "SELECT table_name FROM system_schema.tables"
                f" WHERE keyspace_name = '{keyspace}' AND default_time_to_live ="
                f" {int(short.total_seconds())} ALLOW FILTERING",
            )
            assert tables
            for each in tables:
                execute(
                    administrator,
                    f"ALTER TABLE {keyspace}.{each.table_name}"
                    f" WITH default_time_to_live = {int(LONG.total_seconds())}",
                )
        await asyncio.sleep(max(0, short.total_seconds() / 2 + 2 - (time.monotonic() - last)))
        began = time.monotonic()
        await patiently(queue.maintain)
        took = time.monotonic() - began
        await asyncio.sleep(max(0, short.total_seconds() + 2 - (time.monotonic() - last)))

        assert (await queue.size()).size == MANY
        assert await patiently(lambda: queue.flush(Selector.all())) == MANY
        async with delivering(queue) as delivered:
            await drained(delivered, names)
    await session.close()
    print(f"{MANY} rows were rolled forward in {took:.1f} s: {MANY / took:.0f} a second")

    assert delivered == Counter(names)


async def test_ten_workers_share_slices_of_a_second(cluster: Cluster) -> None:
    settings = from_environment(variables_of(cluster))
    url = f"distributed://test.{fresh()}"
    second = ViewConfiguration(timedelta(seconds=1), 2, 1)
    async with contextlib.AsyncExitStack() as stack:
        queue = await stack.enter_async_context(
            open_queue(url, create=True, configuration=second, settings=settings)
        )
        workers = [
            await stack.enter_async_context(open_queue(url, settings=settings)) for _ in range(10)
        ]
        delivered = await stack.enter_async_context(delivering(*workers))
        began = time.monotonic()
        maintaining = [asyncio.create_task(_maintain(each)) for each in workers]
        names = await enqueued(queue, timedelta(0))
        await drained(delivered, names)
        rounds = time.monotonic() - began
        for task in maintaining:
            task.cancel()
        results = await asyncio.gather(*maintaining, return_exceptions=True)
        await patiently(queue.maintain)
        sizes = await queue.size()
    print(f"{MANY} mails over slices of a second in {rounds:.1f} s by ten workers")

    assert all(isinstance(each, asyncio.CancelledError) for each in results), results
    assert delivered == Counter(names)
    assert (sizes.size, sizes.dead_letters) == (0, 0)


async def _maintain(queue: MailQueue) -> None:
    while True:
        with contextlib.suppress(PostroadError):  # a transient error ends a round, not the worker
            await queue.maintain()
        await asyncio.sleep(30)
