"""Limits by rate are even, and never exceeded by more than their burst and their slack."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.domain.delivery.paces import Paces, Rate
from postroad.errors import InvalidSettings


def test_a_mail_goes_each_interval_and_a_burst_at_once() -> None:
    paces, rate, gone = Paces(0.0), Rate(60, 3), []
    for tenth in range(100):
        now = 100 + tenth / 10
        while paces.wait("a", rate, now) <= 1e-9:
            paces.take("a", rate, now)
            gone.append(now - 100)

    assert gone[:3] == [0, 0, 0]
    assert gone[3:] == pytest.approx([1, 2, 3, 4, 5, 6, 7, 8, 9])


def test_what_was_forgotten_begins_anew() -> None:
    paces, rate = Paces(0.0), Rate(60)
    paces.take("a", rate, 0.0)
    paces.forget(0.5)
    assert paces.wait("a", rate, 0.5) == pytest.approx(0.5)
    paces.forget(1.0)
    assert paces.wait("a", rate, 1.0) <= 0
    assert paces.wait("b", rate, 1.0) <= 0


@pytest.mark.parametrize(("per_minute", "burst"), [(0, 1), (-1, 1), (1, 0)])
def test_a_limit_is_above_zero(per_minute: float, burst: int) -> None:
    with pytest.raises(InvalidSettings):
        Rate(per_minute, burst)


def test_shares_make_the_whole() -> None:
    assert Rate(60, 10).shared_by(3) == Rate(20, 3)
    assert Rate(60, 2).shared_by(3) == Rate(20, 1)


@given(
    st.integers(1, 3000),
    st.integers(1, 20),
    st.lists(st.floats(0, 30), min_size=1, max_size=200),
)
def test_no_stretch_of_time_has_more_than_rate_and_burst(
    per_minute: int, burst: int, pauses: list[float]
) -> None:
    paces, rate, now, gone = Paces(1.0), Rate(per_minute, burst), 0.0, list[float]()
    for pause in pauses:
        now += pause
        for _ in range(1000):
            if paces.wait("a", rate, now) > 0:
                break
            paces.take("a", rate, now)
            gone.append(now)

    for first in range(0, len(gone), max(1, len(gone) // 20)):
        for last in range(first, len(gone), max(1, len(gone) // 20)):
            allowed = (gone[last] - gone[first] + 1.0) / rate.interval + burst
            assert last - first + 1 <= allowed + 1e-6
