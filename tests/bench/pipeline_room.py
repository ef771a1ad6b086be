"""The data pipeline on real servers. `CASE=audit`, the only case: `postroad pipeline audit` finds
planted faults, repairs them, and finds none of these again; beside `postroad audit`, one plain
process, which finds the orphans alone.

`BENCH_MAILS` (20,000) wait whole, `BENCH_ROWS` (1,000,000) ended with their bytes gone,
`BENCH_OBJECTS` (100,000) are those of mail that is held. The faults are 1,000 orphans, 500 mails
without bytes, 100 marks without rows, 50 misplaced rows and 300 lost messages, times `BENCH_FAULTS`
(1). Needs root.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from itertools import count
from typing import Any

from bench.cpu import used
from bench.queue_setup import BenchServers, fresh_servers, queue_names
from bench.results import Result, compared
from postroad import open_queue
from postroad.distributed import opening
from postroad.telemetry import logs
from support.cpu_time import ControlGroup
from support.planted_faults import PlantedFaults

HOUR = timedelta(hours=1)
MAILS = int(os.environ.get("BENCH_MAILS", "20000"))
ROWS = int(os.environ.get("BENCH_ROWS", "1000000"))
OBJECTS = int(os.environ.get("BENCH_OBJECTS", "100000"))
FAULTS = float(os.environ.get("BENCH_FAULTS", "1"))
KINDS = {
    "orphan bytes": 1000,
    "waiting mail without bytes": 500,
    "mark without a row": 100,
    "misplaced row": 50,
    "lost messages": 300,
}
NAMED_ONLY = ("mark without a row", "misplaced row")


def measure() -> list[Result]:
    """Measure the chosen case. Needs the three servers."""
    logs.configure("WARNING")
    if (case := os.environ.get("CASE", "audit")) != "audit":
        sys.exit(f"no such case: {case}; there is audit")
    return asyncio.run(_measure())


async def _measure() -> list[Result]:
    opening.MOST_RACING = 10 * HOUR  # so that mail of some hours ago fits in
    async with fresh_servers() as target, queue_names(target) as name:
        url = f"distributed://{name}"
        async with open_queue(url, create=True, settings=target.settings):
            view = target.servers.views().view(str(name))
            start = (await view.limits()).browse_start
            assert start is not None
            planted = PlantedFaults(
                *(name, view, target.servers.blobs(target.bucket), target.servers.broker(name)),
                start,
            )
            expected = await _plant(planted)
        # In a thread, so that connections have their heartbeats meanwhile.
        return await asyncio.to_thread(_audits, url, target, expected)


async def _plant(planted: PlantedFaults) -> dict[str, int]:
    numbers = count()

    def some(number: float) -> Iterator[int]:
        return (next(numbers) for _ in range(round(number)))

    await planted.mails(some(MAILS))
    await planted.ended(some(ROWS))
    await planted.held(some(OBJECTS))
    faults = {kind: round(number * FAULTS) for kind, number in KINDS.items()}
    await planted.objects(some(faults["orphan bytes"]))
    await planted.without_bytes(some(faults["waiting mail without bytes"]))
    await planted.marks(some(faults["mark without a row"]))
    await planted.misplaced(some(faults["misplaced row"]))
    await planted.without_message(some(faults["lost messages"]))
    return faults


def _audits(url: str, target: BenchServers, expected: dict[str, int]) -> list[Result]:
    plain, plain_cost = _run(target, "audit", "--queue", url, "--json")
    assert len(plain) == expected["orphan bytes"], len(plain)
    found, cost = _run(target, "pipeline", "audit", "--queue", url, "--json")
    assert _counts(found, "found") == expected, _counts(found, "found")
    repaired, _ = _run(target, "pipeline", "audit", "--queue", url, "--repair", "--json")
    mended = {kind: number for kind, number in expected.items() if kind not in NAMED_ONLY}
    assert _counts(repaired, "repaired") == mended, _counts(repaired, "repaired")
    again, _ = _run(target, "pipeline", "audit", "--queue", url, "--json")
    left = {kind: number for kind, number in expected.items() if kind in NAMED_ONLY}
    assert _counts(again, "found") == left, _counts(again, "found")
    case = f"{MAILS:,} mails, {ROWS:,} rows, {OBJECTS:,} objects"
    return [
        compared(
            measure,
            case,
            "s",
            [cost[measure]],
            "postroad audit",
            [plain_cost[measure]],
            less_is_better=True,
        )
        for measure in cost
    ]


def _counts(documents: list[dict[str, Any]], field: str) -> dict[str, int]:
    return {each["kind"]: each[field] for each in documents if each.get(field)}


def _run(target: BenchServers, *arguments: str) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Run a command; return what it printed, and seconds of time and of CPU."""
    given = {
        "POSTROAD_CASSANDRA_KEYSPACE": target.keyspace,
        "POSTROAD_S3_BUCKET": target.bucket,
        "POSTROAD_PIPELINE_ADDRESSES": "none",
    }
    group = ControlGroup("pipeline")
    before, began = used(), time.monotonic()
    done = subprocess.run(
        [*group.around(), sys.executable, "-m", "postroad", *arguments],
        env={**os.environ, **given},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    seconds, after = time.monotonic() - began, used()
    cost = {"seconds": seconds, "CPU of the command": group.cpu_seconds}
    cost |= {
        f"CPU of {name}": after[name] - before[name]
        for name in ("cassandra", "s3")
        if name in after
    }
    group.remove()
    return [json.loads(line) for line in done.stdout.splitlines()], cost
