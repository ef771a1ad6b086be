"""What only several nodes can show: delay queues whose leaders die, publishers without a quorum."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import resource
import time
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from integration.cluster.load import DRAIN_SECONDS, mail_of, patiently, variables_of
from integration.cluster.test_in_flight import node_of
from postroad import Mail, open_queue
from postroad.adapters.rabbitmq.topology import delay_queue
from postroad.errors import PostroadError
from postroad.ports.mail_queue import MailQueue
from postroad.settings import from_environment
from servers import fresh
from stack.clusters import Cluster
from stack.progress import Progress


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes of RabbitMQ beside one of each other server, which no test here touches."""
    cluster = Cluster(tmp_path_factory.mktemp("brokers"))
    try:
        yield Cluster.up(cluster.directory, cassandra=1, s3=1, progress=Progress())
    finally:
        cluster.down()


STEP = timedelta(seconds=8)
"""Exactly one step of the delay queues: the first message comes out of it without another."""

LEADERS, SENDERS = 4, 4
LATE_COPIES = 30.0
"""Seconds in which a second copy may still come."""


class DelayedMail:
    """The mails that were accepted, and how often each was handed out."""

    def __init__(self) -> None:
        self.accepted: set[str] = set()
        self.handed_out = Counter[str]()
        self.doubtful: set[str] = set()
        """Those whose ending failed at first, so that they may come again."""
        self.refused = 0

    async def send(self, queue: MailQueue, sender: int, stopped: asyncio.Event) -> None:
        for number in itertools.count():
            if stopped.is_set():
                return
            name = f"{sender}-{number}"
            try:
                await queue.enqueue(mail_of(name), STEP)
            except PostroadError:
                self.refused += 1
            else:
                self.accepted.add(name)
            await asyncio.sleep(0.1)

    async def deliver(self, queue: MailQueue) -> None:
        async for item in queue.dequeue(prefetch=20):
            name = str(item.mail.name)
            self.handed_out[name] += 1
            try:
                await item.done()
            except PostroadError:
                self.doubtful.add(name)

    @property
    def lost(self) -> set[str]:
        return self.accepted - self.handed_out.keys()

    @property
    def twice(self) -> set[str]:
        return {name for name, count in self.handed_out.items() if count > 1}


async def test_mail_of_one_step_is_neither_lost_nor_doubled_while_leaders_of_its_queue_die(
    brokers: Cluster,
) -> None:
    """RabbitMQ moves messages out of a delay queue at least once: a leader that dies may have moved
    some that its successor moves again."""
    settings = from_environment(variables_of(brokers))
    url = f"distributed://test.{fresh()}"
    mails, stopped = DelayedMail(), asyncio.Event()
    async with (
        open_queue(url, create=True, settings=settings) as queue,
        open_queue(url, settings=settings) as one,
        open_queue(url, settings=settings) as other,
    ):
        delivering = [asyncio.create_task(mails.deliver(each)) for each in (one, other)]
        sending = [asyncio.create_task(mails.send(queue, each, stopped)) for each in range(SENDERS)]
        try:
            for _ in range(LEADERS):
                await asyncio.sleep(STEP.total_seconds())
                node = await node_of(brokers, "leader", delay_queue(8))
                await asyncio.to_thread(brokers.kill, node)
                await asyncio.sleep(3)
                await asyncio.to_thread(brokers.start, node)
            stopped.set()
            await asyncio.gather(*sending)
            deadline = time.monotonic() + DRAIN_SECONDS
            while mails.lost and time.monotonic() < deadline:
                await asyncio.sleep(0.5)
            await asyncio.sleep(LATE_COPIES)
        finally:
            for task in (*delivering, *sending):
                task.cancel()
            await asyncio.gather(*delivering, *sending, return_exceptions=True)
    print(
        f"{LEADERS} leaders died: {len(mails.accepted)} accepted, {mails.refused} refused,"
        f" {len(mails.lost)} lost, {len(mails.twice)} more than once,"
        f" {len(mails.doubtful)} whose ending failed at first"
    )

    assert len(mails.accepted) > 100
    assert mails.lost == set()
    assert mails.twice - mails.doubtful == set()


AWAY_SECONDS, AT_ONCE = 120, 300
MAX_GROWTH = 128 * 2**20
"""Of the whole process, which publishes envelopes of 10 kB: twice what may be unconfirmed."""


def resident() -> int:
    """Return the memory of this process, in bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


@contextlib.contextmanager
def without_a_quorum(cluster: Cluster) -> Iterator[None]:
    """Let two of RabbitMQ's three nodes stand still: the third notices it a minute later."""
    nodes = ("rabbitmq-2", "rabbitmq-3")
    for each in nodes:
        cluster.pause(each)
    try:
        yield
    finally:
        for each in nodes:
            cluster.resume(each)


async def test_memory_of_a_publisher_is_bounded_while_two_nodes_of_the_broker_stand_still(
    brokers: Cluster,
) -> None:
    settings = from_environment(variables_of(brokers))
    recipients = tuple(f"user{number:04}@{'x' * 35}.example" for number in range(200))
    mail = Mail("a@example.org", recipients, b"Subject: m\r\n\r\nm\r\n")
    failed = Counter[str]()
    sizes: list[int] = []

    async def send(queue: MailQueue, until: float) -> None:
        while time.monotonic() < until:
            try:
                await queue.enqueue(mail)
                failed["none"] += 1
            except PostroadError as error:
                failed[type(error).__name__] += 1
                await asyncio.sleep(0.2)

    async with open_queue(f"distributed://test.{fresh()}", create=True, settings=settings) as queue:
        await queue.enqueue(mail)
        before = resident()
        with without_a_quorum(brokers):
            until = time.monotonic() + AWAY_SECONDS
            sending = [asyncio.create_task(send(queue, until)) for _ in range(AT_ONCE)]
            while time.monotonic() < until:
                await asyncio.sleep(5)
                sizes.append(resident() - before)
            await asyncio.gather(*sending)
        sizes.append(resident() - before)
        await patiently(lambda: queue.enqueue(mail))
    print(f"enqueues by error: {dict(failed)}; MB more: {[each >> 20 for each in sizes]}")

    assert sum(failed.values()) - failed["none"] > AT_ONCE
    assert max(sizes) < MAX_GROWTH
