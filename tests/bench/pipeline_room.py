"""The data pipeline. `CASE=directory`, which needs no server: see `pipeline_directory`. On real
servers, `CASE=turns`: see `pipeline_turns`; `CASE=audit`, the default:
`postroad audit --deep` finds planted faults, repairs them, and finds none of these again; beside
`postroad audit`, one plain process, which finds the orphans alone.

`BENCH_MAILS` (20,000) wait whole, `BENCH_ROWS` (1,000,000) ended with their bytes gone,
`BENCH_OBJECTS` (100,000) are those of mail that is held. The faults are 1,000 orphans, 500 mails
without bytes, 100 marks without rows, 50 misplaced rows and 300 lost messages, times `BENCH_FAULTS`
(1). Needs root.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from datetime import timedelta
from itertools import count
from typing import Any

from bench.pipeline_commands import MEMORY, postroad
from bench.pipeline_directory import measure_directory
from bench.pipeline_turns import measure_turns
from bench.queue_setup import BenchServers, fresh_servers, queue_names
from bench.results import Result, compared
from postroad import open_queue
from postroad.distributed import mail_queue
from postroad.telemetry import logs
from support.planted_faults import PlantedFaults

HOUR, HOURS = timedelta(hours=1), 3
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
    """Measure the chosen case."""
    logs.configure("WARNING")
    cases = {
        "audit": _measure_audit,
        "directory": measure_directory,
        "turns": measure_turns,
    }
    case = os.environ.get("CASE", "audit")
    if case not in cases:
        sys.exit(f"no such case: {case}; there are {', '.join(cases)}")
    return asyncio.run(cases[case]())


async def _measure_audit() -> list[Result]:
    mail_queue.MAX_RACING = 10 * HOUR  # so that mail of some hours ago fits in
    async with fresh_servers() as target, queue_names(target) as name:
        url = f"distributed://{name}"
        async with open_queue(url, create=True, settings=target.settings):
            view = target.servers.views().view(str(name))
            start = (await view.limits()).browse_start
            assert start is not None
            planted = PlantedFaults(
                *(name, view, target.servers.blobs(target.bucket), target.servers.broker(name)),
                start,
                apart=HOURS * HOUR / (MAILS + ROWS + OBJECTS),
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
    plain, plain_cost = postroad(target, "audit", "--queue", url)
    assert len(plain) == expected["orphan bytes"], len(plain)
    found, cost = postroad(target, "audit", "--deep", "--queue", url)
    assert _counts(found, "found") == expected, _counts(found, "found")
    repaired, _ = postroad(target, "audit", "--deep", "--queue", url, "--repair")
    mended = {kind: number for kind, number in expected.items() if kind not in NAMED_ONLY}
    assert _counts(repaired, "repaired") == mended, _counts(repaired, "repaired")
    again, _ = postroad(target, "audit", "--deep", "--queue", url)
    left = {kind: number for kind, number in expected.items() if kind in NAMED_ONLY}
    assert _counts(again, "found") == left, _counts(again, "found")
    case = f"{MAILS:,} mails, {ROWS:,} rows, {OBJECTS:,} objects"
    return [
        compared(
            measure,
            case,
            "MiB" if measure == MEMORY else "s",
            [cost[measure]],
            "postroad audit",
            [plain_cost[measure]],
            less_is_better=True,
        )
        for measure in cost
    ]


def _counts(documents: list[dict[str, Any]], field: str) -> dict[str, int]:
    return {each["kind"]: each[field] for each in documents if each.get(field)}
