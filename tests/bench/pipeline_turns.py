"""`CASE=turns`: `postroad pipeline archive` and `traffic`, and `postroad trace` over mail that was
delivered some hours ago: each from a cold start, beside a plain Python process (`pipeline_plain`).

`BENCH_TURNS` (100,000) turns; `BENCH_CORES` (2) tasks at a time.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import servers
from bench.pipeline_commands import MEMORY, Cost, postroad, run
from bench.pipeline_plain import PAGE
from bench.queue_setup import BenchServers, fresh_servers, queue_names
from bench.results import Result, compared, progress
from postroad import open_queue
from postroad.distributed import mail_queue
from postroad.domain.queues.names import QueueName
from postroad.ports.view import View
from support.planted_faults import PlantedFaults
from support.stored_queue import HOUR, close_slices

TURNS = int(os.environ.get("BENCH_TURNS", "100000"))
CORES = int(os.environ.get("BENCH_CORES", "2"))
HOURS = 8
COMMANDS = {"trace": ("trace",), **{job: ("pipeline", job) for job in ("archive", "traffic")}}
JOBS = {"archive": (), "traffic": ("--by", "domain"), "trace": ("b7@example.net",)}
CASE = f"{TURNS:,} turns, {CORES} cores"


async def measure_turns() -> list[Result]:
    """Plant turns, archive them, and ask. Needs root."""
    mail_queue.MAX_RACING = (HOURS + 2) * HOUR  # so that mail of some hours ago fits in
    async with fresh_servers() as target, queue_names(target) as name:
        url = f"distributed://{name}"
        async with open_queue(url, create=True, settings=target.settings):
            pages = await _plant(target, name, target.servers.views().view(str(name)))
            # In a thread, so that connections have their heartbeats meanwhile.
            return await asyncio.to_thread(_beside_plain, url, str(name), target, pages)


async def _plant(target: BenchServers, name: QueueName, view: View) -> int:
    """Plant delivered mail in drained slices, as maintenance leaves them; return how
    many pages its rows are."""
    start = (await view.limits()).browse_start
    assert start is not None
    stores = target.servers.blobs(target.bucket), target.servers.broker(name)
    planted = PlantedFaults(name, view, *stores, start, apart=HOURS * HOUR / TURNS)
    # An hour is three partitions, whose requests wait for each other.
    ends = [TURNS * hour // HOURS for hour in range(HOURS + 1)]
    await asyncio.gather(*(planted.ended(range(*each)) for each in pairwise(ends)))
    rows: defaultdict[datetime, Counter[int]] = defaultdict(Counter)
    for number in range(TURNS):
        key = planted.entry(number).key
        rows[key.slice_start][key.bucket_id] += 1
    await close_slices(view, rows)
    for each in rows:
        await view.mark_drained(each)
    await view.advance(browse_start=max(rows) + HOUR)
    return sum(1 + count // PAGE for each in rows.values() for count in each.values())


def _beside_plain(url: str, name: str, target: BenchServers, pages: int) -> list[Result]:
    results = []
    options = ("--queue", url, "--master", f"local[{CORES}]")
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "turns.gz")
        for job, more in JOBS.items():
            before = _reads(target)
            documents, ours = postroad(target, *COMMANDS[job], *more, *options)
            reads = {table: count - before[table] for table, count in _reads(target).items()}
            plain = [sys.executable, "-m", "bench.pipeline_plain", target.keyspace, name, file, job]
            (counted,), theirs = run(target, [*plain, *(more if job == "trace" else ())])
            results += _costs(job, ours, theirs)
            _check(job, documents, counted)
            if job == "archive":
                results += _pages(reads, pages)
            progress(results)
    return results


def _check(job: str, documents: list[dict[str, Any]], counted: int) -> None:
    """Compare the answers of both sides: each mail went to one recipient, and was delivered."""
    lines = documents[1:]  # the first one says how far the answer goes
    if job == "archive":
        assert documents[0]["rows"] == counted == TURNS, (documents, counted)
    elif job == "traffic":
        assert sum(each["delivered"] for each in lines) == TURNS, lines
    else:
        assert len(lines) == counted == 1, (lines, counted)


def _costs(job: str, ours: Cost, theirs: Cost) -> list[Result]:
    mine, other = (_with_all_cpu(each) for each in (ours, theirs))
    peer = "a plain Python process"
    return [
        compared(
            f"{job}: {measure}", CASE, _unit(measure), [mine[measure]], peer, [other[measure]],
            less_is_better=True,
        )
        for measure in mine
    ]  # fmt: skip


def _unit(measure: str) -> str:
    return "MiB" if measure == MEMORY else "s"


def _with_all_cpu(cost: Cost) -> Cost:
    return cost | {"CPU of all": sum(cost[each] for each in cost if each.startswith("CPU"))}


def _pages(reads: Mapping[str, int], pages: int) -> list[Result]:
    """Pages that Cassandra read, beside those that the asked partitions have. A partition whose
    rows fill pages exactly has one more."""
    return [
        compared(f"archive: reads of {table}", CASE, "pages", [count], "all there are", [pages])
        for table, count in reads.items()
    ]


def _reads(target: BenchServers) -> dict[str, int]:
    """How often Cassandra has read each of the tables, each page once."""

    async def read() -> dict[str, int]:
        session = servers.session(target.keyspace)
        rows = await session.run(
            "SELECT table_name, count FROM system_views.local_read_latency"
            f" WHERE keyspace_name = '{target.keyspace}' ALLOW FILTERING"
        )
        await session.close()
        wanted = ("enqueued_mails", "deleted_mails")
        return {each["table_name"]: each["count"] for each in rows if each["table_name"] in wanted}

    return asyncio.run(read())
