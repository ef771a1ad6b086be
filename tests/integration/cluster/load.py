"""Mail that is accepted and delivered all the time while a test does something to the servers."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from postroad import Mail, open_queue
from postroad.errors import PostroadError
from postroad.ports.mail_queue import MailQueue
from postroad.settings import from_environment
from servers import fresh
from stack.clusters import Cluster

SENDERS, PAUSE_SECONDS = 4, 0.2
DRAIN_SECONDS = 600
"""A timeout, not an expectation: the machine may be busy with other work."""


Answer = TypeVar("Answer")


async def patiently(ask: Callable[[], Awaitable[Answer]]) -> Answer:
    """Repeat a call until the servers answer it. Raises: the first error that is not transient."""
    async with asyncio.timeout(DRAIN_SECONDS):
        while True:
            try:
                return await ask()
            except PostroadError as error:
                if not error.transient:
                    raise
                await asyncio.sleep(0.5)


@dataclass
class Load:
    """The mails that were accepted and those that came out, by name."""

    accepted: set[str] = field(default_factory=set)
    delivered: Counter[str] = field(default_factory=Counter)
    refused: list[PostroadError] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    """How long each accepted enqueue took."""
    queue: MailQueue | None = None
    """The producers' handle."""

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

    def report(self, what: str) -> None:
        """Print the measurements. They are not asserted, because the machine decides how long
        things take."""
        reasons = sorted({f"{type(error).__name__}: {error}" for error in self.refused})
        print(f"{what}: {self.summary()}; refusals: {reasons[:3]}")

    @property
    def violations(self) -> list[str]:
        """What did not hold, though it holds whatever is done to the servers: some mail is
        accepted, no accepted mail is lost, and a client may try each refused mail again."""
        found = [f"{name} was lost" for name in sorted(self.lost)]
        found += [f"refused for good: {error}" for error in self.refused if not error.transient]
        return found if self.accepted else ["no mail was accepted", *found]

    async def progresses(self) -> None:
        """Wait until a mail that is accepted from now on comes out."""
        before = set(self.accepted)
        async with asyncio.timeout(DRAIN_SECONDS):
            while not (self.accepted - before) & self.delivered.keys():
                await asyncio.sleep(0.2)

    async def send(self, queue: MailQueue, sender: int, stopped: asyncio.Event) -> None:
        """Enqueue until stopped; a refused mail is not tried again."""
        for number in range(10**6):
            if stopped.is_set():
                return
            name = f"{sender}-{number}"
            began = time.monotonic()
            try:
                await queue.enqueue(mail_of(name))
            except PostroadError as error:
                self.refused.append(error)
            else:
                self.accepted.add(name)
                self.seconds.append(time.monotonic() - began)
            await asyncio.sleep(PAUSE_SECONDS)

    async def deliver(self, queue: MailQueue) -> None:
        """Deliver all mail that comes, until cancelled."""
        async for item in queue.dequeue(prefetch=20):
            self.delivered[str(item.mail.name)] += 1
            with contextlib.suppress(PostroadError):  # it comes again
                await item.done()


def mail_of(name: str) -> Mail:
    """Return a mail of this name."""
    return Mail(
        sender="a@example.org",
        recipients=("b@example.net",),
        content=b"Subject: load\r\n\r\nload\r\n",
        name=name,
    )


def variables_of(cluster: Cluster) -> dict[str, str]:
    """Return the variables that lead to the cluster, with a keyspace of the test's own."""
    return {**cluster.environment(), "POSTROAD_CASSANDRA_KEYSPACE": fresh()}


@contextlib.asynccontextmanager
async def under_load(
    cluster: Cluster, variables: Mapping[str, str] | None = None
) -> AsyncIterator[Load]:
    """Yield while mail flows through a queue of the cluster; all has come out at the end. Producers
    and consumers have a handle each, and the variables that `variables_of` returns."""
    load, stopped = Load(), asyncio.Event()
    settings = from_environment(variables or variables_of(cluster))
    url = f"distributed://test.{fresh()}"

    async def opened(*, create: bool = False) -> MailQueue:
        queue: MailQueue = await open_queue(url, create=create, settings=settings)
        return queue

    async with (
        await patiently(lambda: opened(create=True)) as producer,
        await patiently(opened) as one,
        await patiently(opened) as other,
    ):
        load.queue = producer
        delivering = [asyncio.create_task(load.deliver(consumer)) for consumer in (one, other)]
        sending = [
            asyncio.create_task(load.send(producer, number, stopped)) for number in range(SENDERS)
        ]
        try:
            yield load
            stopped.set()
            await asyncio.gather(*sending)
            deadline = time.monotonic() + DRAIN_SECONDS
            while load.lost and time.monotonic() < deadline:
                assert not any(task.done() and task.result() for task in delivering)
                await asyncio.sleep(0.5)
        finally:
            for task in (*delivering, *sending):
                task.cancel()
            await asyncio.gather(*delivering, *sending, return_exceptions=True)
