"""Days of steady load on a store in memory, on a clock that only moves when told."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from datetime import timedelta

from contract.queue_harness import plain_mail
from crash.lossy import LossyFiles, Step
from crash.world import start
from postroad.domain.delivery.retries import RetryPlan
from postroad.embedded.log.options import MIB, StoreOptions
from postroad.embedded.store.items import SpoolItem
from postroad.embedded.store.owner import OwnedQueue
from support.memory.clock import ManualClock

MINUTE = timedelta(minutes=1)
ATTEMPT = 10 * MINUTE
"""The longest attempt: some next hops take so long to say no."""

OPTIONS = StoreOptions(
    segment_bytes=MIB // 8,
    segment_envelopes=512,
    checkpoint_every=timedelta(days=3650),
    pool_files=64,
)
"""Segments small enough that days fill many, and maintenance when a test asks for it."""

SLOW = 0.05
"""Share of the attempts that take so long."""

GIVEN_UP = 0.15
"""Share of the mails whose destination is away until they are given up."""


class ForgetfulFiles(LossyFiles):
    """A file system that keeps no journal: days of it would not fit into memory."""

    def do(self, step: Step) -> None:
        self.disk.apply(step)

    def note(self, kind: str, mail: str, recipients: tuple[str, ...] = ()) -> None:
        """Drop it: this test does not read the journal."""

    def bytes_in(self, room: str) -> int:
        """Return the length of all files in a directory of the store."""
        return sum(
            self.disk.inodes[inode].length
            for directory, names in self.disk.names.items()
            if directory.name == room
            for inode in names.values()
        )


class Steady:
    """Mails come at an even pace; most are delivered at once, some after some retries, some never.
    A leased mail may take as long as ATTEMPT to be answered for."""

    def __init__(self, queue: OwnedQueue, clock: ManualClock, plan: RetryPlan) -> None:
        self.queue, self._clock, self._plan = queue, clock, plan
        self._randomness = random.Random(72)
        self._consumer = queue.consumer(10_000)
        self._slow: list[tuple[timedelta, SpoolItem]] = []
        self.started = 0

    async def minutes(self, count: int, mails_a_minute: int) -> AsyncIterator[int]:
        """Let minutes pass; yield after each."""
        for minute in range(count):
            for _ in range(mails_a_minute):
                fate = self._randomness.random()
                kind = "never" if fate < GIVEN_UP else "later" if fate < 0.4 else "now"
                await self.queue.enqueue(plain_mail(kind, content=b"Subject: x\r\n\r\n"))
            await self._attempt_all()
            self._clock.jump(MINUTE)
            yield minute

    async def _attempt_all(self) -> None:
        """Begin an attempt for whatever is due, and end those that have taken long enough."""
        engine, now = self.queue.engine, self._clock.elapsed()
        while (entry := engine.ready_queues.take(engine.elapsed())) is not None:
            engine.ready_queues.give_back(entry)
            item = await self._consumer.next()
            self.started += 1
            if self._randomness.random() < SLOW:
                self._slow.append((now + ATTEMPT, item))
            else:
                await self._end(item)
        while self._slow and self._slow[0][0] <= now:
            await self._end(self._slow.pop(0)[1])

    async def _end(self, item: SpoolItem) -> None:
        is_away = item.mail.name == "never" or (
            item.mail.name == "later" and self._randomness.random() < 0.6
        )
        if is_away and self._clock.now() - item.accepted_at < self._plan.max_age:
            await item.retry(self._plan.delay(item.attempt, self._randomness.random()))
        else:
            await item.done()


async def steady(
    plan: RetryPlan, options: StoreOptions
) -> tuple[ForgetfulFiles, OwnedQueue, Steady]:
    """Open a store for days of steady load."""
    files, clock = ForgetfulFiles(), ManualClock()
    queue = await start(files, clock, options=options)
    await queue.maintenance.recovering
    return files, queue, Steady(queue, clock, plan)
