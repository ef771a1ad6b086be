"""What the scheduler does in situations of source 004, each as a number beside the expected one."""

from __future__ import annotations

import os
import random
from collections import Counter

from bench.results import Result, compared, percentile
from postroad.scheduling.events import Precedence, Site
from postroad.scheduling.ranking import SchedulerRules, ShareLimits
from support.simulated_delivery import Simulation

CLOSES = int(os.environ.get("BENCH_CLOSES", "100000"))
HOSTS = tuple(f"h{number}" for number in range(20))
CLUSTER = Site((HOSTS,))


def measure() -> list[Result]:
    """Return a row for each situation, or two."""
    return [
        _every_host_first(),
        *_a_broken_host(),
        _ageing(),
        *_a_free_ride(),
        _newest_first(),
        *_one_large_site(),
        *_verifications(),
        _a_dead_destination(),
    ]


def expected(measure: str, case: str, unit: str, ours: float, theirs: float) -> Result:
    """Return a row whose peer is what was expected."""
    return compared(measure, case, unit, [ours], "expected", [theirs])


def _every_host_first() -> Result:
    simulation = Simulation(SchedulerRules(idle=1), seed=3)
    for number in range(100):
        simulation.submit(f"m{number}", CLUSTER, at=number * 10)
    simulation.run(1000)
    used = [each.destination for each in simulation.openings]
    before = next(n for n, name in enumerate(used) if name in used[:n])
    return expected("hosts used before one again", "a cluster of 20", "hosts", before, len(HOSTS))


def _a_broken_host() -> list[Result]:
    def tries(gap: float, rules: SchedulerRules) -> int:
        """Connections to the broken one of five after its first failure, until it is forgotten."""
        simulation = Simulation(rules, connect=lambda name: None if name == "h0" else 0.0)
        for number in range(int(3000 / gap)):
            simulation.submit(f"m{number}", Site((HOSTS[:5],)), at=number * gap)
        simulation.run(3000)
        return sum(each.destination == "h0" for each in simulation.openings) - 1

    idle = tries(10, SchedulerRules(idle=1))
    busy = tries(0.2, SchedulerRules(per_destination=1, backlog=1, longest_queue=1))
    return [
        expected("tries of a broken host", "one mail in 10 s", "connections", idle, 0),
        compared(
            "tries of a broken host",
            "others at their limit",
            "connections",
            [busy],
            "at least",
            [1],
        ),
    ]


def _ageing() -> Result:
    simulation = Simulation(SchedulerRules(age=100), seed=1)
    for number in range(2000):
        simulation.submit(f"m{number}", CLUSTER, at=number * 5.0, seconds=4.9)
    simulation.run(10_000)
    used = Counter(each.destination for each in simulation.openings)
    most, least = max(used.values()), min(used.get(name, 0) for name in HOSTS)
    return expected("connections, most less fewest", "one mail at a time, 20 hosts", "connections",
                    most - least, 0)  # fmt: skip


def _a_free_ride() -> list[Result]:
    limits = dict.fromkeys(Precedence, ShareLimits(2, 0))
    simulation = Simulation(SchedulerRules(connections=10, limits=limits))
    for name in ("b", "c"):
        simulation.submit("list", Site(((name,),)), seconds=100)
    for number in range(2):
        simulation.submit(f"small{number}", Site((("a",),)), seconds=10)
    for _ in range(4):
        simulation.submit("list", Site((("a",),)), at=1)
    simulation.run(2)
    case = "M=2, two at work elsewhere"
    opened = sum(each.at >= 1 for each in simulation.openings)
    return [
        expected("jobs at work of a list", case, "jobs", simulation.working["list"], 6),
        expected("connections opened for it", case, "connections", opened, 0),
    ]


def _newest_first() -> Result:
    rules = SchedulerRules(connections=400, per_destination=400, age=10_000)
    simulation = Simulation(rules, seed=1)
    at, number = 0.0, 0
    while at < 600:
        at += simulation.random.expovariate(20 if at < 200 else 10)
        simulation.submit(f"m{(number := number + 1)}", Site((("a",),)), at=at, seconds=5)
    simulation.run(200)
    before = sorted(simulation.lines)
    simulation.run(600)
    kept = [each for each in before if each in simulation.lines]
    pairs = [(old, new) for old in before for new in kept if old not in simulation.lines]
    older = sum(old < new for old, new in pairs) / max(1, len(pairs))
    case = "load falls by half, of all pairs"
    return expected("closed one older than one kept", case, "share", older, 1)


def _one_large_site() -> list[Result]:
    """Transactional mails for the site that a list of 5,000 jobs is for, by how long the queue of
    a connection may be. Source: AMB-23."""

    def ran(longest: int | None) -> tuple[float, float]:
        rules = SchedulerRules(connections=20, backlog=3, longest_queue=longest)
        simulation = Simulation(rules, seed=1)
        site = Site((("a",),))
        for _ in range(5000):
            simulation.submit("list", site, seconds=simulation.random.expovariate(1), priority=-1)
        small = [
            simulation.submit(f"m{n}", site, at=5.5 + n, seconds=0.1, priority=1)
            for n in range(200)
        ]
        simulation.run()
        waits = [simulation.finished_at[each] - simulation.submitted_at[each] for each in small]
        return percentile(waits, 0.95), max(simulation.finished_at.values())

    literal = ran(None)
    rows = []
    for longest in (3, 6):
        case = f"5000 jobs for one site, longest queue {longest}"
        for what, ours, theirs in zip(
            ("transactional mails' p95", "list done"), ran(longest), literal, strict=True
        ):
            rows.append(compared(what, case, "s", [ours], "rides without a bound", [theirs],
                                 less_is_better=True))  # fmt: skip
    return rows


def _verifications() -> list[Result]:
    def waits(verifying: int) -> tuple[float, int]:
        simulation = Simulation(SchedulerRules(connections=100), seed=1)
        most = 0

        def watch(_: object) -> None:
            nonlocal most
            most = max(most, simulation.working[None])

        simulation.on_event = watch
        sites = [Site(((f"d{n}",),)) for n in range(50)]
        for n in range(verifying):
            simulation.submit(None, sites[n % 50], at=n / 1000, seconds=0.1)
        mails = [simulation.submit(f"m{n}", sites[n % 50], at=n / 20) for n in range(2000)]
        simulation.run()
        found = [simulation.finished_at[each] - simulation.submitted_at[each] for each in mails]
        return percentile(found, 0.95), most

    alone, _ = waits(0)
    beside, most = waits(10_000)
    return [
        expected("verifications at work, most", "10,000 asked at 1,000/s", "jobs", most, 10),
        compared("deliveries' p95", "beside 10,000 verifications", "s", [beside], "without them",
                 [alone], less_is_better=True),
    ]  # fmt: skip


def _a_dead_destination() -> Result:
    simulation = Simulation(SchedulerRules(), connect=lambda _: None, refusal=30)
    for number in range(50):
        simulation.submit(f"m{number}", Site((("a",),)), at=number / 10)
    simulation.run(600)
    return expected("connections to a dead host", "50 mails, 10 minutes", "connections",
                    len(simulation.openings), 5)  # fmt: skip


def closes() -> list[Result]:
    """Let peers close connections at random, with jobs on them; count jobs lost and doubled."""
    chance = random.Random(12)
    rules = SchedulerRules(connections=50, per_destination=10, first_backoff=0.01, max_backoff=0.05)
    simulation = Simulation(rules, seed=12)
    sites = [Site((tuple(chance.sample(HOSTS, 3)),)) for _ in range(30)]
    with_jobs = 0
    while len(simulation.peer_closed) < CLOSES:
        while len(simulation.jobs) - len(simulation.finished_at) < 150:
            number = len(simulation.jobs)
            mail = f"m{number}" if chance.random() < 0.9 else f"list{number // 1000}"
            seconds = chance.expovariate(5)
            simulation.submit(mail, chance.choice(sites), at=simulation.now, seconds=seconds)
        simulation.run(simulation.now + 0.02)
        for each in chance.sample(sorted(simulation.lines), min(8, len(simulation.lines))):
            if each in simulation.lines:
                with_jobs += len(simulation.lines[each].jobs)
                simulation.close(each)
    simulation.run(simulation.now + 1000)
    finished = len(simulation.finished_at)
    lost, doubled = len(simulation.jobs) - finished, simulation.finishes - finished
    case = f"{len(simulation.peer_closed):,} closed by peers, {with_jobs:,} jobs on them"
    return [
        expected("jobs lost", case, "jobs", lost, 0),
        expected("jobs doubled", case, "jobs", doubled, 0),
    ]
