"""What is known of a destination, from its first connection until it is forgotten."""

from __future__ import annotations

import pytest

from postroad.errors import InvalidInput, InvalidSettings
from postroad.scheduling.destination_records import ConnectionRecord, Standing, Trust
from postroad.scheduling.destinations import Destinations
from postroad.scheduling.events import Precedence, Site
from postroad.scheduling.ranking import ConnectionLimits, SchedulerRules

RULES = SchedulerRules(idle=60, age=300, remember_closed=1000, remember_broken=500)


def standing(table: Destinations, name: str = "a") -> Standing:
    found = table.find(name)
    return Standing.UNUSED if found is None else found.standing


def opened(table: Destinations, now: float = 0, job: int = 1) -> ConnectionRecord:
    connection = table.open("a", now)
    table.assign(connection, job, Precedence.BULK, now)
    return connection


def test_a_destination_that_works_is_active_then_idle_then_closed_then_forgotten() -> None:
    """Source: SC-12."""
    table = Destinations(RULES)
    assert standing(table) is Standing.UNUSED
    connection = opened(table, now=0)
    assert standing(table) is Standing.ACTIVE
    table.finish(connection, 1, now=5)
    assert standing(table) is Standing.IDLE
    assert table.next_moment() == 65
    assert table.aged(65) == [connection]
    table.close(connection, now=65)
    assert standing(table) is Standing.CLOSED
    assert table.next_moment() == 1065
    assert table.end_backoffs(1064) == []
    assert table.end_backoffs(1065) == ["a"]
    assert standing(table) is Standing.UNUSED
    assert table.next_moment() is None


def test_a_destination_that_fails_rests_then_is_due_then_forgotten() -> None:
    table = Destinations(RULES)
    table.close(opened(table), now=1)
    assert table.fail("a", now=1) == 16
    assert standing(table) is Standing.BACKING_OFF
    assert not table.has_room("a")
    assert table.end_backoffs(16) == ["a"]
    assert standing(table) is Standing.DUE
    assert table.has_room("a")
    assert table.end_backoffs(516) == ["a"]
    assert standing(table) is Standing.UNUSED


def test_a_first_connection_has_little_time_while_half_of_all_are_in_use() -> None:
    """Source: AMB-27. What failed, or answered, has as much as usual, and so has each while others
    find room beside it."""
    table = Destinations(SchedulerRules(connections=4, first_connect=5))
    for job, name in enumerate("xy"):
        table.assign(table.open(name, 0), job, Precedence.BULK, 0)
    assert table.connect_within("a") is None
    table.assign(table.open("z", 0), 3, Precedence.BULK, 0)

    assert table.connect_within("a") == 5
    table.fail("a", now=0)
    table.end_backoffs(999)
    assert table.connect_within("a") is None

    table.finish(opened(table, now=3000, job=4), 4, now=3001)
    assert table.connect_within("a") is None


def test_what_is_forgiven_time_and_again_has_as_much_time_as_usual() -> None:
    """Else an administrator who flushes a site that answers late keeps it from being reached."""
    table = Destinations(SchedulerRules(connections=1, first_connect=5, remember_broken=500))
    table.assign(table.open("x", 0), 1, Precedence.BULK, 0)
    table.fail("a", now=0)
    for now in (1, 2):
        table.forgive("a", now)
        assert table.connect_within("a") is None
    assert table.trust("a") is Trust.NEW

    table.end_backoffs(502)
    assert table.find("a") is None
    assert table.connect_within("a") == 5


def test_rests_grow_with_the_square_of_the_failures_until_a_job_is_finished() -> None:
    """Source: AMB-17."""
    table = Destinations(RULES)
    backoffs = []
    for moment in range(0, 100_000, 10_000):
        table.close(opened(table, moment), now=moment)
        until = table.fail("a", moment)
        assert until is not None
        backoffs.append(until - moment)
        table.end_backoffs(until)
    assert backoffs[:4] == [15, 60, 135, 240]
    assert max(backoffs) == 1500
    connection = opened(table, now=100_000)
    table.finish(connection, 1, now=100_000)
    assert table.fail("a", 100_000) == 100_015


def test_the_longest_rest_is_a_bound() -> None:
    table = Destinations(SchedulerRules(max_backoff=20))
    assert table.fail("a", 0) == 15
    table.end_backoffs(15)
    assert table.fail("a", 15) == 35


def test_connections_that_end_together_are_one_failure() -> None:
    """A host that restarts ends all of its connections."""
    table = Destinations(RULES)
    assert [table.fail("a", 0) for _ in range(20)] == [15, *[None] * 19]
    table.end_backoffs(15)
    assert table.fail("a", 15) == 75


def test_what_other_processes_found_broken_is_no_failure_here() -> None:
    """Each of twenty processes hears of a broken host from all others."""
    table = Destinations(RULES)
    for _ in range(20):
        table.back_off("a", until=15)
    table.end_backoffs(15)
    assert standing(table) is Standing.DUE
    assert table.fail("a", 15) == 75


def test_a_rest_ends_no_connection_and_lets_none_open() -> None:
    """Source: AMB-18."""
    table = Destinations(RULES)
    connection = opened(table)
    table.establish(connection, 0)
    table.fail("a", now=0)

    assert standing(table) is Standing.ACTIVE
    assert not table.has_room("a")


def test_one_connection_until_it_is_answered_then_as_many_again() -> None:
    """Source: AMB-24; SC-20."""
    table = Destinations(SchedulerRules(per_destination=3))
    first = opened(table)
    assert not table.has_room("a")
    table.establish(first, 0)
    assert table.has_room("a")
    second = opened(table, job=2)
    assert not table.has_room("a")
    table.establish(second, 0)
    opened(table, job=3)
    assert not table.has_room("a"), "the most that a destination gets"


def test_destination_with_limits_of_its_own_has_these_and_others_the_usual_ones() -> None:
    table = Destinations(SchedulerRules(per_destination=3))
    table.limit(lambda name: ConnectionLimits(1, 2) if name == "a" else ConnectionLimits())
    first = opened(table)
    table.establish(first, 0)
    other = table.open("b", 0)
    table.assign(other, 2, Precedence.BULK, 0)
    table.establish(other, 0)
    assert (table.has_room("a"), table.has_room("b")) == (False, True)
    table.assign(first, 3, Precedence.BULK, 0)
    assert first.is_retiring

    table.limit(lambda name: ConnectionLimits(5))
    assert table.has_room("a")
    table.limit(lambda name: ConnectionLimits(1))
    assert not table.has_room("b")


@pytest.mark.parametrize(("per_minute", "at_once", "next_at"), [(6, 1, 10.0), (120, 2, 0.5)])
def test_connections_are_opened_at_the_rate_of_a_destination(
    per_minute: int, at_once: int, next_at: float
) -> None:
    table = Destinations(SchedulerRules(per_destination=100))
    table.limit(lambda _: ConnectionLimits(per_minute=per_minute))
    for number in range(at_once):
        assert table.has_room("a")
        table.establish(opened(table, job=number), 0)
    assert not table.has_room("a")
    assert (table.next_moment() or 0) <= next_at
    assert table.end_backoffs(next_at - 0.1) == []
    assert not table.has_room("a")
    assert table.end_backoffs(next_at) == ["a"]
    assert table.has_room("a")

    table.establish(opened(table, now=next_at, job=99), next_at)
    assert not table.has_room("a")
    table.limit(lambda _: ConnectionLimits())
    assert table.has_room("a")


def test_an_active_connection_that_is_too_old_gets_no_more_jobs() -> None:
    """Source: SC-22."""
    table = Destinations(RULES)
    connection = opened(table, now=0)
    assert table.aged(299) == []
    assert table.find("a").newest_active(Precedence.BULK, None) is connection  # type: ignore[union-attr]
    assert table.aged(300) == [connection]
    assert connection.is_retiring
    assert standing(table) is Standing.CLOSED
    assert table.slowed(300) == ["a"]
    assert table.next_moment() is None


def test_a_connection_closes_after_its_last_job() -> None:
    table = Destinations(SchedulerRules(jobs_per_connection=2))
    connection = opened(table)
    assert not connection.is_retiring
    table.assign(connection, 2, Precedence.BULK, 0)
    assert connection.is_retiring


def test_connections_that_could_have_jobs_are_those_not_open_and_the_idle_ones() -> None:
    """Source: AMB-16."""
    table = Destinations(SchedulerRules(connections=3))
    first, second = opened(table, job=1), opened(table, job=2)
    assert table.free == 1
    table.finish(second, 2, now=1)
    table.finish(first, 1, now=2)
    assert table.free == 3
    assert table.least_used() is second
    table.assign(second, 3, Precedence.BULK, 0)
    assert table.least_used() is first


@pytest.mark.parametrize("kept", [0, 100])
def test_records_of_closed_and_broken_destinations_can_be_left_out(kept: float) -> None:
    """Source: SC-24."""
    table = Destinations(SchedulerRules(remember_closed=kept, remember_broken=kept))
    connection = opened(table)
    table.finish(connection, 1, now=0)
    table.close(connection, now=0)
    table.end_backoffs(0)
    assert standing(table) is (Standing.CLOSED if kept else Standing.UNUSED)
    table.fail("a", 0)
    table.end_backoffs(15)
    assert standing(table) is (Standing.DUE if kept else Standing.UNUSED)


def test_a_destination_of_which_another_process_was_heard_is_forgotten_too() -> None:
    table = Destinations(RULES)
    connection = opened(table)
    table.finish(connection, 1, now=0)
    table.back_off("a", until=20)
    assert table.end_backoffs(20) == ["a"]
    table.close(connection, now=30)
    assert standing(table) is Standing.DUE
    assert table.end_backoffs(530) == ["a"]
    assert table.find("a") is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"connections": 0},
        {"backlog": 0},
        {"backlog": 3, "longest_queue": 2},
        {"idle": 0},
        {"first_connect": 0},
        {"overdue_after": 0},
        {"overdue_share": -1},
    ],
)
def test_rules_that_cannot_be_followed_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidSettings):
        SchedulerRules(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("tiers", [(), ((),), (("a",), ())])
def test_a_site_has_destinations_in_every_tier(tiers: tuple[tuple[str, ...], ...]) -> None:
    with pytest.raises(InvalidInput):
        Site(tiers)


def test_a_destination_that_is_forgiven_is_tried_at_once_and_rests_for_a_short_time_again() -> None:
    known = Destinations(SchedulerRules())
    for _ in range(3):
        until = known.fail("h", 0.0)
        known.end_backoffs(until or 0.0)
    known.fail("h", 1000.0)
    assert not known.has_room("h")
    known.forgive("h", 1000.0)

    assert known.has_room("h")
    assert standing(known, "h") is Standing.UNUSED
    assert known.fail("h", 2000.0) == 2015.0
    known.forgive("nothing is known of it", 2000.0)


def test_a_destination_with_connections_is_forgiven_and_kept() -> None:
    known = Destinations(SchedulerRules())
    connection = known.open("h", 0.0)
    known.establish(connection, 0)
    known.fail("h", 1.0)
    known.forgive("h", 1.0)

    assert known.has_room("h")
    assert known.next_moment() is None, "its backoff is over"
    found = known.find("h")
    assert found is not None
    assert (found.connections, found.established) == (1, 1)
    known.close(connection, 5.0)
    assert known.end_backoffs(5000.0) == ["h"]
