"""Mail that flows through a queue in this process, and the account of it: whatever happens to the
servers meanwhile, what was acknowledged is delivered."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from datetime import timedelta
from typing import cast

from contract.queue_harness import plain_mail
from postroad.adapters.clocks import MachineClock, SystemRandomness
from postroad.cli.processes.long_running import run_maintenance
from postroad.errors import BlobMissing, EntryEnded, PostroadError
from postroad.ports.mail_queue import Item, MailQueue

PRODUCERS, PREFETCH = 4, 20
PACE_SECONDS = 0.02
"""Between two mails of a producer: a load, but not all that the machine has."""

AGAIN_SECONDS = 0.5


class Flow:
    """Producers on one handle, a consumer and maintenance on another, each with connections of its
    own, as two processes have them."""

    def __init__(self, producer: MailQueue, consumer: MailQueue) -> None:
        self._producer = producer
        self._consumer = consumer
        self._over = asyncio.Event()
        self._changed = asyncio.Event()
        self._delivering: set[asyncio.Task[None]] = set()
        self._error: BaseException | None = None
        self.offered = 0
        self.acknowledged: set[str] = set()
        self.failed: dict[str, str] = {}
        """Mails whose enqueue reported an error, and its kind."""
        self.deliveries: Counter[str] = Counter()

    @property
    def lost(self) -> set[str]:
        return self.acknowledged - self.deliveries.keys()

    @property
    def unexpected(self) -> set[str]:
        return self.deliveries.keys() - self.acknowledged

    @property
    def duplicates(self) -> int:
        return self.deliveries.total() - len(self.deliveries)

    def __str__(self) -> str:
        errors = dict(Counter(self.failed.values()))
        return (
            f"{self.offered} offered, {len(self.acknowledged)} acknowledged, "
            f"{len(self.failed)} failed {errors}, {len(self.deliveries)} delivered, "
            f"{len(self.lost)} lost, {len(self.unexpected)} unexpected, "
            f"{self.duplicates} duplicates"
        )

    async def more(self, count: int, within_seconds: float = 120) -> None:
        """Wait until so many more were acknowledged and so many more delivered."""
        acknowledged = len(self.acknowledged) + count
        delivered = len(self.deliveries) + count
        await self._until(
            lambda: len(self.acknowledged) >= acknowledged and len(self.deliveries) >= delivered,
            within_seconds,
        )

    async def run(self) -> None:
        """Produce and consume until it is over and all has arrived."""
        async with asyncio.TaskGroup() as group:
            producing = [group.create_task(self._produce()) for _ in range(PRODUCERS)]
            consuming = group.create_task(self._consume())
            clock, randomness = MachineClock(), SystemRandomness()
            maintenance = group.create_task(
                run_maintenance(self._consumer, clock, randomness, every=timedelta(seconds=5))
            )
            await asyncio.wait(producing)
            await self._until(lambda: not self.lost, 240)
            await self._until(lambda: not self._delivering, 60)
            for task in (consuming, maintenance):
                task.cancel()

    def finish(self) -> None:
        """Produce no more."""
        self._over.set()

    def ended(self, running: asyncio.Task[None]) -> None:
        """Record the error of a flow that ended, and wake the tasks that wait for mail."""
        self._error = None if running.cancelled() else running.exception()
        self._changed.set()

    async def _until(self, wanted: Callable[[], bool], within_seconds: float) -> None:
        try:
            async with asyncio.timeout(within_seconds):
                while not wanted():
                    if self._error is not None:
                        raise self._error
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"it does not go on: {self}") from None

    async def _produce(self) -> None:
        while not self._over.is_set():
            self.offered += 1
            name = f"mail{self.offered}"
            try:
                await self._producer.enqueue(plain_mail(name))
            except PostroadError as error:
                if not error.transient:
                    raise
                self.failed[name] = type(error).__name__
                await asyncio.sleep(AGAIN_SECONDS * random.random())
            else:
                self.acknowledged.add(name)
            self._changed.set()
            await asyncio.sleep(PACE_SECONDS)

    async def _consume(self) -> None:
        items = self._consumer.dequeue(PREFETCH)
        async with aclosing(cast("AsyncGenerator[Item, None]", items)):
            async for item in items:
                task = asyncio.create_task(self._deliver(item))
                self._delivering.add(task)
                task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._delivering.discard(task)
        self._changed.set()

    async def _deliver(self, item: Item) -> None:
        """As a worker does: read, transmit, and insist on the ending."""
        while True:
            try:
                await item.content()
                break
            except BlobMissing:
                return None  # it was ended
            except PostroadError:
                await asyncio.sleep(AGAIN_SECONDS)
        self.deliveries[item.mail.name or ""] += 1
        self._changed.set()
        while True:
            try:
                return await item.done()
            except EntryEnded:
                return None
            except PostroadError:
                await asyncio.sleep(AGAIN_SECONDS)


@asynccontextmanager
async def flowing(producer: MailQueue, consumer: MailQueue) -> AsyncIterator[Flow]:
    """Let mail flow; at the end, all that was acknowledged has arrived."""
    flow = Flow(producer, consumer)
    running = asyncio.create_task(flow.run())
    running.add_done_callback(flow.ended)
    try:
        await flow.more(20)
        yield flow
        await flow.more(20)
        flow.finish()
        await running
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
