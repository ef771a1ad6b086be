from datetime import UTC, datetime, timedelta
from itertools import pairwise
from random import Random
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.domain.queues.entries import EntryKey, bucket_of, place, slice_of, slices_between
from postroad.domain.values.identifiers import id_at

MOMENTS = st.integers(0, 2**32).map(
    lambda n: datetime(1971, 1, 1, tzinfo=UTC) + n * timedelta(seconds=1.5)
)
WINDOWS = st.integers(1, 7 * 86400).map(lambda seconds: timedelta(seconds=seconds))


@given(MOMENTS, WINDOWS)
def test_a_moment_lies_in_its_slice(moment: datetime, window: timedelta) -> None:
    start = slice_of(moment, window)

    assert start <= moment < start + window
    assert slice_of(start, window) == start


@given(MOMENTS, WINDOWS, st.integers(1, 60))
def test_a_dividing_window_puts_a_mail_in_a_slice_inside_its_old_one(
    moment: datetime, window: timedelta, parts: int
) -> None:
    coarse = window * parts

    assert slice_of(slice_of(moment, window), coarse) == slice_of(moment, coarse)


@given(MOMENTS, WINDOWS, st.integers(0, 50))
def test_slices_between_follow_each_other_without_a_gap(
    moment: datetime, window: timedelta, count: int
) -> None:
    starts = list(slices_between(moment, moment + count * window, window))

    assert len(starts) == count + 1
    assert all(later - earlier == window for earlier, later in pairwise(starts))


def test_no_slice_lies_between_a_moment_and_an_earlier_one() -> None:
    moment = datetime(2026, 1, 1, 12, tzinfo=UTC)

    assert list(slices_between(moment, moment - timedelta(hours=2), timedelta(hours=1))) == []


@pytest.mark.parametrize("bucket_count", [1, 2, 3, 7, 64])
def test_buckets_are_evenly_filled(bucket_count: int) -> None:
    random = Random(7)
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    ids = [id_at(moment, n & 0xFFF, random.getrandbits(62)) for n in range(10_000)]

    found = [bucket_of(each, bucket_count) for each in ids]

    expected = len(ids) / bucket_count
    assert set(found) == set(range(bucket_count))
    assert all(0.6 < found.count(b) / expected < 1.4 for b in range(bucket_count))


def test_the_place_of_an_id_never_changes() -> None:
    identifier = UUID("01935b8c-9a00-7abc-8123-456789abcdef")

    assert place(identifier, timedelta(hours=1), 5) == EntryKey(
        datetime(2024, 11, 24, 0, tzinfo=UTC), 0, identifier
    )
