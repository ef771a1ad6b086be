"""`python -m kills`: kills a worker at random amid mail for many sites. See docs/chaos/kills.md."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import time
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from kills.back_ends import BackEnd, Embedded, over_servers
from kills.by_intake import ByIntake
from kills.careless import BITES
from kills.check import check, summary
from kills.soak import Size, Soak

BUILD = Path(__file__).resolve().parents[2] / "build" / "kills"
LISTED = 40
"""Findings that are printed."""


async def run(options: argparse.Namespace, folder: Path) -> bool:
    """Make a run and print what it came to; return whether it is as it should be."""
    began, bite = time.monotonic(), options.bite

    def say(line: str) -> None:
        print(f"{time.monotonic() - began:6.0f} s  {line}", flush=True)

    async with AsyncExitStack() as stack:
        back_end: BackEnd = Embedded(folder / "store")
        if options.backend == "single":
            back_end = await stack.enter_async_context(over_servers())
        elif options.backend == "intake":
            made = partial(ByIntake, folder=folder, kills=options.kills, seed=options.seed, say=say)
            back_end = await stack.enter_async_context(over_servers(made))
        soak = Soak(
            back_end,
            folder,
            Size(options.kills, options.mails, options.sites),
            options.seed,
            module="kills.careless" if bite else "postroad",
            environment={"KILLS_BITE": bite} if bite else None,
            say=say,
        )
        done = await soak.run()
    findings, seconds = check(done), time.monotonic() - began
    lines = [
        f"{options.backend}, seed {options.seed}, {options.sites} sites, {seconds:.0f} s",
        summary(done),
        f"{len(findings)} found",
        *map(str, findings[:LISTED]),
    ]
    (folder / "summary.txt").write_text("\n".join(lines) + "\n")
    print(*lines, sep="\n")
    if bite:
        return any(each.kind is BITES[bite][1] for each in findings)
    return not findings


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m kills", description=__doc__)
    backends = ("embedded", "single", "intake")
    parser.add_argument("--backend", choices=backends, default="embedded")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--mails", type=int, default=20_000)
    parser.add_argument("--sites", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--bite", choices=sorted(BITES), help="undo this; the run has to find it")
    options = parser.parse_args()
    folder = BUILD / f"{options.backend}-{options.seed}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return 0 if asyncio.run(run(options, folder)) else 1


if __name__ == "__main__":
    sys.exit(main())
