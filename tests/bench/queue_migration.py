"""`postroad migrate james` beside James' own browse of the same queue, in the same run.

James 3.8.1 enqueues BENCH_MIGRATED mails of 2 kB and browses them three times, of which the fastest
counts; then the command moves them, into a queue on the same servers or into a directory. Its time
holds the start of the process. Both fetch each mail's two blobs; the command also enqueues the
mail, writes James' mark, and moves and acks his message."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import servers
from bench.james_harness import running
from bench.queue_rates import ROUNDS
from bench.queue_setup import BenchServers
from bench.results import Result, compared, progress
from support.james import Place, fresh_place

MAILS = int(os.environ.get("BENCH_MIGRATED", "3000"))
SIZE, IN_FLIGHT, BROWSES = 2000, 64, 3


async def measure(_: BenchServers) -> list[Result]:
    """Measure both engines in turn. James has servers' names of his own."""
    ours: dict[str, list[float]] = {"servers": [], "a directory": []}
    theirs: dict[str, list[float]] = {engine: [] for engine in ours}
    for number in range(ROUNDS):
        for engine, rates in ours.items():
            with tempfile.TemporaryDirectory() as folder:
                async with fresh_place(Path(folder)) as place:
                    url = f"embedded://{folder}/store"
                    if engine == "servers":
                        url = f"distributed://bench.{servers.fresh()}"
                    browsed, moved = await _round(place, url)
            theirs[engine].append(MAILS / browsed)
            rates.append(MAILS / moved)
        progress(_results(ours, theirs, f"round {number + 1}"))
    return _results(ours, theirs, f"{MAILS:,} mails of 2 kB")


async def _round(place: Place, url: str) -> tuple[float, float]:
    """Return the seconds of his browse, and of the migration."""
    async with running(place.where) as james, james.queue(place.name, IN_FLIGHT):
        await james.ask("enqueue", MAILS, SIZE, IN_FLIGHT)
        answers = [await james.ask("browse") for _ in range(BROWSES)]
        assert {each["count"] for each in answers} == {MAILS}
        await place.target(url)
        began = time.perf_counter()
        code, lines, err = await place.migrate(url)
        seconds = time.perf_counter() - began
        assert (code, lines[-1]["moved"]) == (0, MAILS), err
    return min(each["seconds"] for each in answers), seconds


def _results(
    ours: dict[str, list[float]], theirs: dict[str, list[float]], case: str
) -> list[Result]:
    peer = "James' browse, in the same run"
    return [
        compared(f"migrate james, into {engine}", case, "mails/s", rates, peer, theirs[engine])
        for engine, rates in ours.items()
    ]
