"""Rounds in which the leader of two operators is killed, suspended for a minute, or cut off from
the API server: how long until the other one has an effect, and that the former has none.

`ROUNDS` for each of `FAULTS`, `LANES` of them at the same time, each lane with operators and a
namespace of its own; what a round does says `tests/support/leader_rounds.py`.
"""

from __future__ import annotations

import asyncio
import os
import sys

from bench.operator_setup import Site, fresh_site
from bench.results import Result, compared, percentile, progress
from support.leader_rounds import TAKEOVER_SECONDS, leader_rounds
from support.namespaces import new_namespace

ROUNDS = int(os.environ.get("ROUNDS", "100"))
FAULTS = os.environ.get("FAULTS", "kill,cut,suspend").split(",")
LANES = int(os.environ.get("LANES", "1"))


async def measure() -> list[Result]:
    """Measure the rounds of each fault."""
    results: list[Result] = []
    for fault in FAULTS:
        async with fresh_site() as site:
            results += _figures(fault, await _of(site, fault))
        progress(results)
    return results


async def _of(site: Site, fault: str) -> list[float]:
    """Repeat a fault in all lanes; return the seconds of the takeovers. Raises: AssertionError with
    the order in which operators had effects."""
    async with asyncio.TaskGroup() as group:
        lanes = [
            group.create_task(_lane(site, fault, number, len(range(number, ROUNDS, LANES))))
            for number in range(LANES)
        ]
    return [seconds for each in lanes for seconds in each.result()]


async def _lane(site: Site, fault: str, lane: int, count: int) -> list[float]:
    folder = site.folder / f"{fault}-{lane}"
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    async with (
        new_namespace(site.api) as namespace,
        leader_rounds(site.api, namespace, folder) as rounds,
    ):
        for number in range(count):
            try:
                await rounds.after(fault)
            except (AssertionError, TimeoutError) as error:
                error.add_note(f"{fault} {lane}.{number}, after takeovers in {rounds.takeovers} s")
                for each in rounds.every[-2:]:
                    error.add_note(f"{each.name}: {each.program.log.read_text()[-2000:]}")
                raise
            seconds = rounds.takeovers[-1]
            print(f"{fault} {lane}.{number}: {seconds:.1f} s", file=sys.stderr, flush=True)
        rounds.check()
    return rounds.takeovers


def _figures(fault: str, takeovers: list[float]) -> list[Result]:
    case = f"{fault}, {len(takeovers)} rounds"
    return [
        compared(f"takeover, {name}", case, "s", [percentile(takeovers, share)], "goal",
                 [TAKEOVER_SECONDS], less_is_better=True)
        for name, share in (("p50", 0.5), ("p99", 0.99), ("longest", 1.0))
    ]  # fmt: skip
