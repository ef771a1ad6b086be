"""Mail that is accepted and delivered all the time while something is done to the servers."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from postroad import Mail, open_queue
from postroad.errors import PostroadError
from postroad.ports.queue import MailQueue
from postroad.settings import from_environment
from servers import fresh
from stack.clusters import Cluster

SENDERS, PAUSE_SECONDS = 4, 0.2
DRAIN_SECONDS = 240


@dataclass
class Load:
    """What was accepted and what came out; names are the mails' own."""

    accepted: set[str] = field(default_factory=set)
    delivered: Counter[str] = field(default_factory=Counter)
    refused: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    """How long each accepted enqueue took."""

    @property
    def lost(self) -> set[str]:
        """Mails that were accepted and did not come out."""
        return self.accepted - self.delivered.keys()

    def summary(self) -> str:
        """Return the figures, in words."""
        percentiles = statistics.quantiles(self.seconds, n=100)
        twice = sum(count > 1 for count in self.delivered.values())
        return (
            f"{len(self.accepted)} accepted, {len(self.refused)} refused, {len(self.lost)} lost,"
            f" {twice} more than once; enqueue p50 {percentiles[49] * 1000:.0f} ms,"
            f" p99 {percentiles[98] * 1000:.0f} ms, longest {max(self.seconds) * 1000:.0f} ms"
        )

    async def send(self, queue: MailQueue, sender: int, stopped: asyncio.Event) -> None:
        """Enqueue until stopped; what is refused is over."""
        for number in range(10**6):
            if stopped.is_set():
                return
            name = f"{sender}-{number}"
            mail = Mail(
                sender="a@example.org",
                recipients=("b@example.net",),
                content=b"Subject: load\r\n\r\nload\r\n",
                name=name,
            )
            began = time.monotonic()
            try:
                await queue.enqueue(mail)
            except PostroadError as error:
                self.refused.append(f"{type(error).__name__}: {error}")
            else:
                self.accepted.add(name)
                self.seconds.append(time.monotonic() - began)
            await asyncio.sleep(PAUSE_SECONDS)

    async def deliver(self, queue: MailQueue) -> None:
        """Take all that comes, for ever."""
        async for item in queue.dequeue(prefetch=20):
            self.delivered[str(item.mail.name)] += 1
            with contextlib.suppress(PostroadError):  # it comes again
                await item.done()


@contextlib.asynccontextmanager
async def under_load(cluster: Cluster) -> AsyncIterator[Load]:
    """Yield while mail flows through a queue of the cluster; all has come out at the end."""
    load, stopped = Load(), asyncio.Event()
    variables = {**cluster.environment(), "POSTROAD_CASSANDRA_KEYSPACE": fresh()}
    settings = from_environment(variables)
    url = f"distributed://test.{fresh()}"
    async with (
        open_queue(url, create=True, settings=settings) as producer,
        open_queue(url, settings=settings) as consumer,
    ):
        delivering = asyncio.create_task(load.deliver(consumer))
        sending = [
            asyncio.create_task(load.send(producer, number, stopped)) for number in range(SENDERS)
        ]
        try:
            yield load
            stopped.set()
            await asyncio.gather(*sending)
            deadline = time.monotonic() + DRAIN_SECONDS
            while load.lost and time.monotonic() < deadline:
                assert not delivering.done() or delivering.result()
                await asyncio.sleep(0.5)
        finally:
            for task in (delivering, *sending):
                task.cancel()
            await asyncio.gather(delivering, *sending, return_exceptions=True)
