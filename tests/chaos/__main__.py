"""`python -m chaos`: runs, soaks, bites, and checks of recorded runs. See docs/chaos.md."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import logging
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from chaos import history, memory, nemesis, real, report, shrink
from chaos.bites import BITES, undone
from chaos.checker import Kind, Violation, check
from chaos.history import Event
from chaos.intakes import IntakeTown
from chaos.nemesis import Fault
from chaos.pace import PRODUCTION, QUICK
from chaos.report import Summary
from stack.errors import StackError

BUILD = Path(__file__).resolve().parents[2] / "build" / "chaos"
BITE_SECONDS, REAL_BITE_SECONDS = 3600.0, 60.0
BITE_SEEDS = 20
BITE_MINUTES = 10
"""The checker has to find a bite in at most so many runs, the last of which begins within so many
minutes. It most often finds it in the first."""

OVER_ONE: Mapping[str, type[real.Town]] = {"single": real.Town, "intake": IntakeTown}
"""The back ends over one server of each kind."""

SHRINK = {"memory": 30, "single": 0, "intake": 0, "cluster": 0}
"""In how many runs a failure is made smaller, where `--shrink` does not say. Over real servers a
run takes minutes, and the next one times the same faults differently."""

SHRINK_MINUTES = 5
"""After so many minutes, no run begins that makes a failure smaller."""

HASTY = replace(PRODUCTION, drain_timeout=3600)
"""The pace of a run with a bite. Its drain need not wait for what the bite leaves on the servers,
unless the bite is found by what it leaves."""


def run(
    backend: str,
    seed: int,
    schedule: Sequence[Fault],
    seconds: float,
    mails: float = QUICK.mails,
) -> list[Event]:
    """Return the history of one run, kept under `build/chaos`. `mails` are the new mails of a
    second; a run in memory has its own number."""
    directory = BUILD / f"{backend}-{seed}"
    if backend == "memory":
        events = memory.run(seed, schedule, seconds)
        history.write(directory, events)
    else:
        events = asyncio.run(town(backend, seed, mails).run(schedule, seconds))
    (directory / "schedule.json").write_text(json.dumps([asdict(each) for each in schedule]))
    return events


def draw(backend: str, seed: int, seconds: float, kinds: Collection[str] = ()) -> tuple[Fault, ...]:
    """Draw the faults of a run, of all kinds or of these.

    Raises:
        SystemExit: a kind that the back end does not have.
    """
    is_memory = backend == "memory"
    menu = memory.menu() if is_memory else town(backend, seed).menu
    if unknown := set(kinds) - set(menu):
        raise SystemExit(
            f"chaos: {backend} has no faults {sorted(unknown)}; it has {', '.join(sorted(menu))}"
        )
    chosen = {kind: means for kind, means in menu.items() if not kinds or kind in kinds}
    return nemesis.draw(seed, seconds, chosen, PRODUCTION if is_memory else QUICK)


def town(backend: str, seed: int, mails: float = QUICK.mails, undo: str | None = None) -> real.Town:
    """Return the processes of a run over real servers. `undo`: a precaution that they lack."""
    directory = BUILD / f"{backend}-{seed}"
    if backend in OVER_ONE:
        return OVER_ONE[backend](directory, seed, mails, undo)
    from chaos.cluster import ClusterTown  # imported only here, because its stack needs root

    return ClusterTown(directory, seed, mails)


def soak(options: argparse.Namespace) -> int:
    """Run seed after seed; return how many violations there were."""
    summary = Summary()
    until = time.monotonic() + options.minutes * 60
    for seed in range(options.seed, options.seed + options.seeds):
        schedule = draw(options.backend, seed, options.seconds, options.faults)
        events = run(options.backend, seed, schedule, options.seconds, options.mails)
        violations = check(events)
        summary.add(events, violations)
        print(f"seed {seed}: {report.totals(events)}, {len(violations)} violations", flush=True)
        if violations:
            _explain(options, seed, schedule, events, violations)
        if options.minutes and time.monotonic() > until:
            break
    text = f"chaos {options.backend}: {summary.text()}"
    print(text)
    BUILD.mkdir(parents=True, exist_ok=True)
    (BUILD / f"{options.backend}.md").write_text(text + "\n")
    return len(summary.found)


def _explain(
    options: argparse.Namespace,
    seed: int,
    schedule: Sequence[Fault],
    events: Sequence[Event],
    violations: Sequence[Violation],
) -> None:
    """Print a failure: its seed, the faults that it needs, and the lives of its mails."""
    kinds = {each.kind for each in violations}
    give_up = time.monotonic() + SHRINK_MINUTES * 60

    def fails(faults: Sequence[Fault]) -> bool:
        if time.monotonic() > give_up:
            return False
        again = run(options.backend, seed, faults, options.seconds, options.mails)
        return any(each.kind in kinds for each in check(again))

    tries = SHRINK[options.backend] if options.shrink is None else options.shrink
    if tries:
        drawn = len(schedule)
        schedule = shrink.shrink(list(schedule), fails, tries)
        print(f"seed {seed}: {len(schedule)} of {drawn} faults are left", flush=True)
        events = run(options.backend, seed, schedule, options.seconds, options.mails)
        violations = check(events) or violations
    text = "\n".join([f"seed {seed}", *map(str, schedule), "", report.told(events, violations)])
    (BUILD / f"{options.backend}-{seed}" / "failure.txt").write_text(text + "\n")
    print(text, flush=True)


def bite(options: argparse.Namespace) -> int:
    """Return how many bites were not found."""
    missed = 0
    in_memory = (name for name, each in BITES.items() if each.backend == "memory")
    for name in options.names or sorted(in_memory):
        begun = time.monotonic()
        with undone(name):
            found = _find(name, options.seed, begun + BITE_MINUTES * 60)
        took = f"{time.monotonic() - begun:.0f} s"
        missed += found is None
        print(f"{name} ({BITES[name].says}), {took}: {found or 'NOT FOUND'}", flush=True)
    return missed


def _find(name: str, first: int, until: float) -> str | None:
    """Run seed after seed until a run shows the violation of the bite."""
    runs, finds, backend = 0, BITES[name].finds, BITES[name].backend
    seconds = BITE_SECONDS if backend == "memory" else REAL_BITE_SECONDS
    for seed in itertools.count(first):
        schedule = draw(backend, seed, seconds)
        if not BITES[name].needs(schedule):
            continue
        if runs == BITE_SEEDS or time.monotonic() > until:
            return None
        runs += 1
        if backend == "memory":
            pace = PRODUCTION if finds is Kind.LEFT else HASTY
            events = memory.run(seed, schedule, seconds, pace)
        else:
            bitten = town(backend, seed, undo=name)
            events = asyncio.run(bitten.run(schedule, seconds))
        for each in check(events):
            if each.kind is finds:
                return f"seed {seed}, run {runs}: {each}"
    return None


def _kinds(text: str) -> tuple[str, ...]:
    return tuple(each.strip() for each in text.split(",") if each.strip())


def again(options: argparse.Namespace) -> int:
    """Check recorded runs again, and sum them up."""
    summary = Summary()
    for directory in options.directories:
        events = history.read(directory)
        violations = check(events)
        summary.add(events, violations)
        if violations:
            print(f"{directory}: {report.told(events, violations)}")
    print(summary.text())
    return len(summary.found)


def main(arguments: Sequence[str]) -> int:
    """Return the exit code: 1 where a run had a violation, or a bite was not found."""
    parser = argparse.ArgumentParser(prog="python -m chaos")
    commands = parser.add_subparsers(required=True)
    running = commands.add_parser("run", help="let processes work under faults, and check")
    running.add_argument("--backend", choices=tuple(SHRINK), default="memory")
    running.add_argument("--seed", type=int, default=1)
    running.add_argument(
        "--seeds", type=int, default=1, help="how many runs, one seed after another"
    )
    running.add_argument("--minutes", type=float, default=0, help="begin no run after so long")
    running.add_argument(
        "--seconds", type=float, default=3600, help="of the load, before the drain"
    )
    running.add_argument(
        "--mails", type=float, default=QUICK.mails, help="a second, over real servers"
    )
    running.add_argument(
        "--faults", type=_kinds, default=(), metavar="KINDS", help="draw only these: one,another"
    )
    running.add_argument("--shrink", type=int, metavar="RUNS", help="to make a failure smaller")
    running.add_argument("--undo", choices=sorted(BITES), help="undo a precaution of the engine")
    running.set_defaults(act=soak)
    biting = commands.add_parser("bite", help="undo each precaution: the checker has to find it")
    biting.add_argument("names", nargs="*", metavar="NAME")
    biting.add_argument("--seed", type=int, default=1)
    biting.set_defaults(act=bite, undo=None)
    checking = commands.add_parser("check", help="check recorded runs again, and sum them up")
    checking.add_argument("directories", nargs="+", type=Path, metavar="DIRECTORY")
    checking.set_defaults(act=again, undo=None)
    options = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)  # the engine logs each of these faults
    try:
        with undone(options.undo):
            return 1 if options.act(options) else 0
    except StackError as error:
        print(f"chaos: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
