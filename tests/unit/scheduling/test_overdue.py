"""Connections that wait for their next hops count apart from others, up to a bound.

Source: ADR 0074; AMB-27.
"""

from __future__ import annotations

from postroad.scheduling.destination_records import ConnectionRecord
from postroad.scheduling.destinations import Destinations
from postroad.scheduling.events import Precedence, Site, Tick
from postroad.scheduling.ranking import SchedulerRules
from postroad.scheduling.scheduler import Scheduler
from support.simulated_delivery import Simulation

RULES = SchedulerRules(connections=4, overdue_share=0.5, backlog=1, longest_queue=1)


def opened(table: Destinations, name: str, now: float, job: int = 0) -> ConnectionRecord:
    connection = table.open(name, now)
    table.assign(connection, job or connection.number, Precedence.BULK, now)
    return connection


def test_what_opens_for_a_second_counts_apart_until_it_is_answered() -> None:
    table = Destinations(RULES)
    connection = opened(table, "a", 0)
    table.slowed(0.9)
    assert table.free == 3
    assert table.next_moment() == 1
    table.slowed(1)
    assert table.free == 4

    table.establish(connection, 3)
    assert table.free == 3
    table.slowed(7.9)
    assert table.free == 3, "its job takes long after five seconds, not after one"
    table.slowed(8)
    assert table.free == 4
    table.finish(connection, 1, 9)
    assert table.free == 4, "it is idle"
    table.assign(connection, 2, Precedence.BULK, 10)
    assert table.free == 3


def test_there_are_as_many_places_as_half_of_the_connections() -> None:
    table = Destinations(RULES)
    first, second, third, fourth = (opened(table, name, 0) for name in "abcd")
    table.slowed(1)
    assert table.free == 2
    table.establish(first, 2)
    table.slowed(2)
    assert table.free == 2, "the next one has its place"
    table.close(second, 3)
    table.slowed(3)
    assert table.free == 3, "its place goes to the last one"
    table.close(third, 3)
    table.close(fourth, 3)
    assert table.free == 3


def test_destinations_failing_have_half_of_the_places() -> None:
    table = Destinations(RULES)
    for name in "ab":
        table.fail(name, 0)
    table.end_backoffs(15)
    failing = [opened(table, name, 15) for name in "ab"]
    opened(table, "c", 15.5)
    table.slowed(16)
    assert table.free == 4 - 3 + 1
    table.slowed(16.5)
    assert table.free == 4 - 3 + 2, "a new one has a place beside them"

    table.close(failing[0], 17)
    table.slowed(17)
    assert table.free == 4


def test_a_new_destination_that_turns_out_slow_waits_with_the_failing() -> None:
    table = Destinations(SchedulerRules(connections=2, overdue_share=0.5))
    opened(table, "a", 0)
    waiting = opened(table, "b", 0)
    table.slowed(1)
    assert table.free == 1
    table.slowed(5)
    assert waiting.is_slow
    assert [len(line) for line in table._overdue._lines.values()] == [0, 1]


def test_while_more_count_than_may_none_is_opened_and_no_idle_one_used() -> None:
    """Two of four places are free when the two that counted apart are answered."""
    simulation = Simulation(RULES, connect=lambda name: 2.0 if name.startswith("late") else 0.0)
    for name in ("late1", "late2"):
        simulation.submit(name, Site(((name,),)), seconds=4)
    for number in range(4):
        simulation.submit(f"m{number}", Site(((f"s{number}",),)), at=1.5, seconds=1.5 + number / 4)
    simulation.submit("m4", Site((("s4",),)), at=1.6)
    simulation.submit("m5", Site((("s0",),)), at=2.1)
    simulation.run(1.9)
    assert len(simulation.lines) == 6

    simulation.run(3.2)
    assert simulation.scheduler._destinations.free == 0
    assert not simulation.lines[3].jobs, "idle"
    assert {each.destination for each in simulation.openings} == {
        "late1", "late2", "s0", "s1", "s2", "s3",
    }  # fmt: skip
    simulation.run(3.6)
    assert len(simulation.openings) == 7, "there are four again"
    simulation.run(20)
    assert len(simulation.finished_at) == 8


def test_a_place_that_is_left_lets_another_connection_open_at_once() -> None:
    rules = SchedulerRules(connections=1, overdue_share=1, backlog=1, longest_queue=1)
    simulation = Simulation(rules, connect=lambda name: None if name == "dead" else 0.0, refusal=30)
    simulation.submit("m1", Site((("dead",),)))
    simulation.submit("m2", Site((("well",),)), at=0.5)
    simulation.run(0.9)
    assert [each.destination for each in simulation.openings] == ["dead"]
    simulation.run(1.0)
    assert [each.destination for each in simulation.openings] == ["dead", "well"]


def test_without_places_all_connections_count() -> None:
    it = Scheduler(SchedulerRules(connections=1, overdue_share=0), lambda _: 0)
    table = it._destinations
    opened(table, "a", 0)
    it.on(Tick(), 100)
    assert table.free == 0
