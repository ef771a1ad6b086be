"""Which time is believed of several clocks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from postroad.domain.values.instants import AgreedTime, HostTime, Readings, agreed_time

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def readings(*seconds: float, hosts: int | None = None, doubt: float = 0) -> Readings:
    """Readings of hosts that are so many seconds from noon."""
    times = (
        HostTime(f"host{number}", NOON + timedelta(seconds=each), timedelta(seconds=doubt))
        for number, each in enumerate(seconds)
    )
    return Readings(tuple(times), hosts or len(seconds))


def time(agreed: AgreedTime | None) -> float:
    assert agreed is not None
    return (agreed.time - NOON).total_seconds()


def wrong(agreed: AgreedTime | None) -> list[str]:
    assert agreed is not None
    return [each.host for each in agreed.wrong]


def test_one_host_alone_is_believed() -> None:
    assert time(agreed_time(readings(3600))) == 3600


def test_one_wrong_clock_of_three_is_out_voted_wherever_it_is_read() -> None:
    for clocks in ([3600, 0, 1], [0, 3600, 1], [0, 1, 3600], [0, -3600, 1]):
        agreed = agreed_time(readings(*clocks))
        assert time(agreed) == 0
        assert wrong(agreed) == [f"host{max(range(3), key=lambda n: abs(clocks[n]))}"]


def test_the_median_of_right_clocks_is_the_time() -> None:
    agreed = agreed_time(readings(-2, 3, 1))

    assert time(agreed) == 1
    assert wrong(agreed) == []


def test_two_clocks_that_disagree_are_not_believed_either() -> None:
    assert agreed_time(readings(0, 3600)) is None
    assert agreed_time(readings(0, 3600, -3600)) is None
    assert agreed_time(readings(0, 0, 3600, 3600)) is None


def test_a_quick_wrong_host_is_not_believed_while_the_others_are_silent() -> None:
    assert agreed_time(readings(3600, hosts=3)) is None
    assert time(agreed_time(readings(0, 1, hosts=3))) == 0


def test_what_a_slow_answer_leaves_open_is_no_disagreement() -> None:
    assert agreed_time(readings(0, 8)) is None
    assert wrong(agreed_time(readings(0, 8, doubt=2))) == []


def test_readings_go_on() -> None:
    assert time(agreed_time(readings(0, 0, 1).later(timedelta(seconds=7)))) == 7
