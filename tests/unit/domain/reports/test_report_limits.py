"""An address gets a minute's reports at once, then one after the other, and no more than an hour's
of those wait."""

from datetime import timedelta

import pytest

from postroad.domain.reports.deciding import MAX_ADDRESSES, MAX_WAIT, ReportLimit

SECOND = timedelta(seconds=1)
START = 1000 * SECOND
A = "a@x.example"


def test_the_reports_of_a_minute_go_at_once_and_the_others_evenly_spread() -> None:
    limit = ReportLimit(6)

    waits = [limit.wait_of(A, START) for _ in range(9)]

    assert waits == [*[0 * SECOND] * 6, 10 * SECOND, 20 * SECOND, 30 * SECOND]
    assert limit.wait_of(A, START + 40 * SECOND) == 0 * SECOND
    assert limit.wait_of(A, START + 40 * SECOND) == 10 * SECOND


def test_a_report_that_would_wait_too_long_is_not_sent_and_not_counted() -> None:
    limit = ReportLimit(1)
    hour = MAX_WAIT // timedelta(minutes=1)

    waits = [limit.wait_of(A, START) for _ in range(hour + 5)]

    assert waits[hour] == MAX_WAIT
    assert waits[hour + 1 :] == [None] * 4
    assert limit.wait_of(A, START + timedelta(minutes=1)) == MAX_WAIT


def test_a_report_that_is_given_back_is_not_counted() -> None:
    limit = ReportLimit(1)
    for _ in range(100):
        assert limit.wait_of(A, START) == timedelta(0)
        limit.give_back("A@X.example")

    limit.give_back("b@x.example")
    assert limit.wait_of(A, START) == timedelta(0)
    assert limit.wait_of(A, START) == timedelta(minutes=1)


def test_addresses_do_not_share_a_limit_and_their_case_does_not_matter() -> None:
    limit = ReportLimit(1)

    assert limit.wait_of(A, START) == timedelta(0)
    assert limit.wait_of("b@x.example", START) == timedelta(0)
    assert limit.wait_of("A@X.example", START) == timedelta(minutes=1)


@pytest.mark.parametrize("later", [0, 1, 59])
def test_memory_is_bounded_and_keeps_the_addresses_with_the_latest_reports(later: int) -> None:
    limit = ReportLimit(1)
    for number in range(MAX_ADDRESSES):
        limit.wait_of(f"{number}@x.example", START)

    assert limit.wait_of("one-more@x.example", START + later * SECOND) == timedelta(0)
    assert limit.wait_of("0@x.example", START + later * SECOND) == timedelta(0)  # forgotten
    last = limit.wait_of(f"{MAX_ADDRESSES - 1}@x.example", START + later * SECOND)
    assert last == timedelta(seconds=60 - later)
