from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.domain.values.instants import format_duration, parse_duration
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
