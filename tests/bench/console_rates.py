"""Rates of an MTA over a directory while a console over its queue is open, and while none is, in
pairs whose order alternates. Open: a browser's page of the queue that refreshes, and a stream of
outcomes that is read. CPU is that of the MTA; the console's own is beside it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path
from statistics import median

import httpx

from bench.console_process import ConsoleProcess
from bench.mta_room import Candidate
from bench.results import Result, compared
from peers.postfix import SmtpSink
from support.cpu_time import family
from support.programs import Program

PAIRS = int(os.environ.get("BENCH_PAIRS", "12"))
MAILS, SESSIONS = int(os.environ.get("BENCH_MAILS", "6000")), 16
SETTLE_SECONDS = 8.0
"""Until a worker knows that it is watched, which it looks for each five seconds."""

REFRESH_SECONDS = 5.0
"""As the page does it."""


async def measure(base: Path) -> list[Result]:
    """Compare both. Needs root."""
    store = base / "rated"
    sink = await SmtpSink.start(base)
    mta = await Program.start(
        base,
        *("mta", "--queue", f"embedded://{store}", "--listen", "127.0.0.1:0"),
        *("--relay", f"127.0.0.1:{sink.port}", "--tls", "none", "--concurrency", "20"),
    )
    found: dict[bool, list[tuple[float, float, float]]] = {True: [], False: []}
    shares: list[float] = []
    try:
        port = await mta.port("listening")
        candidate = Candidate(base, port, partial(family, mta.pid), sink)
        await candidate.round(SESSIONS, MAILS)
        for number in range(PAIRS):
            for is_open in (True, False) if number % 2 else (False, True):
                async with _opened(base, store) if is_open else nullcontext() as console:
                    await asyncio.sleep(SETTLE_SECONDS)
                    before, began = console.cpu() if console else 0.0, time.perf_counter()
                    found[is_open].append(await candidate.round(SESSIONS, MAILS))
                    if console:
                        used = console.cpu() - before
                        shares.append(100 * used / (time.perf_counter() - began))
    finally:
        await mta.kill()
        await sink.stop()
    case = f"10 kB, {SESSIONS} sessions, {PAIRS} pairs"
    results = [compared("CPU of an open console", case, "% of a core", shares, "none open", [0.0])]
    opened, closed = (list(zip(*found[each], strict=True)) for each in (True, False))
    for at, (name, unit) in enumerate((("in", "mails/s"), ("out", "mails/s"), ("CPU", "ms/mail"))):
        is_cost = name == "CPU"
        results.append(
            compared(name, case, unit, opened[at], "none open", closed[at], less_is_better=is_cost)
        )
        ratios = [100 * mine / other for mine, other in zip(opened[at], closed[at], strict=True)]
        spread = f"{case}, {min(ratios):.0f} to {max(ratios):.0f}"
        middle, goal = median(ratios), 103.0 if is_cost else 97.0
        better = goal / middle if is_cost else middle / goal
        results.append(
            Result(f"{name}, of each pair", spread, "%", middle, "the goal", goal, better)
        )
    return results


@asynccontextmanager
async def _opened(base: Path, store: Path) -> AsyncIterator[ConsoleProcess]:
    """A console that two look at."""
    console = await ConsoleProcess.start(base, store)
    client = await console.session(1)
    home = f"local/{store.name}"
    looking = [
        asyncio.create_task(_refresh(client, f"/queues/{home}?live=true")),
        asyncio.create_task(_follow(client, f"/api/v1/queues/{home}/events")),
    ]
    try:
        yield console
        assert not any(each.done() for each in looking), "a page or a stream ended"
    finally:
        for each in looking:
            each.cancel()
        ended = await asyncio.gather(*looking, return_exceptions=True)
        await client.aclose()
        await console.program.kill()
    assert all(isinstance(each, asyncio.CancelledError) for each in ended), ended


async def _refresh(client: httpx.AsyncClient, page: str) -> None:
    while True:
        (await client.get(page, headers={"Accept": "text/html"})).raise_for_status()
        await asyncio.sleep(REFRESH_SECONDS)


async def _follow(client: httpx.AsyncClient, events: str) -> None:
    async with client.stream("GET", events) as answer:
        answer.raise_for_status()
        async for _ in answer.aiter_bytes():
            pass
