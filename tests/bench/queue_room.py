"""The distributed queue on real servers. `CASE` chooses among the cases, comma separated.

`rates`, `operations`, `retries` and `backlog` are measured by default. `held` counts requests while
one mail is held; `outcomes` compares endings with and without the outcomes of attempts, in both
engines; `dead_letters` reads dead letters among many that were taken out; `disk` takes most of
an hour; `james` and `migration` take some minutes, and need the Java compiler. Each case's module
says what it does and which variables change it.
`BENCH_LOOP=asyncio` runs them without uvloop, which the programs use.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable

import uvloop

from bench import (
    queue_backlog,
    queue_dead_letters,
    queue_disk,
    queue_held,
    queue_james,
    queue_migration,
    queue_operations,
    queue_outcomes,
    queue_rates,
    queue_retries,
)
from bench.queue_setup import BenchServers, fresh_servers
from bench.results import Result
from postroad.telemetry import logs

CASES: dict[str, Callable[[BenchServers], Awaitable[list[Result]]]] = {
    "rates": queue_rates.measure,
    "operations": queue_operations.measure,
    "retries": queue_retries.measure,
    "backlog": queue_backlog.measure,
    "held": queue_held.measure,
    "outcomes": queue_outcomes.measure,
    "dead_letters": queue_dead_letters.measure,
    "disk": queue_disk.measure,
    "james": queue_james.measure,
    "migration": queue_migration.measure,
}
DEFAULT = "rates,operations,retries,backlog"


def measure() -> list[Result]:
    """Measure the chosen cases. Needs the three servers."""
    logs.configure("WARNING")
    chosen = os.environ.get("CASE", DEFAULT).split(",")
    unknown = [each for each in chosen if each not in CASES]
    if unknown:
        sys.exit(f"no such case: {', '.join(unknown)}; there are {', '.join(CASES)}")
    loop = {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}
    with asyncio.Runner(loop_factory=loop[os.environ.get("BENCH_LOOP", "uvloop")]) as runner:
        return runner.run(_measure(chosen))


async def _measure(chosen: list[str]) -> list[Result]:
    results: list[Result] = []
    for case in chosen:
        # A place of its own: tables that were filled before would slow down what comes after.
        async with fresh_servers() as where:
            results += await CASES[case](where)
    return results
