"""Several Cassandra hosts are asked for the time, and the one that is wrong coordinates nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from postroad.adapters.cassandra.clocks import (
    MAX_ASKED_HOSTS,
    HostClocks,
    RightClocksFirst,
    Timestamps,
)
from postroad.domain.values.instants import agreed_time
from postroad.errors import ViewUnavailable
from postroad.telemetry import metrics

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NOON_US = int(NOON.timestamp()) * 1_000_000
HOUR = timedelta(hours=1)
SECOND_NS = 1_000_000_000


@dataclass(eq=False)
class OneHost:
    """A host whose clock is wrong by `skew`; None: it does not answer."""

    endpoint: str
    skew: timedelta | None = timedelta(0)
    datacenter: str = "dc1"
    is_up: bool | None = True


@dataclass
class Driver:
    """The driver's session, as far as clocks are read by it."""

    hosts: list[OneHost]
    ns: int = 0
    asked: list[str] = field(default_factory=list)

    @property
    def cluster(self) -> Any:
        return SimpleNamespace(metadata=SimpleNamespace(all_hosts=lambda: self.hosts))

    def execute_async(self, cql: str, timeout: float, host: OneHost) -> Any:
        self.asked.append(host.endpoint)

        def result() -> Any:
            if host.skew is None:
                raise TimeoutError
            shown = NOON + host.skew + timedelta(microseconds=self.ns // 1000)
            return SimpleNamespace(one=lambda: {"now": shown.replace(tzinfo=None)})

        def add_callbacks(good: Callable[[Any], Any], bad: Callable[[Any], Any]) -> None:
            (bad if host.skew is None else good)(None)

        return SimpleNamespace(result=result, add_callbacks=add_callbacks)


class Child:
    """A policy that names the hosts in their order."""

    def __init__(self, hosts: list[OneHost]) -> None:
        self._hosts = hosts

    def make_query_plan(self, keyspace: Any = None, query: Any = None) -> Iterator[OneHost]:
        yield from self._hosts


def hosts(*skews: timedelta | None) -> Driver:
    return Driver([OneHost(f"10.0.0.{number}", skew) for number, skew in enumerate(skews)])


def clocks_of(driver: Driver) -> HostClocks:
    return HostClocks(Timestamps(lambda: driver.ns), "dc1")


def plan(driver: Driver, clocks: HostClocks) -> list[str]:
    policy = RightClocksFirst(Child(driver.hosts), clocks)
    return [host.endpoint for host in policy.make_query_plan()]


@pytest.mark.parametrize("wrong", range(3))
def test_the_first_reading_does_not_believe_one_strange_host(wrong: int) -> None:
    skews = [timedelta(0)] * 3
    skews[wrong] = HOUR
    driver = hosts(*skews)
    clocks = clocks_of(driver)

    clocks.read(driver)

    assert abs(clocks.timestamps.now_us() - NOON_US) < 2000
    assert plan(driver, clocks)[-1] == driver.hosts[wrong].endpoint
    assert len(plan(driver, clocks)) == 3


def test_one_wrong_host_of_two_leaves_the_time_unknown() -> None:
    driver = hosts(timedelta(0), HOUR)
    clocks = clocks_of(driver)

    clocks.read(driver)

    assert not clocks.timestamps.is_known
    assert agreed_time(clocks.now()) is None


def test_a_quick_wrong_host_is_not_believed_while_others_are_silent() -> None:
    driver = hosts(HOUR, None, None)
    clocks = clocks_of(driver)

    clocks.read(driver)

    assert not clocks.timestamps.is_known
    assert clocks.now().hosts == 3


def test_hosts_that_are_down_or_far_away_have_no_vote() -> None:
    driver = hosts(timedelta(0), HOUR, HOUR)
    driver.hosts[1].is_up = False
    driver.hosts[2].datacenter = "dc2"
    clocks = clocks_of(driver)

    clocks.read(driver)

    assert driver.asked == ["10.0.0.0"]
    assert abs(clocks.timestamps.now_us() - NOON_US) < 2000


def test_no_answer_at_all_is_an_error() -> None:
    driver = hosts(None, None)

    with pytest.raises(ViewUnavailable):
        clocks_of(driver).read(driver)


def test_a_host_is_asked_first_again_when_its_clock_was_set(
    caplog: pytest.LogCaptureFixture,
) -> None:
    driver = hosts(HOUR, timedelta(0), timedelta(0))
    clocks = clocks_of(driver)
    clocks.read(driver)
    [record] = [each for each in caplog.records if each.levelname == "ERROR"]
    assert (record.__dict__["host"], record.__dict__["seconds"]) == ("10.0.0.0", 3600)
    assert metrics.WRONG_CLOCKS._value.get() == 1

    driver.hosts[0].skew = timedelta(0)
    driver.ns += 10 * SECOND_NS
    clocks.read(driver)

    assert plan(driver, clocks)[0] == "10.0.0.0"
    assert metrics.WRONG_CLOCKS._value.get() == 0


def test_a_reading_is_shared_for_a_second_and_goes_on() -> None:
    driver = hosts(timedelta(0), timedelta(0), timedelta(0))
    clocks = clocks_of(driver)
    clocks.read(driver)
    driver.ns += SECOND_NS // 2

    clocks.read(driver)

    assert len(driver.asked) == 3
    shown = clocks.now().times[0].time - NOON
    assert timedelta(milliseconds=499) < shown < timedelta(milliseconds=502)
    driver.ns += SECOND_NS
    clocks.read(driver)
    assert len(driver.asked) == 6


@pytest.mark.parametrize("read_after_us", [0, 1, 2_999, 3_000])
@pytest.mark.parametrize("of_second_us", [0, 500, 999, 1_000])
def test_the_doubt_is_what_the_way_and_the_rounding_leave_open(
    read_after_us: int, of_second_us: int
) -> None:
    """A request of 3 ms; its host may read its clock at any moment of it, and rounds it down."""
    driver = OneWay(of_second_us, read_after_us, takes_us=3_000)
    clocks = HostClocks(Timestamps(lambda: driver.us * 1000), "dc1")

    clocks.read(driver)

    [shown] = clocks.now().times
    true = NOON + timedelta(microseconds=driver.us)
    assert abs(shown.time - true) <= shown.doubt
    assert shown.doubt == timedelta(microseconds=(3_000 + 1_000) // 2 + 1)


def test_what_is_shown_lies_amid_what_may_be_true() -> None:
    driver = OneWay(0, 0, takes_us=3_000)
    clocks = HostClocks(Timestamps(lambda: driver.us * 1000), "dc1")

    clocks.read(driver)

    [shown] = clocks.now().times
    earliest, latest = NOON, NOON + timedelta(microseconds=3_000 + 1_000)
    assert shown.time == earliest + (latest - earliest) / 2


class OneWay(Driver):
    """One host that reads its clock some microseconds after it was asked, and answers later."""

    def __init__(self, of_second_us: int, read_after_us: int, takes_us: int) -> None:
        super().__init__([OneHost("10.0.0.1")])
        self.us = of_second_us
        self._read_after_us, self._takes_us = read_after_us, takes_us

    def execute_async(self, cql: str, timeout: float, host: OneHost) -> Any:
        shown = NOON + timedelta(milliseconds=(self.us + self._read_after_us) // 1000)

        def add_callbacks(good: Callable[[Any], Any], _: object) -> None:
            self.us += self._takes_us
            good(None)

        answer = SimpleNamespace(one=lambda: {"now": shown.replace(tzinfo=None)})
        return SimpleNamespace(result=lambda: answer, add_callbacks=add_callbacks)


def test_of_many_hosts_some_are_asked_and_each_in_the_course_of_time() -> None:
    driver = hosts(*[timedelta(0)] * (2 * MAX_ASKED_HOSTS))
    clocks = clocks_of(driver)
    for _ in range(2):
        clocks.read(driver)
        driver.ns += 10 * SECOND_NS

    assert len(driver.asked) == 2 * MAX_ASKED_HOSTS == len(set(driver.asked))
