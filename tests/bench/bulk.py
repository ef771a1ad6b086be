"""Fills a view with a large queue, as if it had grown over hours without a delivery.

What it writes, and nothing else:

- `enqueued_mails`: `mails` rows in slices of `PER_SLICE`, one window apart, the last one closed by
  now; ids spread evenly over their slice, buckets by id. Recipients are spread over `DOMAINS`
  domains; every hundredth mail is named `HUNDREDTH`.
- `slices`: a close record for each, as maintenance would have written it.
- `limits`: both at the first slice; and the configuration history of a new queue.
- the bucket, only by `write_bytes`: `OBJECT_BYTES` for each mail.
- `deleted_mails`, only by `mark_half`: a delivery mark for every other row of every slice.
- messages, only by `write_messages`: one for each mail, in a delay queue.

The same mails come out for the same name, so that they are not kept in memory between the steps.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TypeVar
from uuid import UUID

from bench.bare_clients import BareCassandra, BareStore
from bench.queue_setup import BenchServers
from postroad.adapters.cassandra import mark_statements, statements
from postroad.adapters.cassandra.session import Statement
from postroad.adapters.cassandra.view import marks as mark_rows
from postroad.adapters.cassandra.view import rows
from postroad.adapters.clocks import MachineClock, SystemRandomness
from postroad.adapters.rabbitmq.topology import DELAYS, delay_key
from postroad.configuration import configured
from postroad.domain.configuration.rules import ViewConfiguration
from postroad.domain.mail.mail import Envelope
from postroad.domain.queues.entries import Entry, Partition, place, slice_of
from postroad.domain.queues.names import QueueName
from postroad.domain.queues.references import Reference, encode
from postroad.domain.values.identifiers import id_at
from postroad.ports.view import ClosedSlice

T = TypeVar("T")

PER_SLICE = 10_000
WINDOW = timedelta(hours=1)
BUCKETS = 3
DOMAINS = 50
HUNDREDTH = "hundredth"
OBJECT_BYTES = 1000
BATCH = 50
"""Rows a request."""
AT_ONCE = 32
MESSAGES_AT_ONCE = 500


@dataclass(frozen=True)
class Bulk:
    """One large queue."""

    where: BenchServers
    name: QueueName
    mails: int
    until: datetime
    view: BareCassandra
    store: BareStore

    @property
    def slices(self) -> int:
        return -(-self.mails // PER_SLICE)

    @property
    def first(self) -> datetime:
        """The start of the first slice."""
        return self.until - self.slices * WINDOW

    async def write_rows(self) -> None:
        """Write rows, close records and limits."""
        port = self.where.servers.views().view(str(self.name))
        history = self.where.servers.history(self.name)
        wanted = ViewConfiguration(WINDOW, BUCKETS)
        clock, randomness = MachineClock(), SystemRandomness()
        await (
            await configured(history, port, clock, randomness, create=True, wanted=wanted)
        ).close()
        await self._in_batches(statements.INSERT_ROW, rows.entry_values, lambda _: True)
        for number in range(self.slices):
            counts: Counter[int] = Counter()
            for entry in self._slice(number):
                counts[entry.key.bucket_id] += 1
            start = self.first + number * WINDOW
            await port.close_slice(ClosedSlice(start, WINDOW, dict(counts)))
        await port.advance(browse_start=self.first, content_start=self.first)

    async def write_bytes(self) -> None:
        """Write an object for each mail."""
        body = b"x" * OBJECT_BYTES
        await _all(self._entries(), lambda entry: self.store.put(entry.blob_key, body))

    async def write_messages(self, delay_seconds: int) -> None:
        """Publish a message about each mail that becomes due after a step of the delay queues. The
        queues of the broker must exist."""
        broker = await self.where.bare_rabbitmq()
        key = delay_key(delay_seconds, self.name)

        async def publish(entry: Entry) -> None:
            await broker.publish(DELAYS, key, encode(Reference.to(entry, claim=False)))

        try:
            await _all(self._entries(), publish, MESSAGES_AT_ONCE)
        finally:
            await broker.close()

    async def mark_half(self) -> None:
        """End every other mail."""
        now = datetime.now(UTC)

        def mark(entry: Entry) -> tuple[object, ...]:
            key, traits = entry.key, entry.traits
            place_of = (key.slice_start, key.bucket_id, key.enqueue_id)
            return (*place_of, *mark_rows.trait_values(traits), now)

        await self._in_batches(mark_statements.MARK_DELIVERED, mark, is_marked)

    async def _in_batches(
        self,
        statement: Statement,
        values: Callable[[Entry], tuple[object, ...]],
        wanted: Callable[[Entry], bool],
    ) -> None:
        def batches() -> Iterator[list[tuple[object, ...]]]:
            for number in range(self.slices):
                gathered: dict[Partition, list[Entry]] = defaultdict(list)
                for entry in filter(wanted, self._slice(number)):
                    gathered[entry.key.partition].append(entry)
                for entries in gathered.values():
                    left = iter(entries)
                    while batch := list(islice(left, BATCH)):
                        yield [(str(self.name), *values(each)) for each in batch]

        await _all(batches(), lambda batch: self.view.execute_together(statement, batch))

    def _entries(self) -> Iterator[Entry]:
        for number in range(self.slices):
            yield from self._slice(number)

    def _slice(self, number: int) -> Iterator[Entry]:
        """Yield the entries of a slice. The attempt of every other one is odd."""
        randomness = random.Random(f"{self.name} {number}")
        start = self.first + number * WINDOW
        for index in range(min(PER_SLICE, self.mails - number * PER_SLICE)):
            at = start + index * WINDOW / PER_SLICE
            key = place(id_at(at, 0, randomness.getrandbits(62)), WINDOW, BUCKETS)
            recipient = f"recipient@destination{randomness.randrange(DOMAINS)}.example"
            name = HUNDREDTH if index % 100 == 0 else "bulk"
            yield Entry(
                key=key,
                mail_id=UUID(int=key.enqueue_id.int ^ 1),
                envelope=Envelope("sender@origin.example", (recipient,), name),
                blob_key=f"{self.name}/{at:%Y/%m/%d}/{key.enqueue_id}",
                size_bytes=OBJECT_BYTES,
                accepted_at=at,
                enqueued_at=at,
                attempt=index % 2,
            )


def is_marked(entry: Entry) -> bool:
    """Whether `mark_half` ends this mail."""
    return entry.attempt == 1


@asynccontextmanager
async def bulk(where: BenchServers, name: QueueName, mails: int) -> AsyncIterator[Bulk]:
    """Open what the loader needs. Nothing is written yet."""
    view = await where.bare_cassandra()
    try:
        await view.prepare(statements.INSERT_ROW, mark_statements.MARK_DELIVERED)
        until = slice_of(datetime.now(UTC), WINDOW) - WINDOW
        yield Bulk(where, name, mails, until, view, where.bare_store())
    finally:
        await view.close()


async def _all(
    items: Iterator[T], work: Callable[[T], Awaitable[None]], at_once: int = AT_ONCE
) -> None:
    async def worker() -> None:
        for each in items:
            await work(each)

    async with asyncio.TaskGroup() as workers:
        for _ in range(at_once):
            workers.create_task(worker())
