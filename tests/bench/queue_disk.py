"""Whether Cassandra's disk space returns: our row lifetime beside ADR 32's own scheme.

Every write of one queue also goes to a second keyspace whose tables differ in one thing: their rows
have no lifetime, so that only the deletes of cleaned slices could free them, as ADR 32 has it. Time
is scaled down: a lifetime of minutes for two weeks, a compaction window of a minute, slices of half
a minute. Tables flush every 20 s, so that files are cut as they are in production, where memtables
fill; and expired files are looked for every 10 s. Needs a Cassandra of the local stack, whose
folders it measures.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import servers
from bench.queue_place import Place, queue_names
from bench.queue_rates import Ours, enter
from bench.results import Result, compared
from postroad import open_queue
from postroad.adapters.cassandra.schema import AGING_TABLES
from postroad.adapters.cassandra.store import CassandraViewStore
from postroad.domain.configuration_rules import ViewConfiguration
from postroad.errors import PostroadError
from postroad.mailqueue.queue import DistributedQueue
from postroad.ports.queue import Item
from postroad.ports.view import TableOptions, View
from stack import places

MAILS = int(os.environ.get("BENCH_DISK_MAILS", "100000"))
IN_FLIGHT = 64
LIFETIME = timedelta(minutes=int(os.environ.get("BENCH_LIFETIME_MINUTES", "6")))
GC_GRACE = timedelta(seconds=30)
CONFIGURATION = ViewConfiguration(
    slice_window=timedelta(seconds=30), bucket_count=3, update_browse_start_pace=1000
)
MAINTAINED_EVERY = 5.0
PEER = "ADR 32's scheme: no lifetime, slices deleted"
WRITES = {
    *("insert", "mark_delivered", "end", "mark_published", "delete_rows", "delete_marks"),
    *("close_slice", "mark_drained", "forget_slice", "advance"),
}


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


async def measure(where: Place) -> list[Result]:
    """Let MAILS mails pass, wait for a lifetime and a margin, and look at the disk."""
    log = _server() / "log" / "system.log"
    log_began = log.stat().st_size
    other = servers.session(servers.fresh())
    await _tables(where.servers._session, LIFETIME)
    await _tables(other, timedelta(0))
    sizes = _Sizes(where.keyspace, other.keyspace)
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
                engine = queue._engine
                peer = CassandraViewStore(other).view(str(name))
                engine.view = Mirrored(engine.view, peer)
                await _pass(queue, sizes)
                waiting = (await queue.size()).size
                objects = len([each async for each in engine.blobs.keys("")])
    finally:
        await other.run("DROP KEYSPACE IF EXISTS {keyspace}")
        await other.close()
    with log.open() as lines:
        lines.seek(log_began)
        warnings = sum("tombstone" in line and line.startswith("WARN") for line in lines)
    return _results(sizes, waiting, objects, warnings)


async def _pass(queue: DistributedQueue, sizes: _Sizes) -> None:
    content = os.urandom(1000).hex().encode()
    ours = Patient(queue, content)
    watching = asyncio.create_task(_every(15, sizes.look))
    maintaining = asyncio.create_task(_every(MAINTAINED_EVERY, queue.maintain))
    try:
        began = time.perf_counter()
        await asyncio.gather(enter(ours, IN_FLIGHT, MAILS, []), ours.leave(MAILS, IN_FLIGHT, []))
        print(f"{MAILS:,} mails passed in {time.perf_counter() - began:.0f} s", flush=True)
        # A file goes when its youngest row's lifetime and grace are over; it was cut a window
        # after its oldest, and is looked at a minute later at the latest.
        margin = timedelta(minutes=3)
        await asyncio.sleep((LIFETIME + GC_GRACE + margin).total_seconds())
    finally:
        for task in (watching, maintaining):
            task.cancel()
        await asyncio.gather(watching, maintaining, return_exceptions=True)
    await sizes.look()


class Patient(Ours):
    """Tries again what a busy server refused: this case is not about speed."""

    async def enter(self) -> None:
        await _insist(super().enter)

    async def deliver(self, item: Item) -> None:
        await _insist(partial(super().deliver, item))


async def _every(seconds: float, work: Callable[[], Awaitable[None]]) -> None:
    while True:
        await _insist(work)
        await asyncio.sleep(seconds)


async def _insist(work: Callable[[], Awaitable[None]], attempts: int = 60) -> None:
    for _ in range(attempts):
        try:
            return await work()
        except PostroadError as error:
            if not error.transient:
                raise
            print(f"again after {type(error).__name__}", flush=True)
        await asyncio.sleep(1)
    return await work()


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


class _Sizes:
    """Bytes of two keyspaces on disk, looked at again and again."""

    def __init__(self, ours: str, theirs: str) -> None:
        self._keyspaces = (ours, theirs)
        self.looks: list[tuple[int, int]] = []

    async def look(self) -> None:
        data = _server() / "data"
        found = [_bytes_in(data / keyspace) for keyspace in self._keyspaces]
        self.looks.append((found[0], found[1]))
        print(f"disk: ours {found[0]:,}, theirs {found[1]:,} bytes", flush=True)


def _bytes_in(folder: Path) -> int:
    """The aging tables' files; those that vanish meanwhile count as gone."""
    total = 0
    for table in AGING_TABLES:
        for path in folder.glob(f"{table}-*/*"):
            try:
                total += path.stat().st_size if path.is_file() else 0
            except FileNotFoundError:
                continue
    return total


def _server() -> Path:
    return places.state_directory() / "cassandra"


def _results(sizes: _Sizes, waiting: int, objects: int, warnings: int) -> list[Result]:
    case = f"{MAILS:,} mails enqueued and dequeued, lifetime {LIFETIME} for 14 days"
    mine, other = zip(*((ours / 1e3, theirs / 1e3) for ours, theirs in sizes.looks), strict=True)
    rows = [
        ("disk, most", "kB", max(mine), PEER, max(other)),
        ("disk, in the end", "kB", mine[-1], PEER, other[-1]),
        ("mails left", "mails", waiting, "none", 0),
        ("objects left", "objects", objects, "none", 0),
        ("tombstone warnings in Cassandra's log", "warnings", warnings, "none", 0),
    ]
    return [
        compared(measure, case, unit, [ours], peer, [theirs], less_is_better=True)
        for measure, unit, ours, peer, theirs in rows
    ]
