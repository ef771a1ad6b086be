"""Whether Cassandra's disk space returns: our row lifetime beside ADR 32's own scheme.

Every write of one queue also goes to a second keyspace whose tables differ in one thing: their rows
have no lifetime, so that only the deletes of cleaned slices could free them, as ADR 32 has it.
BENCH_DISK_MAILS mails pass through the whole queue; then, up to BENCH_DISK_ROWS in all, mails that
only the view learns of (`view_alone`): no message, no object. Maintenance runs all the while and
cleans both sides, and what is left on disk is looked at after that.

Time is scaled down: a lifetime of minutes for two weeks, a compaction window of a minute, slices of
half a minute. Tables flush every 20 s, so that files are cut as they are in production, where
memtables fill; and expired files are looked for every 10 s. Needs a Cassandra of the local stack,
whose folders it measures.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import servers
from bench.attempts import every, insist
from bench.disk_sizes import Log, Sizes, flushed
from bench.queue_rates import Ours, enter
from bench.queue_setup import BenchServers, queue_names
from bench.results import Result, compared
from bench.view_alone import ViewAlone
from postroad import open_queue
from postroad.adapters.cassandra.schema import AGING_TABLES
from postroad.adapters.cassandra.store import CassandraViewStore
from postroad.distributed.mail_queue import DistributedQueue
from postroad.domain.configuration.rules import ViewConfiguration
from postroad.domain.queues.names import key_of_owner
from postroad.ports.mail_queue import Item
from postroad.ports.view import TableOptions, View

MAILS = int(os.environ.get("BENCH_DISK_MAILS", "10000"))
ROWS = int(os.environ.get("BENCH_DISK_ROWS", "1000000"))
IN_FLIGHT = 64
LIFETIME = timedelta(minutes=int(os.environ.get("BENCH_LIFETIME_MINUTES", "6")))
GC_GRACE = timedelta(seconds=30)
CONFIGURATION = ViewConfiguration(
    slice_window=timedelta(seconds=30), bucket_count=3, update_browse_start_pace=1000
)
MAINTAINED_EVERY = 5.0
LOOKED_EVERY = 2.0
MARGIN = timedelta(minutes=3)
"""A file goes when its youngest row's lifetime and grace are over; it was cut a window after its
oldest, and is looked at a minute later at the latest."""
PEER = "ADR 32's scheme: no lifetime, slices deleted"
WRITES = {
    *("insert", "mark_delivered", "end", "mark_published", "delete_rows", "delete_marks"),
    *("set_watermark", "mark_blobs_deleted"),
    *("close_slice", "mark_drained", "forget_slice", "advance", "_write_together"),
}
"""The last one lies behind the first two; who gathers by himself asks it."""


class Mirrored:
    """A view that writes everything to another one, too."""

    def __init__(self, view: View, other: View) -> None:
        self._view = view
        self._other = other

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._view, name)
        if name not in WRITES:
            return method
        other = getattr(self._other, name)

        async def both(*values: Any, **named: Any) -> Any:
            found, _ = await asyncio.gather(method(*values, **named), other(*values, **named))
            return found

        return both


@dataclass
class Found:
    """The results for the report."""

    sizes: Sizes
    written: int = 0
    most_behind: timedelta = timedelta(0)
    waiting: int = 0
    objects: int = 0
    uncleaned: tuple[int, int] = (0, 0)
    warnings: int = 0


async def measure(where: BenchServers) -> list[Result]:
    """Let all mails pass, wait for a lifetime and a margin, and look at the disk."""
    log = Log()
    other = servers.session(servers.fresh())
    await _tables(where.servers._session, LIFETIME)
    await _tables(other, timedelta(0))
    found = Found(Sizes(where.keyspace, other.keyspace))
    try:
        async with queue_names(where) as name:
            opening = open_queue(
                f"distributed://{name}",
                create=True,
                configuration=CONFIGURATION,
                settings=where.settings,
            )
            async with opening as queue:
                assert isinstance(queue, DistributedQueue)
                await _measure(queue, CassandraViewStore(other).view(str(name)), found)
        # Their tables keep what they were given, and ours were given the same.
        found.written = await flushed(other, found.sizes.theirs)
    finally:
        await other.run("DROP KEYSPACE IF EXISTS {keyspace}")
        await other.close()
    found.warnings = log.warnings("tombstone")
    return _results(found)


async def _measure(queue: DistributedQueue, peer: View, found: Found) -> None:
    engine, began = queue._engine, datetime.now(UTC) - CONFIGURATION.slice_window
    mine = engine.view
    engine.view = Mirrored(mine, peer)
    await _pass(queue, found)
    found.waiting = (await queue.size()).size
    owner = key_of_owner(engine.name)
    found.objects = len([each async for each in engine.blobs.keys("") if each != owner])
    found.uncleaned = (await _slices(mine, began), await _slices(peer, began))


async def _slices(view: View, first: datetime) -> int:
    return len([each async for each in view.closed_slices(first)])


async def _pass(queue: DistributedQueue, found: Found) -> None:
    """Pass the mails, then let a lifetime pass."""
    async with asyncio.TaskGroup() as tasks:
        beside = [
            tasks.create_task(every(LOOKED_EVERY, found.sizes.look)),
            tasks.create_task(every(MAINTAINED_EVERY, queue.maintain)),
        ]
        ours = Patient(queue, os.urandom(1000).hex().encode())
        began = time.perf_counter()
        await asyncio.gather(enter(ours, IN_FLIGHT, MAILS, []), ours.leave(MAILS, IN_FLIGHT, []))
        print(f"{MAILS:,} mails passed in {time.perf_counter() - began:.0f} s", flush=True)
        began = time.perf_counter()
        alone = ViewAlone(queue._engine, LIFETIME)
        await alone.run(_alone())
        found.most_behind = alone.most_behind
        print(f"{_alone():,} in the view alone in {time.perf_counter() - began:.0f} s", flush=True)
        await asyncio.sleep((LIFETIME + GC_GRACE + MARGIN).total_seconds())
        for each in beside:
            each.cancel()
    await found.sizes.look()


def _alone() -> int:
    return max(ROWS - MAILS, 0)


class Patient(Ours):
    """Tries again what a busy server refused: this case is not about speed."""

    async def enter(self) -> None:
        await insist(super().enter)

    async def deliver(self, item: Item) -> None:
        await insist(partial(super().deliver, item))


async def _tables(session: Any, lifetime: timedelta) -> None:
    nodes = await session.local_nodes()
    await CassandraViewStore(session).create(
        TableOptions(
            replication={"class": "NetworkTopologyStrategy", "datacenter1": str(min(3, nodes))},
            row_lifetime=lifetime,
            compaction_window=timedelta(minutes=1),
            gc_grace=GC_GRACE,
        )
    )
    for table in AGING_TABLES:
        seconds = round(lifetime.total_seconds())
        await session.run(
            f"ALTER TABLE {{keyspace}}.{table} WITH default_time_to_live = {seconds}"
            " AND memtable_flush_period_in_ms = 20000"
            " AND compaction = {'class': 'TimeWindowCompactionStrategy',"
            " 'compaction_window_unit': 'MINUTES', 'compaction_window_size': 1,"
            " 'expired_sstable_check_frequency_seconds': 10}"
        )
    found = await session.run(
        "SELECT table_name, default_time_to_live FROM system_schema.tables"
        " WHERE keyspace_name = '{keyspace}'"
    )
    lifetimes = {row["table_name"]: row["default_time_to_live"] for row in found}
    # Without this, a table whose alteration went astray would be measured as if it had not.
    assert {lifetimes[table] for table in AGING_TABLES} == {seconds}, lifetimes


def _results(found: Found) -> list[Result]:
    case = (
        f"{MAILS:,} mails enqueued and dequeued, {_alone():,} more in the view alone,"
        f" lifetime {LIFETIME} for 14 days"
    )
    mine, other = found.sizes.ours, found.sizes.theirs
    behind, held_at = found.most_behind.total_seconds(), (LIFETIME / 2).total_seconds()
    rows = [
        ("disk, most", "kB", mine.most / 1e3, PEER, other.most / 1e3),
        ("disk, in the end", "kB", mine.now / 1e3, PEER, other.now / 1e3),
        ("disk, in the end", "kB", mine.now / 1e3, "what was written", found.written / 1e3),
        ("browse start, most behind now", "s", behind, "no more mails came from", held_at),
        ("slices not cleaned", "slices", found.uncleaned[0], PEER, found.uncleaned[1]),
        ("mails left", "mails", found.waiting, "none", 0),
        ("objects left", "objects", found.objects, "none", 0),
        ("tombstone warnings in Cassandra's log", "warnings", found.warnings, "none", 0),
    ]
    return [
        compared(measure, case, unit, [ours], peer, [theirs], less_is_better=True)
        for measure, unit, ours, peer, theirs in rows
    ]
