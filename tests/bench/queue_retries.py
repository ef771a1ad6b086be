"""How fast mails of one slice are retried: for each, a mark says that it is replaced, and then that
its successor is published. Both are lightweight transactions on the few partitions of the slice.

Sessions of their own stand for several processes. The peer, alternately in the same run, sends each
transaction by itself. Timeouts are retried, as a worker does, and counted.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Protocol
from uuid import UUID

import servers
from bench.queue_setup import BenchServers
from bench.results import Result, compared, percentile, progress
from postroad.adapters.cassandra import mark_statements
from postroad.adapters.cassandra.session import Session
from postroad.adapters.cassandra.view import marks as mark_rows
from postroad.adapters.cassandra.view import rows
from postroad.adapters.cassandra.view.view import CassandraView
from postroad.domain.queues.entries import Change, Ending, EndingKind, EntryKey, Mark, Traits
from postroad.domain.values.identifiers import id_at
from postroad.errors import ViewUnavailable

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))
RETRIES = int(os.environ.get("BENCH_RETRIES", "800"))
HOUR = timedelta(hours=1)
TRAITS = Traits(("example.net",))
PEER = "each transaction by itself"


@dataclass(frozen=True)
class Load:
    """Processes, retries at once in each, and buckets that the slice has."""

    processes: int
    at_once: int
    buckets: int

    @property
    def case(self) -> str:
        buckets = "1 bucket" if self.buckets == 1 else f"{self.buckets} buckets"
        return f"{self.processes} x {self.at_once} at once, {buckets}"


LOADS = (Load(1, 1, 3), Load(1, 64, 3), Load(2, 200, 3), Load(2, 200, 1))
"""Two workers with their default concurrency, and what lies below it."""


class Marks(Protocol):
    """What is measured, of a view."""

    async def end(self, key: EntryKey, ending: Ending, traits: Traits) -> Mark | None: ...

    async def mark_published(self, key: EntryKey, successor: UUID) -> bool: ...


class Alone:
    """One transaction a request."""

    def __init__(self, session: Session, queue: str) -> None:
        self._session = session
        self._queue = queue

    async def end(self, key: EntryKey, ending: Ending, traits: Traits) -> Mark | None:
        place = rows.key_values(self._queue, key)
        values = (*mark_rows.trait_values(traits), *mark_rows.ending_values(ending), *place, None)
        [answer] = await self._session.execute(mark_statements.END, values)
        return None if answer["[applied]"] else Mark()

    async def mark_published(self, key: EntryKey, successor: UUID) -> bool:
        values = (*rows.key_values(self._queue, key), successor)
        [answer] = await self._session.execute(mark_statements.MARK_PUBLISHED, values)
        return bool(answer["[applied]"])


@dataclass
class Watch:
    """One candidate under one load. Latencies in seconds."""

    rates: list[float] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    timeouts: list[float] = field(default_factory=list)

    async def run(self, marks: list[Marks], load: Load) -> None:
        """Retry `RETRIES` mails (fewer for few at once) of one slice."""
        count = min(RETRIES, 50 * load.processes * load.at_once)
        entries = iter(list(_entries(count, load.buckets)))
        timeouts = 0

        async def worker(of: Marks) -> None:
            nonlocal timeouts
            for key in entries:
                began = time.perf_counter()
                timeouts += await _retry(of, key)
                self.latencies.append(time.perf_counter() - began)

        began = time.perf_counter()
        workers = load.processes * load.at_once
        await asyncio.gather(*(worker(marks[each % load.processes]) for each in range(workers)))
        self.rates.append(count / (time.perf_counter() - began))
        self.timeouts.append(timeouts)


def _entries(count: int, buckets: int) -> Iterator[EntryKey]:
    """Yield keys of mails that came in one hour, under ids that no other round has."""
    now = datetime.now(UTC)
    hour = now.replace(minute=0, second=0, microsecond=0) - random.randrange(10**6) * HOUR
    for number in range(count):
        yield EntryKey(hour, number % buckets, id_at(now, 0, random.getrandbits(62)))


async def _retry(marks: Marks, key: EntryKey) -> int:
    """Replace an entry as a retry does; return how often it timed out."""
    now = datetime.now(UTC)
    successor = EntryKey(key.slice_start, 0, id_at(now, 0, random.getrandbits(62)))
    change = Change(("b@example.net",), now, False, 1, "451 try later")
    ending = Ending(EndingKind.REPLACED, now, successor, change)
    timeouts = 0
    while True:
        try:
            await marks.end(key, ending, TRAITS)
            await marks.mark_published(key, successor.enqueue_id)
        except ViewUnavailable:
            timeouts += 1
        else:
            return timeouts


async def measure(where: BenchServers) -> list[Result]:
    """Measure every load."""
    results: list[Result] = []
    sessions = [
        servers.session(where.keyspace) for _ in range(max(each.processes for each in LOADS))
    ]
    try:
        for load in LOADS:
            found = await _measure(sessions[: load.processes], load)
            progress(found)
            results += found
    finally:
        for session in sessions:
            await session.close()
    return results


async def _measure(sessions: list[Session], load: Load) -> list[Result]:
    queue = f"bench.{servers.fresh()}"
    ours: list[Marks] = [CassandraView(each, queue) for each in sessions]
    theirs: list[Marks] = [Alone(each, queue) for each in sessions]
    mine, other = Watch(), Watch()
    for _ in range(ROUNDS):
        await mine.run(ours, load)
        await other.run(theirs, load)

    def result(measure: str, unit: str, share: float) -> Result:
        milliseconds = [1000 * percentile(each.latencies, share) for each in (mine, other)]
        return compared(
            measure, load.case, unit, milliseconds[:1], PEER, milliseconds[1:], less_is_better=True
        )

    return [
        compared("retries", load.case, "1/s", mine.rates, PEER, other.rates),
        result("retry p50", "ms", 0.5),
        result("retry p99", "ms", 0.99),
        compared(
            *("retries timed out", load.case, "", mine.timeouts, PEER, other.timeouts),
            less_is_better=True,
        ),
    ]
