"""How the stack waits for a server, on a clock that the test moves."""

from collections.abc import Callable
from pathlib import Path

import pytest

from stack import patience, server
from stack.errors import StepFailed
from stack.s3 import VersityGW


class Clock:
    """A thread that computes and sleeps, as the module `time` shows it."""

    def __init__(self) -> None:
        self.now = self.computed = 0.0
        self.rests: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def thread_time(self) -> float:
        return self.computed

    def compute(self, seconds: float) -> None:
        self.now += seconds
        self.computed += seconds

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.rests.append(seconds)


class Starting(VersityGW):
    """A server whose processes live, and which answers from the look on that the test chooses."""

    def is_alive(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(server, "time", found)
    monkeypatch.delenv(patience.VARIABLE, raising=False)
    return found


def looks(clock: Clock, count: int, cost: float) -> Callable[[], bool]:
    """Return a condition that holds from a number of looks on, each of which computes so long."""
    left = iter(range(count))

    def look() -> bool:
        clock.compute(cost)
        return next(left, None) is None

    return look


def test_quick_looks_follow_each_other_at_once(clock: Clock, tmp_path: Path) -> None:
    Starting(tmp_path).wait_until(looks(clock, 3, 0.001), 120)

    assert clock.rests == [server.POLL_SECONDS] * 3


def test_looks_that_compute_leave_most_of_the_cpu_to_the_server(
    clock: Clock, tmp_path: Path
) -> None:
    Starting(tmp_path).wait_until(looks(clock, 20, 0.2), 120)

    assert clock.computed == pytest.approx(clock.now / 10, rel=0.1)


def test_a_look_that_waits_for_a_reply_delays_no_other(clock: Clock, tmp_path: Path) -> None:
    replies = iter([False, False, True])

    def look() -> bool:
        clock.now += 3
        return next(replies)

    Starting(tmp_path).wait_until(look, 120)

    assert clock.rests == [server.POLL_SECONDS] * 2


@pytest.mark.parametrize(("factor", "seconds"), [("", 120), ("10", 1200)])
def test_a_slow_machine_is_given_the_time_that_it_names(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, tmp_path: Path, factor: str, seconds: int
) -> None:
    monkeypatch.setenv(patience.VARIABLE, factor)

    with pytest.raises(StepFailed, match=rf"no answer after {seconds} s; .*{patience.VARIABLE}"):
        Starting(tmp_path).wait_until(looks(clock, 10**6, 1), 120)

    assert clock.now == pytest.approx(seconds, abs=11)
