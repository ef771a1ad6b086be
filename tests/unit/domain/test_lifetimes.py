"""Row lifetimes, compaction windows and gc_grace over the queues of a cluster."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.domain.queues.lifetimes import lifetimes_of
from postroad.errors import ConfigurationRefused

DAY, HOUR, MINUTE = timedelta(days=1), timedelta(hours=1), timedelta(minutes=1)


@pytest.mark.parametrize(
    ("row_lifetime", "slice_windows", "compaction_window", "gc_grace"),
    [
        (14 * DAY, [HOUR], 12 * HOUR, 3 * HOUR),
        (14 * DAY, [HOUR, 12 * HOUR], 12 * HOUR, 3 * HOUR),
        (14 * DAY, [DAY], DAY, 3 * HOUR),
        (90 * DAY, [HOUR], 3 * DAY, 3 * HOUR),
        (10 * HOUR, [timedelta(seconds=1)], 20 * MINUTE, timedelta(hours=2.5)),
        (8.5 * HOUR, [timedelta(seconds=1)], 17 * MINUTE, timedelta(hours=2.125)),
        (10 * HOUR, [HOUR], HOUR, timedelta(hours=2.5)),
        (9 * HOUR, [], HOUR, timedelta(hours=2.25)),
        (14 * DAY, [60 * HOUR], 3 * DAY, 3 * HOUR),
        (10 * HOUR, [150 * MINUTE], 3 * HOUR, timedelta(hours=2.5)),
    ],
    ids=[
        "the default",
        "several queues",
        "long slices",
        "a long lifetime",
        "short slices",
        "an odd number of minutes",
        "a short lifetime",
        "no queue yet",
        "between two days and three",
        "between two hours and three",
    ],
)
def test_files_are_cut_into_about_thirty_windows_of_at_least_one_slice(
    row_lifetime: timedelta,
    slice_windows: list[timedelta],
    compaction_window: timedelta,
    gc_grace: timedelta,
) -> None:
    found = lifetimes_of(row_lifetime, slice_windows, 4 * HOUR)

    assert found.row_lifetime == row_lifetime
    assert found.compaction_window == compaction_window
    assert found.gc_grace == gc_grace


@pytest.mark.parametrize(
    ("row_lifetime", "slice_window", "longest_retry_step", "shortest"),
    [(8 * HOUR, MINUTE, 4 * HOUR, "8:00:01"), (3 * HOUR, HOUR, MINUTE, "4:00:00")],
    ids=["twice the retry step", "three slices"],
)
def test_a_lifetime_in_which_a_waiting_mail_could_expire_is_refused(
    row_lifetime: timedelta, slice_window: timedelta, longest_retry_step: timedelta, shortest: str
) -> None:
    with pytest.raises(ConfigurationRefused) as refused:
        lifetimes_of(row_lifetime, [slice_window], longest_retry_step)

    assert f"at least {shortest}:" in refused.value.hint


@given(
    row_lifetime=st.timedeltas(min_value=timedelta(hours=9), max_value=timedelta(days=400)),
    slice_seconds=st.integers(1, 8000),
)
def test_a_window_is_whole_units_and_holds_a_slice(
    row_lifetime: timedelta, slice_seconds: int
) -> None:
    window = lifetimes_of(
        row_lifetime, [timedelta(seconds=slice_seconds)], 4 * HOUR
    ).compaction_window

    assert window >= timedelta(seconds=slice_seconds)
    assert window >= row_lifetime / 30
    assert window % MINUTE == timedelta(0)
    assert window < 2 * HOUR or window % HOUR == timedelta(0)
    assert window < 2 * DAY or window % DAY == timedelta(0)
