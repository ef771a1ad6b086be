"""A Cassandra node comes back after the others have forgotten the deletions that it missed."""

from __future__ import annotations

import asyncio
import time

from integration.cluster.clients import cql, execute
from integration.cluster.load import DRAIN_SECONDS, mail_of, patiently, variables_of
from postroad import Selector, open_queue
from postroad.ports.mail_queue import MailQueue
from postroad.settings import from_environment
from servers import fresh
from stack.clusters import Cluster

DEAD_LETTERS = 5


async def names(queue: MailQueue) -> list[str]:
    return [str(each.mail.name) async for each in queue.dead_letters()]


async def take(queue: MailQueue, delivered: list[str], *, reject: bool = False) -> None:
    """Take mail until so many more are finished: rejected or delivered."""
    count = 0
    async for item in queue.dequeue():
        if reject:
            await item.reject("the test wants it")
        else:
            delivered.append(str(item.mail.name))
            await item.done()
        count += 1
        if count == DEAD_LETTERS:
            return


def forget_deletions(cluster: Cluster, keyspace: str, *nodes: str) -> None:
    """Make nodes drop their tombstones of dead letters, as time and compaction do."""
    with cql(cluster, *nodes) as session:
        execute(session, f"ALTER TABLE {keyspace}.dead_letters WITH gc_grace_seconds = 0")
    time.sleep(2)  # compaction keeps a tombstone of this second
    for name in nodes:
        cluster.cassandra(name).nodetool("flush", keyspace, "dead_letters")
        cluster.cassandra(name).nodetool("compact", keyspace, "dead_letters")


async def test_a_dead_letter_that_comes_back_is_not_delivered_twice(cluster: Cluster) -> None:
    variables = variables_of(cluster)
    keyspace = variables["POSTROAD_CASSANDRA_KEYSPACE"]
    settings = from_environment(variables)
    first, second, third = [name for name in cluster.nodes if name.startswith("cassandra")]
    delivered: list[str] = []
    async with open_queue(f"distributed://test.{fresh()}", create=True, settings=settings) as queue:
        for number in range(DEAD_LETTERS):
            await queue.enqueue(mail_of(str(number)))
        await take(queue, delivered, reject=True)
        assert len(await names(queue)) == DEAD_LETTERS
        await asyncio.to_thread(cluster.kill, third)
        for name in (first, second):
            await asyncio.to_thread(cluster.cassandra(name).nodetool, "disablehandoff")
        await patiently(lambda: queue.requeue(Selector.all()))
        await take(queue, delivered)
        assert await names(queue) == []

        await asyncio.to_thread(forget_deletions, cluster, keyspace, first, second)
        await asyncio.to_thread(cluster.start, third)
        await asyncio.to_thread(cluster.settled)
        await asyncio.to_thread(cluster.kill, second)  # so that a quorum has to ask the third
        back = await patiently(lambda: names(queue))
        print(f"dead letters that came back: {len(back)} of {DEAD_LETTERS}")
        requeued = await patiently(lambda: queue.requeue(Selector.all()))
        print(f"requeued again: {requeued}")
        deadline = time.monotonic() + DRAIN_SECONDS
        taking = asyncio.create_task(take(queue, delivered))
        while (await queue.size()).size and time.monotonic() < deadline:
            await asyncio.sleep(0.5)
        taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)
        print(f"afterwards: {await queue.size()}, {len(delivered)} delivered")
        await asyncio.to_thread(cluster.cassandra(first).nodetool, "enablehandoff")

    assert back  # without it, the test shows nothing
    assert requeued == 0
    assert sorted(delivered) == sorted(map(str, range(DEAD_LETTERS)))
