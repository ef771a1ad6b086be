"""What dead letters cost to count and to list when many of their month were requeued or discarded:
beside a month of which none was. `BENCH_DEAD_LETTERS` of them are deleted as `delete_dead_letter`
does, several together; a few letters are left, spread among them.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

import servers
from bench.queue_setup import BenchServers, fresh_name
from bench.results import Result, compared, progress
from postroad.adapters.cassandra import statements
from postroad.adapters.cassandra.session import Session
from postroad.adapters.cassandra.view.view import CassandraView
from postroad.domain.values.identifiers import id_at
from postroad.ports.view import DeadLetter

DELETED = [int(each) for each in os.environ.get("BENCH_DEAD_LETTERS", "100000").split(",")]
LEFT = 100
TOGETHER, AT_ONCE = 400, 4
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))
MONTH, START, SPAN = "2026-01", datetime(2026, 1, 10, tzinfo=UTC), timedelta(days=1)
PEER = "none taken out"


async def measure(where: BenchServers) -> list[Result]:
    """Return seconds, of a process that began after the dead letters were taken out."""
    results: list[Result] = []
    for deleted in DELETED:
        untouched = await _seconds_of_month(where, 0)
        taken = await _seconds_of_month(where, deleted)
        case = f"{deleted} taken out of a month, {LEFT} left"
        found = [
            compared(name, case, "s", seconds, PEER, untouched[name], less_is_better=True)
            for name, seconds in taken.items()
        ]
        progress(found)
        results += found
    return results


async def _seconds_of_month(where: BenchServers, deleted: int) -> dict[str, list[float]]:
    session = Session(servers.cassandra(where.keyspace))
    try:
        await session.server_times()
        name = str(fresh_name())
        await _fill(session, name, deleted)
        view = CassandraView(session, name)
        first = await _seconds(view.count_dead_letters)
        counts = [await _seconds(view.count_dead_letters) for _ in range(ROUNDS)]
        listings = [await _seconds(lambda: _list(view)) for _ in range(ROUNDS)]
        return {"first count": [first], "count": counts, "listing": listings}
    finally:
        await session.close()


async def _seconds(work: Callable[[], Awaitable[int]]) -> float:
    began = time.perf_counter()
    if await work() != LEFT:
        raise AssertionError("not all dead letters were found")
    return time.perf_counter() - began


async def _list(view: CassandraView) -> int:
    return len([each async for each in view.dead_letters()])


async def _fill(session: Session, name: str, deleted: int) -> None:
    view = CassandraView(session, name)
    for number in range(LEFT):
        enqueue_id = id_at(START + number / LEFT * SPAN, 0, number)
        await view.write_dead_letter(DeadLetter(enqueue_id, MONTH, START, "no", None, b"body"))

    async def together() -> None:
        stamp = session.now_us()
        gone = [START + random.random() * SPAN for _ in range(TOGETHER)]
        ids = [id_at(each, random.getrandbits(12), random.getrandbits(62)) for each in gone]
        await session.execute_together(
            statements.DELETE_DEAD_LETTER, [(stamp, name, MONTH, each) for each in ids]
        )

    for _ in range(deleted // TOGETHER // AT_ONCE):
        await asyncio.gather(*(together() for _ in range(AT_ONCE)))
