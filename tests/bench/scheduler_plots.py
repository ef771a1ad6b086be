"""The scheduler's figures as pictures: `build/bench/scheduler-*.png`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot as plt

from bench.results import FOLDER, Result
from bench.scheduler_orders import LOADS, POLICIES, naive, scheduled
from bench.scheduler_shares import MAILS, SCALE, SIZES, one_job_each, shares
from bench.scheduler_situations import HOSTS
from postroad.scheduling.events import Site
from postroad.scheduling.ranking import SchedulerRules
from support.simulated_delivery import Simulation

STYLE = {
    "figure.figsize": (7.5, 4.2), "figure.dpi": 140, "font.size": 10, "axes.grid": True,
    "axes.spines.top": False, "axes.spines.right": False, "grid.alpha": 0.25,
    "axes.axisbelow": True, "legend.frameon": False, "savefig.bbox": "tight",
}  # fmt: skip
COLORS = ("#c44536", "#e09f3e", "#8d8d8d", "#577590", "#1b7f5c")
MARKS = ("o", "s", "^")


def draw(folder: Path = FOLDER) -> list[Result]:
    """Draw all of them; the room's table has the figures, so this adds none."""
    mpl.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(STYLE):
        for name, plot in (
            ("shares", _shares), ("take-over", _take_over), ("small-mails", _small_mails),
            ("ageing", _ageing),
        ):  # fmt: skip
            plot()
            path = folder / f"scheduler-{name}.png"
            plt.savefig(path)
            plt.close()
            print(f"drawn: {path}")
    return []


def _shares() -> None:
    """Measured shares on the calculated curve."""
    found = {each.case: each.ours for each in shares()}
    mails = list(MAILS)
    curve = [100 * SCALE / (1 + SCALE * k) for k in mails]
    plt.plot(mails, curve, color="#444444", linewidth=1, label="calculated: s / (1 + s·k)")
    for size, color, mark in zip(SIZES, COLORS[::2], MARKS, strict=True):
        share = [100 * found[f"k={k}, N={size}"] / size for k in mails]
        plt.plot(mails, share, mark, color=color, markersize=5, alpha=0.85, label=f"N = {size}")
    plt.xticks([1, 5, 10, 15, 20])
    plt.xlabel("mails with more jobs than connections")
    plt.ylabel("connections of the mail that is\nfarthest from it, % of all")
    plt.title("What one mail gets, s = 10")
    plt.legend()


def _take_over() -> None:
    """Two mails over time, the second ten seconds after the first."""
    simulation = Simulation(one_job_each(1000, least=10), seed=2)
    for mail, at in (("first", 0.0), ("second", 10.0)):
        for job in range(9000):
            seconds = simulation.random.expovariate(0.4)
            simulation.submit(mail, Site(((f"{mail}.{job}",),)), at=at, seconds=seconds)
    moments, lines = [], []
    while simulation.now < 20:
        simulation.run(simulation.now + 0.1)
        working = simulation.working
        moments.append(simulation.now)
        lines.append((working["first"], working["second"], 1000 - sum(working.values())))
    colors = (COLORS[3], COLORS[4], COLORS[2])
    for name, values, color in zip(
        ("first mail", "second mail", "free"), zip(*lines, strict=True), colors, strict=True
    ):
        plt.plot(moments, values, color=color, linewidth=2, label=name)
    plt.xlabel("seconds (a job takes 2.5 s on average)")
    plt.ylabel("connections of 1,000")
    plt.title("A second mail takes what is free, then half of the rest")
    plt.legend(loc="center left")


def _small_mails() -> None:
    """How long small mails take beside thirty lists, by policy."""
    load = LOADS[-1]
    for (policy, (allowed, fewest_first)), color in zip(POLICIES.items(), COLORS, strict=True):
        ours = policy == "shares, fewest first"
        ran = scheduled(load) if ours else naive(load, allowed, fewest_first=fewest_first)
        label = f"{policy} (ours)" if ours else policy
        plt.plot([n + 0.5 for n in range(len(ran.waits))], ran.waits, color=color,
                 linewidth=2.5 if ours else 1.3, label=label)  # fmt: skip
    plt.yscale("log")
    plt.yticks([1, 10, 60, 600], ["1 s", "10 s", "1 min", "10 min"])
    plt.xlabel("when the mail came, seconds after 30 lists of 200 jobs")
    plt.ylabel("time to its delivery")
    plt.title("Small mails beside lists, 100 connections")
    plt.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncol=2)


def _ageing() -> None:
    """Which host of a cluster has a connection, while there is one mail at a time."""
    simulation = Simulation(SchedulerRules(), seed=4)
    for number in range(2400):
        simulation.submit(f"m{number}", Site((HOSTS[:8],)), at=number * 5.0, seconds=4.9)
    simulation.run(12_000)
    ends = {each.number: each.closed_at for each in simulation.closings}
    used: Counter[str] = Counter()
    for number, opening in enumerate(simulation.openings, 1):
        last = ends.get(number, simulation.now)
        host = HOSTS.index(opening.destination)
        plt.barh(host, last - opening.at, left=opening.at, height=0.6,
                 color=COLORS[4] if used[opening.destination] % 2 else COLORS[3])  # fmt: skip
        used[opening.destination] += 1
    plt.yticks(range(8), [f"host {n + 1}" for n in range(8)])
    plt.xlabel("seconds")
    plt.title("One mail at a time: each connection lasts five minutes, then another host")
