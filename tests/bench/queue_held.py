"""Requests that `size`, browsing and a round of maintenance cost while one mail is held, by how
long.

There is no other mail. No server is needed: the engine's calls of its ports are counted, over the
memory adapters and a clock that is moved. A count of a partition is two requests of Cassandra.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

from bench.queue_setup import BenchServers
from bench.results import Result, compared
from postroad.domain.queues.selection import Selector
from support.in_memory_cluster import InMemoryCluster, Process

HOUR = timedelta(hours=1)
AGES = (HOUR, 24 * HOUR, 72 * HOUR)
WINDOWS = {"1 h": HOUR, "5 min": HOUR / 12, "1 min": HOUR / 60}
BUCKETS = 3
LOOKS = timedelta(minutes=10)


async def measure(_: BenchServers) -> list[Result]:
    """Return the requests beside those for the same mail after an hour."""
    results: list[Result] = []
    for name, window in WINDOWS.items():
        for is_kept in (True, False):
            results += await _measure(name, window, is_kept=is_kept)
    return results


async def _measure(name: str, window: timedelta, *, is_kept: bool) -> list[Result]:
    """With maintenance every ten minutes, or with none until the end."""
    cluster = InMemoryCluster(window=window, buckets=BUCKETS)
    process = await cluster.start()
    await cluster.enqueue(process, "held")
    await process.queue.hold(Selector.all())
    first: dict[str, int] = {}
    results = []
    passed = timedelta(0)
    for age in AGES:
        while passed < age:
            await cluster.pass_time(LOOKS)
            passed += LOOKS
            if is_kept:
                await process.queue.maintain()
        found = {
            "requests of size": await _count(process, process.queue.size),
            "requests of a browse": await _count(process, lambda: _browse(process)),
        }
        if is_kept:
            await cluster.pass_time(LOOKS)
            passed += LOOKS
            found["requests of a round of maintenance"] = await _count(
                process, process.queue.maintain
            )
        first = first or found
        case = f"window {name}, held {age // HOUR} h, {'with' if is_kept else 'no'} maintenance"
        results += [
            compared(
                measure, case, "requests", [count], "held 1 h", [first[measure]],
                less_is_better=True,
            )
            for measure, count in found.items()
        ]  # fmt: skip
    await cluster.close()
    return results


async def _count(process: Process, work: Callable[[], Awaitable[object]]) -> int:
    before = len(process.faults.steps)
    await work()
    return len(process.faults.steps) - before


async def _browse(process: Process) -> None:
    async for _ in process.queue.browse():
        pass


if __name__ == "__main__":
    from bench.results import show

    print(show(asyncio.run(measure(None))))  # type: ignore[arg-type]
