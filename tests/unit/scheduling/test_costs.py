"""What an event costs, counted in calls of functions, which a busy machine does not change: about
as many with ten times the jobs and connections. `make bench ROOM=scheduler` has the times."""

from __future__ import annotations

import random

from bench.results import percentile
from bench.scheduler_costs import counted
from postroad.scheduling.events import Site
from postroad.scheduling.ranking import SchedulerRules
from support.simulated_delivery import Simulation

EVENTS = 150


def calls_of_events(connections: int) -> list[float]:
    """Return the calls of each event while all connections are busy and twenty times as many jobs
    wait: nine of ten mails have one recipient, ten are lists; sites are few large and many small.
    Source: SC-3."""
    chance = random.Random(connections)
    simulation = Simulation(SchedulerRules(connections=connections), seed=1)
    jobs = 20 * connections
    sites = [Site((tuple(f"s{n}h{h}" for h in range(n % 3 + 1)),)) for n in range(jobs // 4)]
    for number in range(jobs):
        mail = f"list{number % 10}" if chance.random() < 0.5 else f"m{number}"
        site = sites[min(int(chance.paretovariate(0.7)), len(sites)) - 1]
        simulation.submit(mail, site, seconds=chance.expovariate(1))
    simulation.run(0.01)
    counts = counted(simulation, EVENTS)
    assert len(simulation.lines) == connections
    return counts


def test_an_event_costs_about_as_much_with_ten_times_the_jobs_and_connections() -> None:
    few, many = calls_of_events(20), calls_of_events(200)

    assert percentile(many, 0.99) < 1.5 * percentile(few, 0.99)
    assert percentile(many, 0.5) < 1.5 * percentile(few, 0.5)


def calls_beside_a_shared_destination(sites: int) -> list[float]:
    """Return the calls of each event while so many sites with one destination in common have jobs,
    of mails for one of them and for two of them, and other mail takes each connection that becomes
    free. The destination fills up and opens again all the time."""
    chance = random.Random(1)
    simulation = Simulation(SchedulerRules(connections=20, per_destination=5), seed=1)
    for number in range(sites):
        for site in (f"{number}a", f"{number}b")[: 1 + number % 2]:
            shared = Site((("shared",), (f"own{site}",)))
            simulation.submit(f"m{number}", shared, seconds=chance.expovariate(1))
        simulation.submit(f"x{number}", Site(((f"x{number}",),)), seconds=chance.expovariate(1))
    simulation.run(0.01)
    return counted(simulation, EVENTS)


def test_a_destination_opens_and_fills_up_at_once_for_all_its_sites() -> None:
    few, many = (calls_beside_a_shared_destination(number) for number in (200, 2000))

    assert sum(many) < 1.5 * sum(few)
