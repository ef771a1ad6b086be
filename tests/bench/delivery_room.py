"""Delivery alone, beside Debian's Postfix: both begin with a full queue and one next hop.

Mails of 10 kB to one recipient lie in the queue when either starts; counted is from the first mail
at the sink to the last one, with the same number of connections, which both keep. CPU is that of a
control group between the two, a second after the last mail included, in which either writes down
what has left. `far` cases go through a proxy that holds octets back for 25 ms each way, because
this kernel has no netem; the proxy's own ceiling stands beside them: sessions of smtp-source that
are kept open, through it.

`CASE` chooses, comma separated: `near` (100 connections without delay, no proxy), `far1`, `far20`
(a round trip of 50 ms, 1 and 20 connections), `chunks` (the same with 1, to a sink that offers
CHUNKING, which Postfix' client does not use; for us a smart host of a route, as a relay gets no
chunks).
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.delay_proxy import DelayProxy
from bench.delivery_queues import Candidate, OurQueue, PostfixQueue
from bench.results import Result, compared, progress
from peers.postfix import SmtpSink, smtp_source
from support.cpu_time import ControlGroup
from support.sink import EXTENSIONS, Sink

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))
SIZE = 10_000
ONE_WAY_MILLISECONDS = 25.0
LONG_SECONDS = 120.0
SETTLE_SECONDS = 1.0
COMMANDS = 20
CEILING_SESSIONS, CEILING_MAILS = 500, 4000


@dataclass(frozen=True)
class Case:
    """How many mails, of us and of Postfix, go over how many connections; far: through the
    proxy."""

    text: str
    connections: int
    mails: int
    peer_mails: int
    is_far: bool = True
    is_chunked: bool = False


CASES = {
    "near": Case("100 connections, no delay", 100, 4000, 4000, is_far=False),
    "far1": Case("1 connection, round trip 50 ms", 1, 200, 40),
    "far20": Case("20 connections, round trip 50 ms", 20, 4000, 1500),
    "chunks": Case("1 connection, round trip 50 ms, CHUNKING", 1, 1000, 40, is_chunked=True),
}


def measure() -> list[Result]:
    """Measure the chosen cases. Needs root."""
    chosen = os.environ.get("CASE", ",".join(CASES)).split(",")
    unknown = [each for each in chosen if each not in CASES]
    if unknown:
        sys.exit(f"no such case: {', '.join(unknown)}; there are {', '.join(CASES)}")
    return asyncio.run(_measure([CASES[each] for each in chosen]))


async def _measure(cases: list[Case]) -> list[Result]:
    results: list[Result] = []
    for case in cases:
        # Postfix' own users must reach its files, so they cannot lie in a private directory.
        base = Path(tempfile.mkdtemp(prefix="postroad-bench-"))
        base.chmod(0o755)
        try:
            results += await _case(base, case)
        finally:
            shutil.rmtree(base, ignore_errors=True)
        progress(results)
    return results


async def _case(base: Path, case: Case) -> list[Result]:
    async with AsyncExitStack() as stack:
        sink: Sink | SmtpSink
        if case.is_chunked:
            sink = Sink(extensions=(*EXTENSIONS, "CHUNKING"))
            await stack.enter_async_context(sink)
        else:
            sink = await SmtpSink.start(base)
            stack.push_async_callback(sink.stop)
        port, results = sink.port, []
        if case.is_far:
            proxy = await DelayProxy.start(port, ONE_WAY_MILLISECONDS)
            stack.push_async_callback(proxy.stop)
            port = proxy.port
            results.append(await _round_trip(port, case))
            if not case.is_chunked:
                results.append(await _ceiling(base, port, case))
        return [*await _compare(base, case, port, lambda: sink.received), *results]


async def _round_trip(port: int, case: Case) -> Result:
    """Return how long a command and its reply take through the proxy."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    await reader.readline()
    took = []
    for _ in range(COMMANDS):
        began = time.perf_counter()
        writer.write(b"NOOP\r\n")
        await reader.readline()
        took.append(1000 * (time.perf_counter() - began))
    writer.close()
    wanted = [2 * ONE_WAY_MILLISECONDS]
    return compared("a round trip", case.text, "ms", took, "wanted", wanted, less_is_better=True)


async def _ceiling(base: Path, port: int, case: Case) -> Result:
    """Return what the proxy passes on at most: many sessions, each kept open. It counts the two
    round trips that a mail costs a session of smtp-source, which pipelines nothing."""
    began = time.perf_counter()
    await smtp_source(base, port, CEILING_MAILS, CEILING_SESSIONS, SIZE, is_kept=True)
    rate = CEILING_MAILS / (time.perf_counter() - began)
    return compared("the proxy's ceiling", case.text, "mails/s", [rate], "itself", [rate])


async def _compare(base: Path, case: Case, port: int, received: Callable[[], int]) -> list[Result]:
    candidates: tuple[Candidate, ...] = (
        OurQueue(base / "ours", port, case.connections, is_routed=case.is_chunked),
        PostfixQueue(base / "postfix", port, case.connections),
    )
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for _ in range(ROUNDS):
        for each in candidates:
            mails = case.peer_mails if isinstance(each, PostfixQueue) else case.mails
            await each.fill(mails, SIZE)
            found[each.name].append(await _round(each, mails, received))
            print(f"{each.name}, {case.text}: {found[each.name][-1]}", file=sys.stderr, flush=True)
    (mine, other), name = (
        [list(zip(*found[each.name], strict=True)) for each in candidates],
        candidates[1].name,
    )
    return [
        compared("delivered", case.text, "mails/s", mine[0], name, other[0]),
        compared("CPU", case.text, "ms/mail", mine[1], name, other[1], less_is_better=True),
    ]


async def _round(
    candidate: Candidate, mails: int, received: Callable[[], int]
) -> tuple[float, float]:
    """Return mails delivered a second and milliseconds of CPU a mail, from the first mail on."""
    before = received()
    group = ControlGroup(candidate.name.split()[0].lower())
    try:
        await candidate.start(group.around())
        async with asyncio.timeout(LONG_SECONDS):
            while received() == before:
                await asyncio.sleep(0.002)
            first, began, spent = received(), time.perf_counter(), group.cpu_seconds
            while received() < before + mails:
                await asyncio.sleep(0.005)
        took = time.perf_counter() - began
        await asyncio.sleep(SETTLE_SECONDS)
        counted = before + mails - first
        return counted / took, 1000 * (group.cpu_seconds - spent) / counted
    finally:
        await candidate.stop()
        group.remove()
