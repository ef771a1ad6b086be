"""What a decision costs: microseconds, which need an idle machine, and calls, which do not.

Nine of ten mails have one recipient, the others up to thousands; sites are few large and many
small ones; all connections are busy. Source: SC-3, SC-25.
"""

from __future__ import annotations

import random
import sys
import time
import tracemalloc
from collections.abc import Callable
from types import FrameType

from bench.results import Result, compared, percentile
from postroad.scheduling.events import Decision, Event, Site
from postroad.scheduling.ranking import SchedulerRules
from support.simulated_delivery import Simulation

LOADS = ((1_000, 100), (100_000, 1_000))
EVENTS = 400
"""Watched twice; the small load has a thousand jobs."""


def measure() -> list[Result]:
    """Compare the large load with the small one."""
    small, large = (loaded(*load) for load in LOADS)
    micros = [timed(each, EVENTS) for each in (small, large)]
    calls = [counted(each, EVENTS) for each in (small, large)]
    case = "100,000 jobs, 1,000 connections"
    rows = [
        compared(f"{what}, {name}", case, unit, [percentile(found[1], share)],
                 "1,000 jobs, 100 connections", [percentile(found[0], share)], less_is_better=True)
        for what, unit, found in (("a decision", "µs", micros), ("calls of it", "calls", calls))
        for name, share in (("median", 0.5), ("p99", 0.99))
    ]  # fmt: skip
    return [*rows, memory()]


def loaded(jobs: int, connections: int) -> Simulation:
    """Return a simulation in which this many jobs were submitted."""
    chance = random.Random(jobs)
    simulation = Simulation(SchedulerRules(connections=connections), seed=1)
    sites = [Site((tuple(f"s{n}h{h}" for h in range(n % 3 + 1)),)) for n in range(jobs // 4)]
    mail = 0
    while len(simulation.jobs) < jobs:
        many = chance.random() < 0.1
        mail += 1
        for _ in range(min(int(chance.paretovariate(0.9)) + 1, jobs // 10) if many else 1):
            site = sites[min(int(chance.paretovariate(0.7)), len(sites)) - 1]
            simulation.submit(f"m{mail}", site, seconds=chance.expovariate(1))
    simulation.run(0.01)
    return simulation


def timed(simulation: Simulation, events: int) -> list[float]:
    """Return the microseconds of each of the next events."""
    return _watched(simulation, events, _timed)


def counted(simulation: Simulation, events: int) -> list[float]:
    """Return the calls of functions in each of the next events."""
    return _watched(simulation, events, _counted)


Decide = Callable[[Event, float], list[Decision]]


def _watched(
    simulation: Simulation, events: int, watch: Callable[[Decide, list[float]], Decide]
) -> list[float]:
    found: list[float] = []
    decide: Decide = simulation.scheduler.on
    simulation.scheduler.on = watch(decide, found)  # type: ignore[method-assign, assignment]
    while len(found) < events and simulation.finishes < len(simulation.jobs):
        simulation.run(simulation.now + 0.01)
    simulation.scheduler.on = decide  # type: ignore[method-assign, assignment]
    return found


def _timed(decide: Decide, found: list[float]) -> Decide:
    def on(event: Event, now: float) -> list[Decision]:
        began = time.perf_counter_ns()
        decisions = decide(event, now)
        found.append((time.perf_counter_ns() - began) / 1000)
        return decisions

    return on


def _counted(decide: Decide, found: list[float]) -> Decide:
    def on(event: Event, now: float) -> list[Decision]:
        calls = 0

        def count(_frame: FrameType, event: str, _argument: object) -> None:
            nonlocal calls
            calls += event in {"call", "c_call"}

        before = sys.getprofile()
        sys.setprofile(count)
        try:
            return decide(event, now)
        finally:
            sys.setprofile(before)
            found.append(calls)

    return on


def memory() -> Result:
    """Return what a job takes that waits, with its mail, beyond what its caller has of it."""
    tracemalloc.start()
    try:
        simulation = Simulation(SchedulerRules(connections=10))
        numbers = range(20_000)
        for number in numbers:
            simulation.submit(f"m{number}", Site(((f"d{number % 100}",),)))
        given, _ = tracemalloc.get_traced_memory()
        simulation.run(0.0)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    bytes_each = (after - given) / len(numbers)
    return compared("memory of a waiting job and its mail", "20,000 mails", "bytes", [bytes_each],
                    "goal", [1000], less_is_better=True)  # fmt: skip
