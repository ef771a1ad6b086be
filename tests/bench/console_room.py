"""The console over a directory of BENCH_MAILS waiting mails that an MTA owns, in whose memory their
index is: times of requests, a bulk hold of a tenth of the mail, streams at rest, and memory. Peers
are the goals. CPU is counted beside time, because on a machine that does other things times alone
say little. `CASE=rates`: what an open console costs a queue through which mail goes."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx

from bench import console_rates
from bench.console_process import ConsoleProcess
from bench.mta_recovery import fill
from bench.results import Result, compared, percentile
from support.ports import free_port
from support.programs import Program

MAILS = int(os.environ.get("BENCH_MAILS", "1000000"))
REQUESTS = int(os.environ.get("BENCH_REQUESTS", "100"))
STREAMS, SESSIONS = 200, 4
REST_SECONDS = 60.0
HOME = "/api/v1/queues/local/long"
SEARCHES = ("", "?domain=host7.example", "?sender=a3@x.example", "?q=user77@", "?olderThan=1h")


def measure() -> list[Result]:
    """Measure the chosen case. `waiting` needs room on the disk, `rates` root."""
    with tempfile.TemporaryDirectory(prefix="postroad-bench-") as folder:
        base = Path(folder)
        base.chmod(0o755)  # programs of Postfix, which have users of their own, write into it
        case = os.environ.get("CASE", "waiting")
        return asyncio.run({"waiting": _measure, "rates": console_rates.measure}[case](base))


async def _measure(folder: Path) -> list[Result]:
    store, case = folder / "long", f"{MAILS:,} mails wait"
    await fill(store, MAILS, senders=10)
    owner = await Program.start(
        folder,
        *("mta", "--queue", f"embedded://{store}", "--listen", "127.0.0.1:0"),
        *("--relay", f"127.0.0.1:{free_port()}", "--tls", "none"),
    )
    await owner.port("listening")
    console = await ConsoleProcess.start(folder, store)
    found: list[Result] = []

    def add(measure: str, unit: str, ours: Sequence[float], goal: float) -> None:
        found.append(compared(measure, case, unit, ours, "the goal", [goal], less_is_better=True))

    try:
        clients = [await console.session(number + 1) for number in range(SESSIONS)]
        await clients[0].get(HOME)  # the index is read
        for name, paths, goal in (
            ("overview", ("/api/v1/queues",), 150.0),
            ("overview, as a page", ("/",), 150.0),
            ("first page of a search", [f"{HOME}/mails{each}" for each in SEARCHES], 300.0),
        ):
            times, cpu = await _times(console, clients[0], paths)
            add(f"{name}, p95", "ms", [percentile(times, 0.95)], goal)
            add(f"{name}, CPU", "ms", [cpu], goal)
        seconds, cpu, seen = await _hold(console, clients[0])
        add("hold of a tenth", "s", [seconds], 60.0)
        add("hold of a tenth, CPU", "s", [cpu], 60.0)
        add("hold of a tenth, longest without progress", "s", [seen], 5.0)
        add("memory", "MB", [console.megabytes("VmRSS")], 150.0)
        add("memory at most", "MB", [console.megabytes("VmHWM")], 150.0)
        add(f"{STREAMS} streams at rest", "% of a core", [await _rest(console, clients)], 5.0)
        for each in clients:
            await each.aclose()
    finally:
        await console.program.kill()
        await owner.kill()
    return found


async def _times(
    console: ConsoleProcess, client: httpx.AsyncClient, paths: Sequence[str]
) -> tuple[list[float], float]:
    """Return milliseconds of each request, and milliseconds of CPU of one."""
    times, before = list[float](), console.cpu()
    for number in range(REQUESTS):
        began = time.perf_counter()
        answer = await client.get(paths[number % len(paths)])
        assert answer.status_code == 200, answer.text
        times.append(1000 * (time.perf_counter() - began))
    return times, 1000 * (console.cpu() - before) / REQUESTS


async def _hold(console: ConsoleProcess, client: httpx.AsyncClient) -> tuple[float, float, float]:
    """Return seconds and CPU of a hold, and the longest time between two events of progress."""
    before, began = console.cpu(), time.perf_counter()
    wanted = {"operation": "hold", "selector": {"sender": "a3@x.example"}}
    begun = (await client.post(f"{HOME}/operations", json=wanted)).json()
    assert begun["matched"] == MAILS // 10, begun
    last, longest, event = time.perf_counter(), 0.0, dict[str, Any]()
    async with client.stream("GET", f"{HOME}/operations/{begun['id']}/events") as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                event = json.loads(line[6:])
                longest, last = max(longest, time.perf_counter() - last), time.perf_counter()
    assert (event["phase"], event["done"]) == ("Done", MAILS // 10), event
    return time.perf_counter() - began, console.cpu() - before, longest


async def _rest(console: ConsoleProcess, clients: Sequence[httpx.AsyncClient]) -> float:
    """Return the share of a core that streams of outcomes cost while there are none."""
    async with AsyncExitStack() as streams:
        for number in range(STREAMS):
            client = clients[number % len(clients)]
            answer = await streams.enter_async_context(client.stream("GET", f"{HOME}/events"))
            assert answer.status_code == 200
        before, began = console.cpu(), time.perf_counter()
        await asyncio.sleep(REST_SECONDS)
        return 100 * (console.cpu() - before) / (time.perf_counter() - began)
