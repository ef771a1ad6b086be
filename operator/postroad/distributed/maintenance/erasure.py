"""Erases a queue on all servers, in steps that go on where the last one stopped.

No step reads what other queues have: messages go with the queue's own queues, bytes by its prefix,
rows slice by slice from content start on, under every configuration that its history accepted.
Limits move with the slices that are erased, so that a crash costs one step, and a queue that is
taken over half erased misses nothing that it had counted.
Limits, identity and history go last: without them the view cannot prove that the bytes are its
own, nor find its rows. Source: ADR 0044."""

import asyncio
from collections.abc import (
    AsyncGenerator,
    Collection,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Protocol

from postroad.batching import together
from postroad.distributed.engine.ownership import check_erasable
from postroad.distributed.entries.live_slices import TOGETHER, slices_under
from postroad.domain.configuration.history import GRACE, versions
from postroad.domain.configuration.rules import ViewConfiguration
from postroad.domain.queues.names import QueueName
from postroad.errors import (
    BlobsUnavailable,
    BrokerUnavailable,
    HistoryMissing,
    PostroadError,
    ViewUnavailable,
)
from postroad.ports.blobs import Blobs
from postroad.ports.broker import Broker
from postroad.ports.clock import Clock
from postroad.ports.view import History, View

AHEAD = timedelta(minutes=1)
"""Time ahead of all known clocks that a slice may have rows: more than any tolerated skew."""

MAX_REQUEST = 20.0
"""Seconds that a part may take beyond its step: a server that takes longer counts as away."""


class Part(StrEnum):
    """Part that is erased, in the order of dependence: the first three at once, then the last."""

    MESSAGES = "messages"
    BYTES = "bytes"
    ROWS = "rows"
    HISTORY = "history"


SERVERS = {
    Part.MESSAGES: "RabbitMQ",
    Part.BYTES: "S3",
    Part.ROWS: "Cassandra",
    Part.HISTORY: "Cassandra",
}
"""The server of each part."""

_SILENT = {"RabbitMQ": BrokerUnavailable, "S3": BlobsUnavailable, "Cassandra": ViewUnavailable}


class ErasureClaims(Protocol):
    """Parts that are the queue's to erase."""

    async def claim(self, part: Part) -> None:
        """Make sure that a part is the queue's to erase. Raises: ResourceConflict, ServerError."""

    async def release(self, part: Part) -> None:
        """Give a part up that is erased. Idempotent. Raises: ServerError."""

    async def owns_bucket(self) -> bool:
        """True if the bucket goes with the bytes, unless it holds other objects."""


@dataclass(frozen=True, slots=True)
class Erasable:
    name: QueueName
    broker: Broker
    view: View
    history: History
    blobs: Blobs
    claims: ErasureClaims


@dataclass(frozen=True, slots=True)
class ErasureStep:
    """Result of one step for a part: whether all of it is gone, how many objects or rows went, and
    the error that held it up."""

    is_done: bool
    count: int = 0
    error: PostroadError | None = None


class Erasure:
    """Carries out an erasure. Every step is idempotent."""

    def __init__(self, queue: Erasable, clock: Clock) -> None:
        self._queue = queue
        self._clock = clock

    async def proceed(
        self, done: Collection[Part], duration: timedelta
    ) -> Mapping[Part, ErasureStep]:
        """Carry on with the parts that are not `done`, each for `duration` and one request of its
        server; return what became of them. Errors are results."""
        until = self._clock.elapsed() + duration
        first = [each for each in Part if each not in (*done, Part.HISTORY)]
        async with together() as tasks:  # none goes on beside its repetition
            steps = {each: tasks.create_task(self._proceed(each, until)) for each in first}
        found = {part: step.result() for part, step in steps.items()}
        if all(each.is_done for each in found.values()) and Part.HISTORY not in done:
            found[Part.HISTORY] = await self._proceed(Part.HISTORY, until)
        return found

    async def _proceed(self, part: Part, until: timedelta) -> ErasureStep:
        count = 0
        seconds = max(0.0, (until - self._clock.elapsed()).total_seconds()) + MAX_REQUEST
        try:
            async with asyncio.timeout(seconds), aclosing(self._steps(part)) as steps:
                async for each in steps:
                    count += each
                    if self._clock.elapsed() >= until:
                        return ErasureStep(False, count)
        except TimeoutError:
            server = SERVERS[part]
            return ErasureStep(False, count, _SILENT[server](f"{server} did not answer in time"))
        except PostroadError as error:
            return ErasureStep(False, count, error)
        return ErasureStep(True, count)

    async def _steps(self, part: Part) -> AsyncGenerator[int, None]:
        """Erase a part. Yield only after something that no later step repeats: else a slow server
        would let every step end at the same place."""
        queue = self._queue
        if part is Part.MESSAGES:
            await queue.claims.claim(part)
            await queue.broker.delete()
            await queue.claims.release(part)
        elif part is Part.BYTES:
            async for count in self._erase_bytes():
                yield count
        elif part is Part.ROWS:
            async for count in self._erase_rows():
                yield count
        else:
            await queue.view.erase()
            await queue.history.erase()

    async def _erase_bytes(self) -> AsyncGenerator[int, None]:
        queue = self._queue
        if not await queue.blobs.exists():
            return
        await queue.claims.claim(Part.BYTES)
        await check_erasable(queue.name, queue.view, queue.blobs)
        async for count in queue.blobs.empty(f"{queue.name}/"):
            yield count
        await queue.claims.release(Part.BYTES)
        await queue.blobs.drop(f"{queue.name}/", bucket=await queue.claims.owns_bucket())

    async def _erase_rows(self) -> AsyncGenerator[int, None]:
        limits = await self._queue.view.limits()
        first = limits.content_start or limits.browse_start
        if first is not None:
            async for count in self._erase_slices(first):
                yield count
        async for count in self._queue.view.erase_dead_letters():
            yield count

    async def _erase_slices(self, first: datetime) -> AsyncGenerator[int, None]:
        view, now = self._queue.view, await self._latest()
        configurations = await self._configurations()
        settled = now - max(each.slice_window for each in configurations) - GRACE
        for starts, buckets in _portions(slices_under(configurations, first, now + AHEAD)):
            async for count in view.erase_slices(starts, buckets):
                yield count
            if first < starts[-1] <= settled:
                await view.advance(browse_start=starts[-1], content_start=starts[-1])
                yield 0

    async def _configurations(self) -> set[ViewConfiguration]:
        recorded = await self._queue.history.load()
        found = set(versions(recorded.events).values())
        if not found:
            raise HistoryMissing(
                f"{self._queue.name} has rows, and its configuration history is gone",
                hint="record how its slices are cut by `postroad config adopt`; or let the rows "
                "expire",
            )
        return found

    async def _latest(self) -> datetime:
        """Return the latest time that a clock shows: no entry is much later."""
        readings = await self._queue.view.server_times()
        return max(self._clock.now(), *(each.time for each in readings.times))


def _portions(slices: Iterable[tuple[datetime, int]]) -> Iterator[tuple[list[datetime], int]]:
    """Yield slices together, with the most buckets of each portion."""
    starts: list[datetime] = []
    most = 0
    for start, buckets in slices:
        starts.append(start)
        most = max(most, buckets)
        if len(starts) * most >= TOGETHER:
            yield starts, most
            starts, most = [], 0
    if starts:
        yield starts, most
