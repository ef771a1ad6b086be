"""Small mails beside lists of many recipients, under five policies.

A hundred connections, of which each job takes one. Small mails with one recipient and a job of a
second come once a second for five minutes; the lists come first. The policies run in a simulation
of their own, which looks at all mails for each decision; the scheduler decides by the last of them.
Source: SC-4 to SC-9; AMB-14.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from bench.results import Result, compared, percentile
from bench.scheduler_shares import SCALE, one_job_each
from postroad.scheduling.events import Site
from support.simulated_delivery import Simulation

WORKERS, MIN_JOBS = 100, 5
SMALL = 300
Allowed = Callable[[int, int, int], bool]
"""Whether a mail may grow that has so many workers, by the free ones and by the mails there are."""


def _by_shares(working: int, free: int, _mails: int) -> bool:
    return working < MIN_JOBS or working < SCALE * free


POLICIES: dict[str, tuple[Allowed, bool]] = {
    "first come, first served": (lambda _working, _free, _mails: True, False),
    "a fixed limit": (lambda working, _free, _mails: working < MIN_JOBS, False),
    "an equal split": (lambda working, _free, mails: working < max(1, WORKERS // mails), False),
    "shares, as listed": (_by_shares, False),
    "shares, fewest first": (_by_shares, True),
}
"""With whether the mail with the fewest workers goes first, else the first mail."""


@dataclass(frozen=True)
class Load:
    """Lists that come at once; of their jobs one in `slow` takes a minute, the others a second."""

    name: str
    lists: int
    jobs: int
    slow: int

    def mails(self) -> list[tuple[float, list[float]]]:
        """When each mail comes, and the seconds of its jobs."""
        chance = random.Random(5)
        lists = [
            [60.0 if chance.random() < 1 / self.slow else 1.0 for _ in range(self.jobs)]
            for _ in range(self.lists)
        ]
        return [(0.0, each) for each in lists] + [(n + 0.5, [1.0]) for n in range(SMALL)]


LOADS = (
    Load("1 list of 1000", 1, 1000, 5),
    Load("1 list of 400, all slow", 1, 400, 1),
    Load("30 lists of 200", 30, 200, 5),
)


@dataclass(frozen=True)
class Ran:
    """The seconds that each small mail took, by arrival, and those until the lists were done."""

    waits: list[float]
    done: float

    @property
    def p95(self) -> float:
        """The 95th percentile of the small mails."""
        return percentile(self.waits, 0.95)


def measure() -> list[Result]:
    """Return small mails' p95 and when the lists are done: ours beside each policy."""
    rows = []
    for load in LOADS:
        mine = scheduled(load)
        for policy, (allowed, fewest_first) in POLICIES.items():
            theirs = naive(load, allowed, fewest_first=fewest_first)
            for what, a, b in (("p95", mine.p95, theirs.p95), ("lists", mine.done, theirs.done)):
                name = "small mails' p95" if what == "p95" else "lists done"
                rows.append(compared(name, load.name, "s", [a], policy, [b], less_is_better=True))
    return rows


def scheduled(load: Load) -> Ran:
    """Let the scheduler decide."""
    simulation = Simulation(one_job_each(WORKERS, MIN_JOBS))
    numbers = [
        [
            simulation.submit(f"m{mail}", Site(((f"{mail}.{job}",),)), at=at, seconds=seconds)
            for job, seconds in enumerate(jobs)
        ]
        for mail, (at, jobs) in enumerate(load.mails())
    ]
    simulation.run()
    ends = [max(simulation.finished_at[job] for job in jobs) for jobs in numbers]
    return _ran(load, ends)


def naive(load: Load, allowed: Allowed, *, fewest_first: bool) -> Ran:
    """Decide by a policy, mail by mail."""
    mails = load.mails()
    left = [list(reversed(jobs)) for _, jobs in mails]
    working, ends, turns = [0] * len(mails), [0.0] * len(mails), [0] * len(mails)
    events = [(at, mail, True) for mail, (at, _) in enumerate(mails)]
    heapq.heapify(events)
    here: list[int] = []
    began = count(1)
    free = WORKERS
    while events:
        now, mail, is_arrival = heapq.heappop(events)
        if is_arrival:
            here.append(mail)
            turns[mail] = next(began)
        else:
            free, ends[mail] = free + 1, now
            working[mail] -= 1
            if not working[mail] and not left[mail]:
                here.remove(mail)
        while free and (
            found := [m for m in here if left[m] and allowed(working[m], free, len(here))]
        ):
            fewest = min(found, key=lambda mail: (working[mail], turns[mail]))
            chosen = fewest if fewest_first else found[0]
            turns[chosen] = next(began)
            free, working[chosen] = free - 1, working[chosen] + 1
            heapq.heappush(events, (now + left[chosen].pop(), chosen, False))
    return _ran(load, ends)


def _ran(load: Load, ends: list[float]) -> Ran:
    waits = [ends[load.lists + n] - (n + 0.5) for n in range(SMALL)]
    return Ran(waits, max(ends[: load.lists]))
