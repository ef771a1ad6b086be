"""Timestamps are the view's time, whatever the local clock shows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from postroad.adapters.cassandra.clocks import Timestamps
from postroad.domain.values.instants import AgreedTime

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NOON_US = int(NOON.timestamp()) * 1_000_000
MS = 1_000_000
"""In nanoseconds."""


def learn(
    timestamps: Timestamps, before_ns: int, theirs: datetime, after_ns: int, votes: int = 1
) -> None:
    """Let the view's time have been `theirs` at some moment between two others."""
    doubt = timedelta(microseconds=(after_ns - before_ns) // 2000)
    timestamps.learn((before_ns + after_ns) // 2, AgreedTime(theirs, doubt, votes, ()))


class Hand:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.ns = 0

    def __call__(self) -> int:
        return self.ns


@pytest.fixture
def hand() -> Hand:
    return Hand()


@pytest.fixture
def timestamps(hand: Hand) -> Timestamps:
    return Timestamps(hand)


def test_a_timestamp_is_the_views_time(hand: Hand, timestamps: Timestamps) -> None:
    learn(timestamps, 0, NOON, 4 * MS)  # it was noon in the middle

    hand.ns = 1002 * MS

    assert abs(timestamps.now_us() - (NOON_US + 1_000_000)) <= 1000


def test_timestamps_only_grow(hand: Hand, timestamps: Timestamps) -> None:
    learn(timestamps, 0, NOON, 4 * MS)
    hand.ns = 10 * MS
    found = [timestamps.now_us() for _ in range(3)]

    learn(timestamps, 9 * MS, NOON - timedelta(seconds=2), 10 * MS)  # their clock was set back
    found += [timestamps.now_us() for _ in range(3)]

    assert found == sorted(set(found))


def test_one_host_with_a_wrong_clock_is_not_believed(hand: Hand, timestamps: Timestamps) -> None:
    """What is written by a clock far ahead wins over everything that is written after it."""
    learn(timestamps, 0, NOON, MS)
    right, wrong = NOON, NOON + timedelta(hours=1)

    for theirs in (wrong, wrong, right, wrong, NOON - timedelta(hours=1), wrong):
        learn(timestamps, 0, theirs, MS)

    assert abs(timestamps.now_us() - NOON_US) <= 2000


def test_what_is_read_three_times_is_believed_however_far_it_is(
    hand: Hand, timestamps: Timestamps
) -> None:
    """Cassandra's clocks were set, or ours stood still."""
    learn(timestamps, 0, NOON, MS)

    for _ in range(3):
        learn(timestamps, 0, NOON + timedelta(hours=1), 4 * MS)

    assert abs(timestamps.now_us() - (NOON_US + 3600 * 1_000_000)) <= 3000


def test_what_two_hosts_agree_on_is_believed_at_once(hand: Hand, timestamps: Timestamps) -> None:
    """Our own clock stood still: a virtual machine that its hypervisor paused."""
    learn(timestamps, 0, NOON, MS)

    learn(timestamps, 0, NOON + timedelta(hours=1), MS, votes=2)

    assert abs(timestamps.now_us() - (NOON_US + 3600 * 1_000_000)) <= 2000


def test_a_clock_that_is_not_believed_is_logged(
    timestamps: Timestamps, caplog: pytest.LogCaptureFixture
) -> None:
    learn(timestamps, 0, NOON, MS)

    learn(timestamps, 0, NOON + timedelta(hours=1), MS)

    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert record.__dict__["seconds"] == 3600


def test_a_slow_answer_says_less_than_a_quick_one_before(
    hand: Hand, timestamps: Timestamps
) -> None:
    learn(timestamps, 0, NOON, MS)
    before = timestamps.now_us()

    learn(timestamps, MS, NOON + timedelta(seconds=3), 4000 * MS)

    assert timestamps.now_us() - before <= 1000


def test_with_time_a_slow_answer_says_more_than_an_old_one(
    hand: Hand, timestamps: Timestamps
) -> None:
    day = 24 * 60 * 60 * 1000 * MS
    learn(timestamps, 0, NOON, MS)

    learn(timestamps, day, NOON + timedelta(days=1, seconds=1), day + 2 * MS)  # they drifted

    hand.ns = day
    assert abs(timestamps.now_us() - (NOON_US + 86_401_000_000)) <= 2000


def test_what_is_left_to_the_server_gets_no_timestamp(timestamps: Timestamps) -> None:
    learn(timestamps, 0, NOON, MS)

    with timestamps.left_to_the_server(True):
        assert timestamps() is None

    with timestamps.left_to_the_server(False):
        assert timestamps() is not None
    assert timestamps() is not None
