"""Destinations that do not answer, or take long, beside those that do. Source: AMB-27."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

from postroad.scheduling.destination_records import BusyConnections, Trust
from postroad.scheduling.events import ConnectionPaused, Site, Tick
from postroad.scheduling.ranking import SchedulerRules
from support.simulated_delivery import Simulation

RULES = SchedulerRules(
    connections=50, backlog=1, longest_queue=1, least_for_new=0.1, least_for_failing=0.06
)
SLOW = 20.0


def busy(simulation: Simulation) -> Counter[str]:
    """Return the connections with jobs, by the first dead letters of their destinations."""
    lines = simulation.lines.values()
    return Counter(line.destination.rstrip("0123456789") for line in lines if line.jobs)


def submit(simulation: Simulation, kind: str, sites: int, mails: int, seconds: float) -> None:
    for number in range(mails):
        site = Site(((f"{kind}{number % sites}",),))
        simulation.submit(f"{kind} {number}", site, at=simulation.now, seconds=seconds)


def test_slow_destinations_give_their_connections_to_others_that_want_them() -> None:
    simulation = Simulation(RULES)
    submit(simulation, "slow", sites=5, mails=400, seconds=SLOW)
    simulation.run(60)
    assert busy(simulation)["slow"] >= 30

    submit(simulation, "well", sites=5, mails=2500, seconds=1)
    simulation.run(60 + 2 * SLOW)

    assert busy(simulation) == {"slow": 12, "well": 47}, "three begin a job every five seconds"
    simulation.run(160)
    assert busy(simulation)["slow"] > 30, "nothing else wants the connections any more"


def dead_beside_well(rules: SchedulerRules) -> list[Counter[str]]:
    """Return the connections with jobs, second by second, while thirty sites that do not answer get
    mail beside ten that do."""
    simulation = Simulation(
        rules, connect=lambda name: None if name.startswith("dead") else 0.1, refusal=30
    )
    submit(simulation, "well", sites=10, mails=300, seconds=1)
    simulation.run(3)
    submit(simulation, "dead", sites=30, mails=60, seconds=1)
    found = []
    for moment in range(4, 100):
        submit(simulation, "well", sites=10, mails=55, seconds=1)
        simulation.run(moment)
        found.append(busy(simulation))
    tried = {each.destination for each in simulation.openings}
    assert len([each for each in tried if each.startswith("dead")]) >= 10
    return found


def test_destinations_that_do_not_answer_keep_little_of_what_others_want() -> None:
    """Five connections are kept for them, and few are free for an instant. Each of the thirty would
    have one."""
    found = dead_beside_well(replace(RULES, overdue_share=0))
    assert 5 <= max(each["dead"] for each in found) <= 10


def test_connections_that_are_not_answered_leave_their_places_to_others() -> None:
    """There are 25 places for them beside the fifty connections."""
    found = dead_beside_well(RULES)
    assert max(each["dead"] for each in found) == 25
    assert max(each["dead"] + each["well"] for each in found) >= 70
    assert min(each["well"] for each in found[5:]) >= 45


def healthy_sent(rules: SchedulerRules) -> int:
    """Return how many mails go out in a minute to sites that answer, of two hundred sites that a
    worker learns of, three of ten of which do not."""
    simulation = Simulation(
        rules, connect=lambda name: None if int(name) % 10 < 3 else 0.2, refusal=30
    )
    chance = random.Random(1)
    for number in range(1500):
        simulation.submit(f"m{number}", Site(((str(chance.randrange(200)),),)), at=number / 25)
    simulation.run(60)
    return len(simulation.finished_at)


def test_sites_that_never_answered_keep_connections_for_seconds_where_others_want_them() -> None:
    """Each keeps one until it is given up: for thirty seconds as usual, for five at first."""
    few = replace(RULES, connections=20, overdue_share=0)
    short, usual = (healthy_sent(replace(few, first_connect=each)) for each in (5.0, 30.0))
    assert short > 1.5 * usual


def test_time_that_a_connection_is_held_up_counts_not_and_what_comes_after_it_does() -> None:
    simulation = Simulation(RULES)
    simulation.submit("m", Site((("a",),)), at=0, seconds=100)
    simulation.run(2)
    scheduler, found = simulation.scheduler, []
    for moment, event in (
        (2.0, ConnectionPaused(1, is_held=True)),
        (60.0, ConnectionPaused(1, is_held=False)),
        (64.9, Tick()),
        (65.0, Tick()),
        (66.0, ConnectionPaused(99, is_held=True)),
    ):
        scheduler.on(event, moment)
        found.append(scheduler.look_at("a").is_failing)

    assert found == [False, False, False, True, True]


def test_a_destination_is_failing_while_a_job_takes_long_until_one_does_not() -> None:
    simulation = Simulation(RULES)
    for at, seconds in ((0, SLOW), (30, 1)):
        simulation.submit(f"m{at}", Site((("a",),)), at=at, seconds=seconds)
    found = []
    for moment in (4.9, 5.0, 25.0, 30.9, 31.0):
        simulation.run(moment)
        found.append(simulation.scheduler.look_at("a").is_failing)

    assert found == [False, True, True, True, False]


def test_one_quick_job_does_not_clear_a_destination_that_takes_long_over_others() -> None:
    simulation = Simulation(RULES)
    for number, seconds in enumerate((1, SLOW, SLOW, 1)):
        simulation.submit(f"m{number}", Site((("a",),)), at=3 * (number > 0), seconds=seconds)
    simulation.run(10)
    assert simulation.scheduler.look_at("a").is_failing


def test_a_destination_with_few_slow_jobs_among_many_is_not_failing() -> None:
    simulation = Simulation(RULES)
    for number in range(200):
        slow = number in (10, 11)
        seconds, at = (SLOW, 2.0) if slow else (1.0, number / 10)
        simulation.submit(f"m{number}", Site((("a",),)), at=at, seconds=seconds)
    found = []
    for moment in range(3, 20):
        simulation.run(moment + 0.05)
        assert busy(simulation)["a"] >= 5
        found.append(simulation.scheduler.look_at("a").is_failing)

    assert not any(found)


def test_a_first_answer_that_comes_late_makes_it_failing_until_it_comes() -> None:
    simulation = Simulation(RULES, connect=lambda _: 6.0)
    simulation.submit("m", Site((("a",),)), seconds=1)
    found = []
    for moment in (4.9, 5.0, 5.9, 6.0):
        simulation.run(moment)
        found.append(simulation.scheduler.look_at("a").is_failing)

    assert found == [False, True, True, False]


def test_what_is_kept_and_what_is_free_bound_new_and_failing_destinations() -> None:
    connections = BusyConnections(RULES)
    assert connections.contests(free=50) == [list(Trust)]
    connections.count(Trust.PROVEN, 20)
    connections.count(Trust.NEW, 6)
    connections.count(Trust.FAILING, 5)
    assert connections.contests(free=0) == [[Trust.PROVEN]]
    assert connections.contests(free=1) == [[Trust.PROVEN]]
    assert connections.contests(free=2) == [[Trust.PROVEN], [Trust.NEW], [Trust.FAILING]]
    assert connections.is_beyond(Trust.NEW)
    assert connections.is_beyond(Trust.FAILING)
    connections.count(Trust.NEW, -6)
    assert not connections.is_beyond(Trust.NEW)
    assert not connections.is_beyond(Trust.PROVEN)


def test_a_forgiven_destination_is_as_one_that_never_failed() -> None:
    simulation = Simulation(RULES, connect=lambda _: None)
    simulation.submit("m", Site((("a",),)))
    simulation.run(1)
    assert simulation.scheduler.look_at("a").is_failing
    simulation.scheduler._destinations.forgive("a", 1)
    assert not simulation.scheduler.look_at("a").is_failing
    assert simulation.scheduler._destinations._busy._used == [0, 0, 0]
