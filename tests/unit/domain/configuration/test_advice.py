"""Which window and how many buckets are advised, from what was counted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.domain.configuration.advice import Seen, SliceCount, advise
from postroad.domain.configuration.rules import ViewConfiguration, refusal_of
from postroad.domain.values.instants import format_duration

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def seen(
    *rows: int, hosts: int = 3, window: timedelta = HOUR, row_bytes: int | None = None
) -> Seen:
    """Closed slices in a row that had so many rows each."""
    found = Seen(hosts=hosts, row_bytes=row_bytes)
    for number, count in enumerate(rows):
        found = found.with_slice(SliceCount(NOON + number * window, window, count))
    return found


@pytest.mark.parametrize(
    ("rows", "window"),
    [
        pytest.param(1, "1h", id="nearly nothing"),
        pytest.param(10_000, "1h", id="the aim"),
        pytest.param(14_000, "1h", id="half would be further from the aim"),
        pytest.param(15_000, "30m", id="half is nearer"),
        pytest.param(20_000, "30m", id="twice"),
        pytest.param(60_000, "10m", id="six times"),
        pytest.param(360_000, "1m40s", id="a hundred mails a second"),
        pytest.param(10**9, "1s", id="more than any window holds"),
    ],
)
def test_the_busiest_slice_is_to_hold_about_ten_thousand_rows(rows: int, window: str) -> None:
    advice = advise(ViewConfiguration(HOUR, 3), seen(1, rows, *[1] * 24))

    assert format_duration(advice.configuration.slice_window) == window
    assert f"held {rows:,} rows in 1h" in advice.window_reason
    assert "too little history" not in advice.window_reason


def test_slices_of_longer_windows_before_a_change_are_judged_by_their_rate() -> None:
    advice = advise(ViewConfiguration(HOUR / 2, 3), seen(60_000, 1))

    assert format_duration(advice.configuration.slice_window) == "10m"
    assert "held 60,000 rows in 1h; at its rate 10m holds about 10,000" in advice.window_reason


def test_the_busiest_slice_is_that_of_the_highest_rate() -> None:
    found = seen(15_000).with_slice(SliceCount(NOON + HOUR, HOUR / 4, 10_000))

    advice = advise(ViewConfiguration(HOUR / 4, 3), found)

    assert found.busiest == SliceCount(NOON + HOUR, HOUR / 4, 10_000)
    assert advice.configuration.slice_window == HOUR / 4


@pytest.mark.parametrize("window", [HOUR, timedelta(minutes=7), timedelta(seconds=1)])
def test_without_any_slice_the_window_stays(window: timedelta) -> None:
    advice = advise(ViewConfiguration(window, 1), Seen(hosts=3))

    assert advice.configuration == ViewConfiguration(window, 3)
    assert "too little history" in advice.window_reason


@pytest.mark.parametrize(("slices", "is_enough"), [(1, False), (23, False), (24, True)])
def test_less_than_a_day_is_too_little_history(slices: int, is_enough: bool) -> None:
    found = seen(*[20_000] * slices)

    assert found.is_enough == is_enough
    advice = advise(ViewConfiguration(HOUR, 3), found)
    assert ("too little history" in advice.window_reason) != is_enough
    assert advice.configuration.slice_window == HOUR / 2


def test_quiet_days_between_busy_slices_are_history_too() -> None:
    found = seen(5).with_slice(SliceCount(NOON + 3 * 24 * HOUR, HOUR, 5))

    assert found.is_enough
    assert (found.slices, found.since, found.until) == (2, NOON, NOON + 73 * HOUR)


def test_a_window_that_is_too_short_stays_because_none_may_grow() -> None:
    advice = advise(ViewConfiguration(HOUR, 3), seen(*[100] * 30))

    assert advice.configuration.slice_window == HOUR
    assert "a window cannot grow" in advice.window_reason


@pytest.mark.parametrize(
    ("present", "hosts", "buckets", "reason"),
    [
        (1, 3, 3, "Cassandra has 3 hosts; as many buckets spread a slice over all of them"),
        (3, 3, 3, "Cassandra has 3 hosts"),
        (1, 1, 1, "Cassandra has 1 host"),
        (6, 3, 6, "Cassandra has 3 hosts; buckets cannot become fewer"),
        (1, 5000, 1024, "Cassandra has 5000 hosts; as many buckets"),
    ],
)
def test_there_are_as_many_buckets_as_hosts(
    present: int, hosts: int, buckets: int, reason: str
) -> None:
    advice = advise(ViewConfiguration(HOUR, present), seen(100, hosts=hosts))

    assert advice.configuration.bucket_count == buckets
    assert advice.buckets_reason.startswith(reason)


@pytest.mark.parametrize(
    ("rows", "row_bytes", "buckets"),
    [
        pytest.param(10_000, 1_000, 1, id="10 MB"),
        pytest.param(10_000, 10_000, 1, id="100 MB"),
        pytest.param(10_000, 25_000, 3, id="250 MB"),
        pytest.param(20_000, 25_000, 3, id="the advised window counts, not the present one"),
        pytest.param(10_000, None, 1, id="size not known"),
    ],
)
def test_a_partition_stays_under_a_hundred_megabytes(
    rows: int, row_bytes: int | None, buckets: int
) -> None:
    advice = advise(ViewConfiguration(HOUR, 1), seen(rows, hosts=1, row_bytes=row_bytes))

    assert advice.configuration.bucket_count == buckets
    assert ("100 MB" in advice.buckets_reason) == (buckets > 1)


def test_a_partition_stays_under_a_hundred_thousand_rows_where_no_window_is_shorter() -> None:
    second = timedelta(seconds=1)

    advice = advise(ViewConfiguration(second, 1), seen(250_000, hosts=1, window=second))

    assert advice.configuration == ViewConfiguration(second, 3)
    assert "250,000 rows in 1s take 3 buckets" in advice.buckets_reason


seconds = st.integers(1, 10**6).map(lambda each: timedelta(seconds=each))
counts = st.builds(
    SliceCount,
    st.integers(0, 10**6).map(lambda each: NOON + each * HOUR),
    seconds,
    st.integers(0, 10**9),
)


@given(
    present=st.builds(ViewConfiguration, seconds, st.integers(1, 2000), st.integers(1, 10**6)),
    slices=st.lists(counts),
    hosts=st.integers(0, 2000),
    row_bytes=st.none() | st.integers(1, 10**9),
)
def test_what_is_advised_is_always_allowed_and_settles(
    present: ViewConfiguration, slices: list[SliceCount], hosts: int, row_bytes: int | None
) -> None:
    found = Seen(hosts=hosts, row_bytes=row_bytes)
    for each in sorted(slices, key=lambda each: each.start):
        found = found.with_slice(each)

    advised = advise(present, found).configuration

    assert refusal_of(present, advised) is None
    assert advised.update_browse_start_pace == present.update_browse_start_pace
    assert advised.bucket_count <= max(present.bucket_count, 1024)
    assert advise(advised, found).configuration == advised
