"""What the archive reads again, what is final, and how gaps are named."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.domain.queues.entries import Partition
from postroad.pipeline.archive.planning import (
    ArchivedPartition,
    Gap,
    ReadCounts,
    after_reading,
    archived_through,
    merged,
    new_gaps,
    to_ask,
    without_reading,
)
from postroad.ports.marks import PartitionVersion
from postroad.ports.view import ClosedSlice, Limits

START, HOUR = datetime(2026, 1, 1, tzinfo=UTC), timedelta(hours=1)
PARTITION = Partition(START, 0)
CLOSED = ClosedSlice(START, HOUR, {0: 3})
DRAINED = replace(CLOSED, drained=True)
VERSION = PartitionVersion(delivered=START + HOUR)
HAD = ArchivedPartition(PARTITION, VERSION, HOUR)
LATER = START + 9 * HOUR
NOT_PASSED, PASSED = Limits(START, START), Limits(START + HOUR, START)


def at(hour: int) -> datetime:
    return START + hour * HOUR


def test_partitions_with_rows_are_asked_until_they_are_final() -> None:
    closed = [ClosedSlice(at(hour), HOUR, {2: 1, 0: 4}) for hour in range(2)]
    final = ArchivedPartition(Partition(at(0), 2), VERSION, HOUR, is_final=True)

    assert to_ask(closed, {}) == [Partition(at(hour), each) for hour in range(2) for each in (0, 2)]
    assert to_ask(closed, {final.partition: final}) == [
        Partition(at(0), 0), Partition(at(1), 0), Partition(at(1), 2),
    ]  # fmt: skip


SETTLED = replace(HAD, is_settled=True, is_over=True)


@pytest.mark.parametrize(
    ("had", "closed", "version", "found"),
    [
        (None, CLOSED, VERSION, None),
        (replace(SETTLED, is_settled=False), CLOSED, VERSION, None),
        (SETTLED, CLOSED, replace(VERSION, ended=LATER), None),
        (SETTLED, CLOSED, VERSION, SETTLED),
        (SETTLED, DRAINED, VERSION, replace(SETTLED, is_final=True)),
        (replace(SETTLED, is_over=False), CLOSED, VERSION, replace(SETTLED, is_over=False)),
        (replace(SETTLED, is_over=False), DRAINED, VERSION, None),
    ],
)
def test_a_partition_is_read_again_unless_it_cannot_have_changed(
    had: ArchivedPartition | None,
    closed: ClosedSlice,
    version: PartitionVersion,
    found: ArchivedPartition | None,
) -> None:
    assert without_reading(had, closed, version) == found


@pytest.mark.parametrize(
    ("closed", "counts", "limits", "found"),
    [
        (CLOSED, ReadCounts(3, 1, 0), NOT_PASSED, replace(HAD, is_settled=True)),
        (CLOSED, ReadCounts(4, 0, 0, 1), NOT_PASSED, SETTLED),
        (CLOSED, ReadCounts(3, 1, 1), NOT_PASSED, HAD),
        (CLOSED, ReadCounts(2, 0, 0), NOT_PASSED, None),
        (CLOSED, ReadCounts(3, 0, 0), PASSED, None),
        (DRAINED, ReadCounts(3, 0, 0), PASSED, replace(SETTLED, is_final=True)),
        (DRAINED, ReadCounts(3, 1, 0), PASSED, None),
        (DRAINED, ReadCounts(2, 0, 0), PASSED, None),
    ],
)
def test_a_reading_is_kept_unless_cleanup_may_have_overtaken_it(
    closed: ClosedSlice, counts: ReadCounts, limits: Limits, found: ArchivedPartition | None
) -> None:
    if found is not None:
        found = replace(found, rows=counts.rows, undecodable=counts.undecodable)
    assert after_reading(HAD, closed, counts, limits, LATER) == found


def test_a_version_that_is_younger_than_clocks_differ_is_not_settled() -> None:
    found = after_reading(HAD, CLOSED, ReadCounts(3, 0, 0), NOT_PASSED, START + HOUR)

    assert found is not None
    assert not found.is_settled


def test_the_archive_has_come_to_the_first_slice_that_is_not_final() -> None:
    closed = [ClosedSlice(at(hour), HOUR, {0: 1}) for hour in (1, 3, 5)]
    final = {Partition(at(1), 0), Partition(at(5), 0)}

    assert archived_through(Limits(at(9), at(0)), closed, final) == at(3)
    assert archived_through(Limits(at(2), at(0)), closed, final) == at(2)
    assert archived_through(Limits(at(9), at(0)), [], final) == at(9)
    assert archived_through(Limits(None, None), [], ()) is None


@given(
    cleaned=st.lists(st.booleans(), min_size=1, max_size=24),
    first=st.integers(0, 24),
    content=st.integers(0, 24),
)
def test_gaps_are_the_cleaned_hours_that_are_not_final(
    cleaned: list[bool], first: int, content: int
) -> None:
    archived = [
        ArchivedPartition(Partition(at(hour), bucket), VERSION, HOUR, is_final=final or bucket == 1)
        for hour, final in enumerate(cleaned)
        for bucket in range(2)
    ]
    limits = Limits(at(30), at(content), at(first))

    gaps = new_gaps(limits, [], archived, step=HOUR, waits=True)

    final = {hour for hour, each in enumerate(cleaned) if each}
    assert [
        hour for hour in range(48) if any(gap.first <= at(hour) < gap.before for gap in gaps)
    ] == [hour for hour in range(first, content) if hour not in final]


def test_a_cleanup_under_way_has_passed_what_has_no_record_any_more() -> None:
    limits = Limits(at(9), at(1), at(2))
    left = [ClosedSlice(at(hour), HOUR, {0: 1}) for hour in (5, 6)]

    assert new_gaps(limits, left, [], step=HOUR, waits=True) == ()
    assert new_gaps(limits, left, [], step=HOUR, waits=False) == (Gap(at(2), at(5)),)
    assert new_gaps(limits, [], [], step=HOUR, waits=False) == (Gap(at(2), at(9)),)
    assert new_gaps(Limits(at(9), at(8)), [], [], step=HOUR, waits=False) == ()


def test_gaps_that_meet_are_one() -> None:
    gaps = [Gap(at(4), at(6)), Gap(at(0), at(2)), Gap(at(2), at(3)), Gap(at(1), at(2))]

    assert merged(gaps) == (Gap(at(0), at(3)), Gap(at(4), at(6)))
