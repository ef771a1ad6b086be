"""Rounds in which the leader of two operators is killed, suspended for a minute, or cut off from
the API server: how long until the other one has an effect, and that the former has none.

`ROUNDS` for each of `FAULTS`; what a round does says `tests/support/leader_rounds.py`.
"""

from __future__ import annotations

import asyncio
import os
import sys

from bench.operator_setup import Site, fresh_site
from bench.results import Result, compared, percentile, progress
from support.leader_rounds import TAKEOVER_SECONDS, Rounds, leader_rounds

ROUNDS = int(os.environ.get("ROUNDS", "100"))
FAULTS = os.environ.get("FAULTS", "kill,cut,suspend").split(",")


async def measure() -> list[Result]:
    """Measure the rounds of each fault."""
    results: list[Result] = []
    for fault in FAULTS:
        async with fresh_site() as site:
            results += await _of(site, fault)
        progress(results)
    return results


async def _of(site: Site, fault: str) -> list[Result]:
    """Repeat a fault. Raises: AssertionError with the order in which operators had effects."""
    folder = site.folder / fault
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    async with leader_rounds(site.api, site.namespace, folder) as rounds:
        for number in range(ROUNDS):
            try:
                await rounds.after(fault)
            except (AssertionError, TimeoutError) as error:
                error.add_note(f"{fault} {number}, after takeovers in {rounds.takeovers} s")
                for each in rounds.every[-2:]:
                    error.add_note(f"{each.name}: {each.program.log.read_text()[-2000:]}")
                raise
            print(f"{fault} {number}: {rounds.takeovers[-1]:.1f} s", file=sys.stderr, flush=True)
    rounds.check()
    return _figures(rounds, fault)


def _figures(rounds: Rounds, fault: str) -> list[Result]:
    case = f"{fault}, {len(rounds.takeovers)} rounds"
    return [
        compared(f"takeover, {name}", case, "s", [percentile(rounds.takeovers, share)], "goal",
                 [TAKEOVER_SECONDS], less_is_better=True)
        for name, share in (("p50", 0.5), ("p99", 0.99), ("longest", 1.0))
    ]  # fmt: skip
