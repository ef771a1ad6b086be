"""How many of N connections each of k mails has, beside s*N/(1+s*k). Source: SC-7, SC-8."""

from __future__ import annotations

from bench.results import Result, compared
from postroad.scheduling.events import Precedence, Site
from postroad.scheduling.ranking import SchedulerRules, ShareLimits
from support.simulated_delivery import Simulation

SCALE = 10
SIZES = (11, 100, 1000)
MAILS = range(1, 21)


def one_job_each(connections: int, least: int, scale: float = SCALE) -> SchedulerRules:
    """Rules by which a job is a connection, as in the calculation. All destinations are new here,
    and contend as others, and all connections count."""
    limits = dict.fromkeys(Precedence, ShareLimits(least, scale))
    return SchedulerRules(
        connections=connections,
        backlog=1,
        longest_queue=1,
        limits=limits,
        least_for_new=1.0,
        least_for_failing=1.0,
        overdue_share=0.0,
    )


def shares() -> list[Result]:
    """Return the share that is farthest from the calculated one, for each case."""
    return [_share(mails, workers) for workers in SIZES for mails in MAILS]


def _share(mails: int, workers: int) -> Result:
    """Let mails come at once, one before the other, whose jobs take a second more or less; look
    when the jobs that began first have ended."""
    simulation = Simulation(one_job_each(workers, least=1))
    for mail in range(mails):
        jobs = 3 * workers if mail == 0 else 4 * workers // mails + 20
        for job in range(jobs):
            seconds = simulation.random.uniform(0.5, 1.5)
            simulation.submit(f"m{mail}", Site(((f"d{mail}.{job}",),)), seconds=seconds)
    simulation.run(2.0)
    expected = SCALE * workers / (1 + SCALE * mails)
    found = [simulation.working[f"m{mail}"] for mail in range(mails)]
    farthest = max(found, key=lambda each: abs(each - expected))
    case = f"k={mails}, N={workers}"
    return compared("share", case, "connections", [farthest], "s*N/(1+s*k)", [expected])


def second_mail() -> list[Result]:
    """Return what the first mail, a second one, and what is left free once the second has come."""
    return [row for least in (1, 10, 100) for row in _second(least)]


def _second(least: int) -> list[Result]:
    simulation = Simulation(one_job_each(1000, least))
    for mail in ("first", "second"):
        for job in range(2000):
            simulation.submit(mail, Site(((f"{mail}.{job}",),)))
    simulation.run(0.5)
    second = 90 if least >= 90 else 82
    found = (simulation.working["first"], simulation.working["second"])
    rows = zip(
        ("first mail", "second mail", "left free"),
        (*found, 1000 - sum(found)),
        (910, second, 90 - second),
        strict=True,
    )
    return [
        compared(what, f"M={least}, N=1000", "connections", [ours], "calculated", [theirs])
        for what, ours, theirs in rows
    ]
