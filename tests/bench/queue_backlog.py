"""Looking into long queues and emptying them: 1,000, 100,000 and, on demand, 1,000,000 mails.

`bench.bulk` says what such a queue is made of. Half of each slice is ended for the size case, and
the rest is purged. Up to 100,000 mails have their bytes in the object store (or BENCH_WITH_BYTES);
of more only the rows exist, and their deletion is asked for all the same. James' way to browse is
measured over the first slices: its cost is the same for each mail.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, cast

from bench import james_way
from bench.bulk import HUNDREDTH, Bulk, bulk
from bench.queue_setup import BenchServers, queue_names
from bench.results import Result, compared, progress
from postroad import Selector, open_queue
from postroad.distributed.engine.timing import Timing
from postroad.ports.mail_queue import MailQueue

QUEUES = (1_000, 100_000) + ((1_000_000,) if os.environ.get("BENCH_MILLION") == "1" else ())
WITH_BYTES = int(os.environ.get("BENCH_WITH_BYTES", "100000"))
"""The largest queue whose bytes are written."""
SETTLED = 3 * Timing().skew.total_seconds() + 1
"""Seconds after which a count is remembered: before, a mark might come from a clock that is off."""
JAMES_SLICES = 2
REPEATED = 5
JAMES = "James 3.8.1, measured on this kind of machine"
JAMES_SECONDS = {
    ("size", 100_000): 15.5,
    ("browse, first 100", 100_000): 15.0,
    ("browse, all", 100_000): 60.0,
    ("purge", 100_000): 89.0,
}
GOALS = {"size, known": 1.0, "browse, first 100": 0.2}
"""Seconds, whatever the length of the queue."""


@dataclass
class Watched:
    """Results of one queue."""

    mails: int
    results: list[Result]

    def add(self, measure: str, case: str, seconds: list[float], base: str | None = None) -> None:
        """Add a time beside the goal and beside James, where there are such."""
        goal, theirs = GOALS.get(measure), JAMES_SECONDS.get((base or measure, self.mails))
        for peer, other in (("goal", goal), (JAMES, theirs)):
            if other is not None:
                self._append(measure, case, seconds, peer, other)
        if goal is None and theirs is None:
            self._append(measure, case, seconds, "itself: nothing to compare with", seconds[0])

    def _append(self, measure: str, case: str, mine: list[float], peer: str, other: float) -> None:
        self.results.append(compared(measure, case, "s", mine, peer, [other], less_is_better=True))


async def measure(where: BenchServers) -> list[Result]:
    """Measure every queue, the short ones first."""
    results: list[Result] = []
    for mails in QUEUES:
        known = len(results)
        async with queue_names(where) as name, bulk(where, name, mails) as load:
            await load.write_rows()
            if mails <= WITH_BYTES:
                await load.write_bytes()
            url = f"distributed://{name}"
            async with open_queue(url, create=True, settings=where.settings) as queue:
                watched = Watched(mails, results)
                await _look(queue, load, watched)
                await load.mark_half()
                await asyncio.sleep(SETTLED)
                await _size(queue, watched, f"{mails:,} rows, half of them ended", mails // 2)
                await _empty(queue, watched)
        progress(results[known:])
    return results


async def _look(queue: MailQueue, load: Bulk, watched: Watched) -> None:
    mails, case = watched.mails, f"{watched.mails:,} mails"
    await _size(queue, watched, case, mails)
    first = [await timed(lambda: count_of(queue.browse(), 100)) for _ in range(REPEATED)]
    watched.add("browse, first 100", case, [seconds for seconds, _ in first])
    mine, found = await timed(lambda: count_of(queue.browse()))
    assert found == mails
    watched.add("browse, all", case, [mine])
    theirs, seen = await timed(lambda: count_of(james_way.browse(load, JAMES_SLICES)))
    peer = "James' way: a mark read for each mail, 4 in flight"
    rates = [mails / mine], [seen / theirs]
    watched.results.append(compared("browse, all", case, "mails/s", rates[0], peer, rates[1]))
    counted, _ = await timed(queue.ages)
    watched.add("ages, first", case, [counted])
    await asyncio.sleep(Timing().ages.total_seconds() + 1)
    counted, _ = await timed(queue.ages)
    watched.add("ages, a minute later", case, [counted])


async def _size(queue: MailQueue, watched: Watched, case: str, expected: int) -> None:
    seconds, sizes = await timed(queue.size)
    assert sizes.size == expected, sizes
    watched.add("size, first", case, [seconds], base="size")
    again = [(await timed(queue.size))[0] for _ in range(REPEATED)]
    watched.add("size, known", case, again, base="size")


async def _empty(queue: MailQueue, watched: Watched) -> None:
    live = watched.mails // 2
    seconds, removed = await timed(lambda: queue.remove(Selector(name=HUNDREDTH)))
    assert removed == watched.mails // 100, removed  # even numbers: none of them was ended
    watched.add("remove", f"{removed:,} of {live:,} mails", [seconds])
    seconds, purged = await timed(queue.purge)
    assert purged == live - removed, purged
    # James' figure is for as many mails as the queue had rows: it is scaled to those purged.
    theirs = JAMES_SECONDS.get(("purge", watched.mails))
    case = f"{purged:,} mails"
    if theirs is None:
        return watched.add("purge", case, [seconds])
    scaled = [theirs * purged / watched.mails]
    watched.results.append(
        compared("purge", case, "s", [seconds], f"{JAMES}, scaled", scaled, less_is_better=True)
    )
    return None


async def timed(work: Callable[[], Awaitable[Any]]) -> tuple[float, Any]:
    """Return how long it took, and what came of it."""
    began = time.perf_counter()
    found = await work()
    return time.perf_counter() - began, found


async def count_of(items: AsyncIterator[object], most: int | None = None) -> int:
    """Count what comes, up to so many."""
    count = 0
    async with aclosing(cast("AsyncGenerator[object, None]", items)) as closing:
        async for _ in closing:
            count += 1
            if count == most:
                break
    return count
