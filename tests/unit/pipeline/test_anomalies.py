"""Anomalies: shares that grew by more than chance, and by enough to matter."""

from __future__ import annotations

import pytest

from postroad.pipeline.results.lines import Anomaly, Tally, anomalies


def found_in(now: Tally, before: Tally, **classes: tuple[int, int]) -> tuple[Anomaly, ...]:
    return anomalies(
        now,
        {name: count for name, (count, _) in classes.items()},
        before,
        {name: count for name, (_, count) in classes.items()},
    )


def test_refusals_that_doubled_are_an_anomaly() -> None:
    found = found_in(Tally(800, 150, 50), Tally(9000, 500, 500))

    assert found == (Anomaly("refused", 0.2, 0.1),)


@pytest.mark.parametrize(
    ("now", "before"),
    [
        (Tally(810, 190), Tally(9000, 1000)),  # much more, and not twice as much
        (Tally(900, 100), Tally(7000, 3000)),  # less
        (Tally(17, 3), Tally(95, 5)),  # chance
        (Tally(9, 10), Tally(10_000)),  # too few
        (Tally(10_000, 10_000), Tally(19)),  # too few before
        (Tally(1000), Tally(1000)),
        (Tally(0, 1000), Tally(0, 1000)),
    ],
)
def test_what_is_in_line(now: Tally, before: Tally) -> None:
    assert found_in(now, before) == ()


def test_a_destination_that_refuses_all_where_it_took_half_is_an_anomaly() -> None:
    assert found_in(Tally(1, 99), Tally(450, 550)) == (Anomaly("refused", 0.99, 0.55),)


def test_a_class_can_grow_where_the_refusals_do_not() -> None:
    found = found_in(
        Tally(500, 0, 500), Tally(5000, 0, 5000), blocked=(400, 0), content=(100, 5000)
    )

    assert found == (Anomaly("blocked", 0.4, 0.0),)


def test_an_anomaly_as_people_read_it() -> None:
    assert str(Anomaly("blocked", 0.4, 0.012)) == "blocked 40.0% (before: 1.2%)"
