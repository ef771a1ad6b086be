"""The delivery scheduler in a simulated world: what it does beside what was calculated for it.

`CASE` chooses among the cases, comma separated. Nothing is sent and no clock is read, so that the
figures are the same on every machine, but for those of `costs`. BENCH_STATES says how many states
of the choice are compared (100,000), BENCH_CLOSES how many connections peers close (100,000).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module

from bench import (
    scheduler_choice,
    scheduler_costs,
    scheduler_orders,
    scheduler_shares,
    scheduler_trouble,
)
from bench import scheduler_situations as situations
from bench.results import Result, progress


def plots() -> list[Result]:
    """Draw what there is to look at. Only this case takes the time to load matplotlib."""
    found: list[Result] = import_module("bench.scheduler_plots").draw()
    return found


CASES: dict[str, Callable[[], list[Result]]] = {
    "shares": scheduler_shares.shares,
    "second": scheduler_shares.second_mail,
    "orders": scheduler_orders.measure,
    "situations": situations.measure,
    "trouble": scheduler_trouble.measure,
    "closes": situations.closes,
    "choice": scheduler_choice.measure,
    "costs": scheduler_costs.measure,
    "plots": plots,
}


def measure() -> list[Result]:
    """Measure the chosen cases."""
    chosen = os.environ.get("CASE", ",".join(CASES)).split(",")
    unknown = [each for each in chosen if each not in CASES]
    if unknown:
        sys.exit(f"no such case: {', '.join(unknown)}; there are {', '.join(CASES)}")
    results: list[Result] = []
    for case in chosen:
        found = CASES[case]()
        progress(found)
        results += found
    return results
