"""A configuration changes under producers, consumers and readers, on real servers.

Each handle stands for a process: the handles share nothing but the servers. The lease is shorter
than in production, and the same for all.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID

import pytest

import servers
from postroad.adapters.clocks import MachineClock, SystemRandomness
from postroad.adapters.memory.servers import FixedConfiguration
from postroad.bootstrap.cluster import ClusterServers
from postroad.bootstrap.distributed import create_tables
from postroad.configuration import LeasedConfiguration, settle
from postroad.distributed.engine.engine import Parts
from postroad.distributed.engine.timing import Timing
from postroad.distributed.mail_queue import DistributedQueue
from postroad.domain.configuration.rules import ViewConfiguration
from postroad.domain.mail.mail import Mail
from postroad.domain.queues.entries import EntryKey, place
from postroad.domain.queues.names import QueueName
from postroad.domain.values.identifiers import moment_of
from postroad.errors import ConfigurationStale, PostroadError
from postroad.ports.view import ConfigurationSource

pytestmark = [pytest.mark.needs("rabbitmq", "cassandra", "s3"), pytest.mark.timeout(300)]

SECOND = timedelta(seconds=1)
LEASE = 4 * SECOND
TIMING = Timing(
    read_lease=LEASE,
    longest_read_lease=LEASE,
    grace=20 * SECOND,
    deadline=11 * SECOND,
    skew=SECOND,
)
OLD, NEW = ViewConfiguration(3600 * SECOND, 1), ViewConfiguration(1800 * SECOND, 4)
BRIEF = ViewConfiguration(4 * SECOND, 1), ViewConfiguration(2 * SECOND, 4)
"""The old and the new configuration, with windows so short that browse start passes them within a
test."""

MAX_DELIVERY = 120
"""Seconds; many redelivery delays and claims."""


@dataclass
class Site:
    """A queue on the servers, and the ledger of what happened to its mails."""

    servers: ClusterServers
    name: QueueName
    enqueued: set[UUID] = field(default_factory=set)
    taken: set[UUID] = field(default_factory=set)
    done: Counter[UUID] = field(default_factory=Counter)
    handles: list[DistributedQueue] = field(default_factory=list)
    stopping: bool = False
    busy: bool = False

    async def want(self, wanted: ViewConfiguration) -> None:
        history, now = self.servers.history(self.name), MachineClock().now()
        assert (await settle(history, wanted, at=now, by="test")).refusal is None

    def leased(self) -> LeasedConfiguration:
        """Return a process' knowledge of the configuration; it does not refresh itself yet."""
        history = self.servers.history(self.name)
        return LeasedConfiguration(
            history,
            MachineClock(),
            SystemRandomness(),
            lease=LEASE,
            longest_read_lease=LEASE,
            grace=TIMING.grace,
        )

    async def process(self, source: ConfigurationSource | None = None) -> DistributedQueue:
        """Start a process. Without a given source it refreshes its knowledge itself, as production
        does."""
        clock = MachineClock()
        leased = self.leased()
        if source is None:
            await leased.start()
        parts = Parts(
            name=self.name,
            broker=self.servers.broker(self.name),
            view=self.servers.views().view(str(self.name)),
            blobs=self.servers.blobs(f"{self.name.namespace}-{self.name.name}"),
            configuration=source or leased,
            clock=clock,
            randomness=SystemRandomness(),
            timing=TIMING,
            owned=(leased,),
        )
        queue = await DistributedQueue.open(parts, create_missing=True)
        self.handles.append(queue)
        return queue


@asynccontextmanager
async def new_site(first: ViewConfiguration) -> AsyncIterator[Site]:
    """Make a queue with its first configuration, and remove it."""
    given = servers.settings()
    keyspace = given.cassandra.model_copy(update={"keyspace": servers.fresh()})
    cluster = ClusterServers(given.model_copy(update={"cassandra": keyspace}))
    await create_tables(cluster)
    site = Site(cluster, QueueName("test", servers.fresh()))
    await site.want(first)
    yield site
    await asyncio.gather(*(each.close() for each in site.handles))
    await cluster.broker(site.name).delete()
    await cluster.blobs(f"{site.name.namespace}-{site.name.name}").drop()
    await cluster._session.run("DROP KEYSPACE {keyspace}")
    await cluster.close()


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    """A queue whose first configuration is OLD."""
    async with new_site(OLD) as made:
        yield made


async def produce(site: Site, queue: DistributedQueue) -> None:
    """Enqueue until the site stops, because a cancelled enqueue may have queued its mail."""
    while not site.stopping:
        mail = Mail("a@example.org", ("b@example.net",), b"Subject: x\r\n\r\nbody\r\n")
        site.enqueued.add(await queue.enqueue(mail))
        await asyncio.sleep(0.05)


async def consume(site: Site, queue: DistributedQueue) -> None:
    """Deliver half of the mails that come; keep the others leased."""
    randomness = random.Random(3)
    async for item in queue.dequeue(prefetch=2000):
        if randomness.random() < 0.5:
            site.taken.add(item.enqueue_id)
            await item.done()
            site.done[item.enqueue_id] += 1


async def look(site: Site, queue: DistributedQueue) -> None:
    """Browse repeatedly: each mail that waits before and after is seen, and seen once."""
    before = {*site.enqueued}
    seen = Counter([view.enqueue_id async for view in queue.browse()])

    assert before - site.taken <= set(seen), "a mail is not seen"
    assert set(seen.values()) <= {1}, "a mail is seen twice"


async def read(site: Site, queue: DistributedQueue) -> None:
    while True:
        await look(site, queue)
        await asyncio.sleep(0.2)


async def written_under_new(site: Site) -> None:
    """Wait until some mails lie where only the new configuration puts them."""
    view = site.servers.views().view(str(site.name))
    while True:
        await asyncio.sleep(0.1)
        if not site.enqueued:
            continue
        newest = place(max(site.enqueued), NEW.slice_window, NEW.bucket_count)
        if newest.bucket_id and await view.row(newest) is not None:
            return


async def test_a_change_under_producers_and_consumers_loses_and_doubles_nothing(
    site: Site,
) -> None:
    producing = [asyncio.create_task(produce(site, await site.process()))]
    others = [
        asyncio.create_task(consume(site, await site.process())),
        asyncio.create_task(read(site, await site.process())),
        asyncio.create_task(read(site, await site.process())),
    ]
    while len(site.done) < 20:
        await asyncio.sleep(0.1)

    await site.want(NEW)
    producing.append(asyncio.create_task(produce(site, await site.process())))
    waiting = asyncio.create_task(written_under_new(site))
    await asyncio.wait({waiting, *producing, *others}, return_when=asyncio.FIRST_COMPLETED)
    assert waiting.done(), [each for each in (*producing, *others) if each.done()]
    later = len(site.enqueued) + 50
    while len(site.enqueued) < later:
        await asyncio.sleep(0.1)

    site.stopping = True
    await asyncio.gather(*producing)
    for each in others:
        each.cancel()
    ended = await asyncio.gather(*others, return_exceptions=True)
    assert all(isinstance(each, asyncio.CancelledError) for each in ended), ended
    assert set(site.done.values()) == {1}
    for queue in (site.handles[0], await site.process()):
        found = [view.enqueue_id async for view in queue.browse()]
        assert len(found) == len(set(found)) == (await queue.size()).size
        assert site.enqueued - site.taken <= set(found) <= site.enqueued - set(site.done)


async def test_a_reader_that_lost_the_history_refuses_rather_than_sees_less(site: Site) -> None:
    stale = site.leased()
    await stale.refresh()
    reader = await site.process(stale)
    unprotected = await site.process(FixedConfiguration(OLD))
    work = asyncio.create_task(produce(site, await site.process()))
    await site.want(NEW)

    await written_under_new(site)

    with pytest.raises(ConfigurationStale):
        await look(site, reader)
    with pytest.raises(AssertionError, match="not seen"):
        await look(site, unprotected)
    site.stopping = True
    await work


async def test_without_the_lease_accepted_mail_is_lost() -> None:
    async with new_site(BRIEF[0]) as protected, new_site(BRIEF[0]) as unprotected:
        lost, lost_without = await asyncio.gather(
            lost_by_a_change(protected, protected=True),
            lost_by_a_change(unprotected, protected=False),
        )

    assert not lost
    assert set(protected.done.values()) == {1}
    assert lost_without, "the protection would be for nothing"
    old, new = BRIEF
    assert all(where(each, old) != where(each, new) for each in lost_without)


async def lost_by_a_change(site: Site, *, protected: bool) -> set[UUID]:
    """One process writes under a change as soon as it knows of it. Another process does not know of
    it yet, and moves browse start past slices in which it sees no mail. Mails in the slices that it
    passed count as finished."""
    old, new = BRIEF
    late = await site.process(None if protected else FixedConfiguration(old))
    await site.want(new)
    async with site.leased() as known:
        while protected and known.effective().writing != new:
            await asyncio.sleep(0.1)
            await known.refresh()
        writer = await site.process(known if protected else FixedConfiguration(new))
        for _ in range(20):
            await until_the_old_one_looks_elsewhere()
            mail = Mail("a@example.org", ("b@example.net",), b"Subject: x\r\n\r\nbody\r\n")
            site.enqueued.add(await writer.enqueue(mail))

    await pass_slices(late, max(site.enqueued))
    await deliver_all(site)

    return site.enqueued - set(site.done)


async def until_the_old_one_looks_elsewhere() -> None:
    """Wait for the second half of an old slice, less a margin. In its first half, a mail of the new
    configuration may lie where the old one reads too, and then keeps browse start from passing
    any."""
    old, new = (each.slice_window.total_seconds() for each in BRIEF)
    while not new <= MachineClock().now().timestamp() % old < old - 0.5:
        await asyncio.sleep(0.05)


def where(enqueue_id: UUID, configuration: ViewConfiguration) -> EntryKey:
    return place(enqueue_id, configuration.slice_window, configuration.bucket_count)


async def pass_slices(queue: DistributedQueue, newest: UUID) -> None:
    """Maintain a queue until slices as old as this entry's can be passed, and once more."""
    passable = moment_of(newest) + 3 * BRIEF[0].slice_window + TIMING.grace
    is_over = False
    while not is_over:
        is_over = MachineClock().now() > passable
        try:
            await queue.maintain()
        except PostroadError as error:
            if not error.transient:
                raise
            is_over = False
        await asyncio.sleep(0.5)


async def deliver_all(site: Site) -> None:
    """Deliver until every mail was delivered, or for longer than a mail that has a message can
    take."""
    broker = site.servers.broker(site.name)
    until = asyncio.get_running_loop().time() + MAX_DELIVERY
    while len(site.done) < len(site.enqueued) and asyncio.get_running_loop().time() < until:
        queue = await site.process()
        delivering = asyncio.create_task(consume_all(site, queue))
        while site.busy or (await broker.depths()).work:
            await asyncio.sleep(0.2)
        delivering.cancel()
        await asyncio.wait([delivering])
        await queue.close()  # the broker has again what the consumer did not reach


async def consume_all(site: Site, queue: DistributedQueue) -> None:
    async for item in queue.dequeue(prefetch=100):
        site.busy = True
        await item.done()
        site.done[item.enqueue_id] += 1
        site.busy = False
