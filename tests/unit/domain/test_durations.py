from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.domain.values.instants import (
    format_duration,
    parse_duration,
    parse_moment,
    parse_period,
)
from postroad.errors import InvalidInput


@given(st.integers(0, 10**9).map(lambda seconds: timedelta(seconds=seconds)))
def test_what_was_written_is_read_back(duration: timedelta) -> None:
    assert parse_duration(format_duration(duration)) == duration


@pytest.mark.parametrize(
    "text", ["", "h", "1", "1d", "1.5h", "-1h", "1h 30m", "30m1h", "1H", "9" * 30 + "h"]
)
def test_what_is_no_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_duration(text)


def test_sixty_minutes_are_written_as_an_hour() -> None:
    assert format_duration(parse_duration("60m")) == "1h"


@pytest.mark.parametrize(
    ("text", "hours"), [("4d", 96), ("1d12h", 36), ("2h", 2), ("0d", 0), ("999999d", 23999976)]
)
def test_a_period_may_begin_with_days(text: str, hours: int) -> None:
    assert parse_period(text) == timedelta(hours=hours)


@pytest.mark.parametrize("text", ["", "d", "1.5d", "-1d", "4dd", "4d1d", "9999999d", "4 d", "4d x"])
def test_what_is_no_period_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_period(text)


NOW = datetime(2026, 11, 27, 9, 30, 15, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("now", NOW),
        ("today", datetime(2026, 11, 27, tzinfo=UTC)),
        ("yesterday", datetime(2026, 11, 26, tzinfo=UTC)),
        ("2026-11-26", datetime(2026, 11, 26, tzinfo=UTC)),
        ("2026-11-26T10:00", datetime(2026, 11, 26, 10, tzinfo=UTC)),
        ("2026-11-26T10:00:00+02:00", datetime(2026, 11, 26, 8, tzinfo=UTC)),
        ("2026-11-26T10:00Z", datetime(2026, 11, 26, 10, tzinfo=UTC)),
        ("36h", datetime(2026, 11, 25, 21, 30, 15, tzinfo=UTC)),
        ("4d", datetime(2026, 11, 23, 9, 30, 15, tzinfo=UTC)),
    ],
)
def test_a_moment_is_read_as_people_write_it(text: str, moment: datetime) -> None:
    assert parse_moment(text, NOW) == moment


@pytest.mark.parametrize(
    "text", ["", "soon", "2026-13-01", "-4d", "999999d", "4", "0001-01-01T00:00:00+14:00"]
)
def test_what_is_no_moment_is_refused_with_examples(text: str) -> None:
    with pytest.raises(InvalidInput, match="yesterday"):
        parse_moment(text, NOW)
