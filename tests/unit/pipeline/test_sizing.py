"""Known rates give known advice."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from postroad.domain.configuration.advice import SliceCount
from postroad.domain.configuration.rules import ViewConfiguration, refusal_of
from postroad.domain.values.instants import parse_duration
from postroad.pipeline.results.lines import AdviceLine, sizing

NOON, HOUR = datetime(2026, 3, 2, 12, tzinfo=UTC), timedelta(hours=1)
PRESENT = ViewConfiguration(HOUR, 3, 1000)


def slices(*rows: int, window: timedelta = HOUR) -> list[SliceCount]:
    return [SliceCount(NOON + place * window, window, each) for place, each in enumerate(rows)]


def advised(found: tuple[AdviceLine, ...]) -> list[str]:
    return [each.advised for each in found]


def two_days(usual: int, busiest: int) -> list[SliceCount]:
    return slices(*[usual] * 30, busiest, *[usual] * 17)


def test_sixty_thousand_mails_in_the_busiest_hour_take_slices_of_ten_minutes() -> None:
    window, buckets, pace = sizing(PRESENT, two_days(30_000, 60_000), hosts=5, row_bytes=600)

    assert advised((window, buckets, pace)) == ["10m", "5", "1000"]
    assert (window.field, window.present) == ("sliceWindow", "1h")
    assert "60,000 rows in 1h" in window.reason
    assert "5 hosts" in buckets.reason
    assert "5,000 rows" in pace.reason


def test_the_order_of_the_slices_does_not_matter() -> None:
    counts = two_days(30_000, 60_000)

    assert sizing(PRESENT, counts[::-1], 3, None) == sizing(PRESENT, counts, 3, None)


@pytest.mark.parametrize(
    ("present", "usual", "expected"),
    [
        (1000, 9_000, "1000"),  # nine updates a slice
        (1000, 500, "1000"),  # one in two slices
        (1000, 499, "500"),
        (1000, 14_000, "10000"),
        (10, 9_000, "9000"),
        (1000, 3, "3"),
        (1000, 1, "1"),
    ],
)
def test_the_pace_follows_from_the_median_slice(present: int, usual: int, expected: str) -> None:
    configuration = ViewConfiguration(HOUR, 3, present)

    (*_, pace) = sizing(configuration, two_days(usual, max(usual, 12_000)), 3, None)

    assert pace.advised == expected


def test_without_slices_all_is_kept() -> None:
    found = sizing(PRESENT, [], hosts=3, row_bytes=None)

    assert [each.advised for each in found] == [each.present for each in found]
    assert all("too little history" in each.reason for each in (found[0], found[2]))


def test_what_is_advised_is_allowed() -> None:
    for rows in (1, 999, 25_000, 10**6, 10**9):
        window, buckets, pace = advised(sizing(PRESENT, two_days(rows, 2 * rows), 7, 500))
        wanted = ViewConfiguration(parse_duration(window), int(buckets), int(pace))
        assert refusal_of(PRESENT, wanted) is None
