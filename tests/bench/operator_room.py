"""The operator as a process, over an API server and servers of the bench's own. `CASE` chooses
among the cases, comma separated.

`scale` is measured by default. Each case's module says what it does and which variables change it.
All servers are new, and removed at the end; `build/bench/operator` keeps the operators' logs.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable

from bench import (
    operator_deletion,
    operator_leaders,
    operator_namespace,
    operator_newcomer,
    operator_rotation,
    operator_scale,
    operator_schema,
    operator_setup,
    operator_waiting,
)
from bench.results import Result, progress
from postroad.telemetry import logs

CASES: dict[str, Callable[[], Awaitable[list[Result]]]] = {
    "scale": operator_scale.measure,
    "newcomer": operator_newcomer.measure,
    "schema": operator_schema.measure,
    "deletion": operator_deletion.measure,
    "rotation": operator_rotation.measure,
    "leaders": operator_leaders.measure,
    "namespace": operator_namespace.measure,
    "waiting": operator_waiting.measure,
}


def measure() -> list[Result]:
    """Measure the chosen cases. One that fails ends the run, after what was measured is printed."""
    logs.configure("ERROR")
    chosen = os.environ.get("CASE", "scale").split(",")
    if unknown := [each for each in chosen if each not in CASES]:
        sys.exit(f"no such case: {', '.join(unknown)}; there are {', '.join(CASES)}")
    operator_setup.clear()
    return asyncio.run(_measure(chosen))


async def _measure(chosen: list[str]) -> list[Result]:
    results: list[Result] = []
    for case in chosen:
        try:
            results += await CASES[case]()
        except BaseException:
            progress(results)  # what is known already, before the error
            raise
    return results
