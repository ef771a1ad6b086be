"""Workers share limits by rate: the whole is kept while they come and go, on a clock that the test
moves."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from postroad.adapters.memory.servers import MemoryServers, MemoryWorld
from postroad.domain.delivery.paces import LimitedBy, LimitedMail, LimitRule
from postroad.domain.queues.names import QueueName
from postroad.errors import ViewUnavailable
from postroad.ports.delivery import SharedState, Topic
from postroad.worker.sites.rate_limiter import MAX_HOLD, MAX_LIMIT_NAME, RateLimiter
from support.memory.clock import ManualClock

SECOND = timedelta(seconds=1)
MX = LimitedMail("mx.example", frozenset({"d.example"}), "acme", "192.0.2.1")
ELSEWHERE = LimitedMail("mx2.example", frozenset({"e.example"}), None, "192.0.2.1")


def per_site(per_minute: float, burst: int = 1) -> LimitRule:
    return LimitRule("sites", LimitedBy.SITE, per_minute, burst)


class Pods:
    """Workers of one queue that always have mail for one site, and when each mail went."""

    def __init__(self, *rules: LimitRule) -> None:
        self.clock = ManualClock()
        self._world = MemoryWorld(self.clock)
        self._rules = rules
        self.pods: dict[str, RateLimiter] = {}
        self._offsets: dict[str, int] = {}
        self._numbers: Counter[str] = Counter()
        self.gone: list[tuple[int, str]] = []
        self.second = 0

    def shared_state(self) -> SharedState:
        return MemoryServers(self._world).views().view(str(QueueName("a", "b"))).shared_state

    def start(self, name: str, offset: int = 0) -> RateLimiter:
        self.pods[name] = RateLimiter(
            self._rules, self.shared_state(), self.clock, name, most_held=400
        )
        self._offsets[name] = (self.second + offset) % 5
        return self.pods[name]

    async def pass_seconds(self, count: int, mail: LimitedMail = MX) -> None:
        for _ in range(count):
            for name, pod in self.pods.items():
                for _ in range(6):
                    self._numbers[name] += 1
                    pod.admit(self._numbers[name], mail)
                if self.second % 5 == self._offsets[name]:
                    await pod.exchange()
                self.gone += [(self.second, name) for _ in pod.due()]
            self.second += 1
            await self.clock.advance(SECOND)

    def within(self, first: int, last: int) -> int:
        return sum(first <= second < last for second, _ in self.gone)


@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 4), st.integers(0, 4), st.sampled_from([6, 60, 300]))
async def test_two_pods_keep_to_one_limit_evenly(one: int, other: int, per_minute: int) -> None:
    pods = Pods(per_site(per_minute))
    pods.start("one", one)
    pods.start("other", other)
    await pods.pass_seconds(30)  # both know of each other
    await pods.pass_seconds(600)

    whole = pods.within(30, 630)
    assert whole == pytest.approx(10 * per_minute, rel=0.05, abs=2)
    for minute in range(30, 630, 60):
        assert pods.within(minute, minute + 60) <= per_minute * 1.1 + 2
    shares = Counter(name for second, name in pods.gone if second >= 30)
    assert shares["one"] == pytest.approx(shares["other"], abs=2 + per_minute / 20)


async def test_the_limit_holds_while_pods_come_and_go() -> None:
    pods = Pods(per_site(60))
    pods.start("one")
    await pods.pass_seconds(120)
    assert pods.within(60, 120) == pytest.approx(60, abs=2)
    pods.start("two", 3)
    await pods.pass_seconds(10)
    pods.start("three", 1)
    await pods.pass_seconds(110)
    del pods.pods["one"]  # killed: its entry stays for 20 seconds
    await pods.pass_seconds(120)
    del pods.pods["two"]
    await pods.pass_seconds(240)

    for first in range(0, 540, 5):
        assert pods.within(first, first + 60) <= 66
    assert pods.within(0, 600) >= 600 * 0.9
    assert pods.within(540, 600) == pytest.approx(60, abs=2), "the last one has all of it"


async def test_a_pod_that_cannot_reach_the_shared_state_stops_before_others_take_its_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pods = Pods(per_site(60))
    cut = pods.start("cut", 0)
    pods.start("other", 2)
    await pods.pass_seconds(60)

    async def away(*_: object) -> None:
        raise ViewUnavailable

    monkeypatch.setattr(cut._shared, "publish", away)
    await pods.pass_seconds(120)

    late = [second for second, name in pods.gone if name == "cut" and second > 60]
    assert late
    assert max(late) <= 80
    for first in range(60, 120):
        assert pods.within(first, first + 60) <= 66


async def test_limits_of_several_kinds_hold_together() -> None:
    pods = Pods(
        LimitRule("acme", LimitedBy.TENANT, 30, 1, tenants=frozenset({"acme"})),
        LimitRule("d", LimitedBy.RULE, 60, 5, domains=frozenset({"d.example"})),
    )
    pods.start("one")
    await pods.pass_seconds(300)
    assert pods.within(60, 300) == pytest.approx(120, abs=3)


async def test_mail_under_no_limit_goes_at_once_and_limits_are_apart() -> None:
    pods = Pods(LimitRule("d", LimitedBy.SITE, 1, 1, domains=frozenset({"d.example"})))
    pod = pods.start("one")

    assert pod.admit(1, ELSEWHERE) == timedelta(0)
    assert pod.admit(2, MX) is None
    assert pod.admit(3, LimitedMail("mx9", MX.domains, None, "")) is None
    assert pod.due() == [], "no other worker has heard of it yet"
    await pod.exchange()
    assert pod.due() == [2, 3]
    assert pod.admit(4, MX) is None
    assert pod.admit(5, MX) is None
    pod.drop(4)  # it ended, and takes no place
    assert pod.due() == []
    await pods.clock.advance(59 * SECOND)
    await pod.exchange()
    assert pod.due() == [5]


async def test_what_is_beyond_what_a_worker_holds_comes_again_when_it_may_go() -> None:
    pods = Pods(per_site(60))
    pod = RateLimiter((per_site(60),), pods.shared_state(), pods.clock, "one", most_held=10)
    await pod.exchange()
    for number in range(10):
        assert pod.admit(number, MX) is None

    delays = [pod.admit(number, MX) for number in range(10, 13)]
    assert delays == [timedelta(seconds=11 + each) for each in range(3)]
    for number in range(13, 5000):
        found = pod.admit(number, MX)
    assert found == MAX_HOLD


async def test_notes_that_cannot_be_read_count_for_nothing() -> None:
    pods = Pods(per_site(60))
    shared_state = pods.shared_state()
    for name, text in (("x", "{"), ("y", '{"sites mx.example": 1}'), ("z", "5")):
        await shared_state.publish(Topic.LIMITS, name, text, timedelta(hours=1))
    pods.start("one")
    await pods.pass_seconds(60)

    assert pods.within(0, 60) == pytest.approx(60, abs=2)


async def test_a_limit_that_is_raised_is_obeyed_at_once_and_the_others_keep_their_pace() -> None:
    """An hour's burst has gone: under the former limit the next mail is due in an hour."""
    slow = LimitRule("one", LimitedBy.SITE, 1, 60, domains=MX.domains)
    stays = LimitRule("two", LimitedBy.SITE, 1, 1, domains=ELSEWHERE.domains)
    pods = Pods(slow, stays)
    pod = pods.start("one")
    await pod.exchange()
    for number in range(62):
        pod.admit(number, MX)
    pod.admit(100, ELSEWHERE)
    pod.admit(101, ELSEWHERE)
    await pod.exchange()
    assert pod.due() == [*range(60), 100]

    assert not pod.replace((slow, stays)), "these are the same"
    assert pod.replace((replace(slow, per_minute=600), stays))
    for number in (60, 61, 101):
        pod.drop(number)
    assert pod.admit(62, MX) is None
    assert pod.admit(102, ELSEWHERE) is None
    await pods.clock.advance(SECOND)
    assert pod.due() == [62]

    assert pod.replace(())
    assert pod.admit(63, MX) == timedelta(0), "it is under no limit any more"


async def test_what_is_dropped_leaves_its_place_wherever_it_waits() -> None:
    pods = Pods(per_site(60))
    pod = RateLimiter((per_site(60),), pods.shared_state(), pods.clock, "one", most_held=2)
    assert pod.admit(1, MX) is pod.admit(2, MX) is None
    assert pod.admit(3, MX) == timedelta(seconds=3)

    pod.drop(2)
    pod.drop(2)

    assert pod.admit(4, MX) is None
    await pod.exchange()
    await pods.clock.advance(SECOND)
    assert pod.due() == [1, 4]
    assert pod.admit(5, MX) is None


async def test_long_names_of_sites_make_no_long_entries_and_are_shared_all_the_same() -> None:
    pods = Pods(per_site(60))
    long = replace(MX, site=f"{'x' * 250}.example")
    for name in ("one", "two"):
        pods.start(name)
    await pods.pass_seconds(30, long)
    for entry in (await pods.shared_state().published(Topic.LIMITS)).values():
        assert len(entry) < 2 * MAX_LIMIT_NAME

    await pods.pass_seconds(120, long)

    assert pods.within(30, 150) == pytest.approx(120, rel=0.05, abs=2)


async def test_pods_that_name_a_limit_at_once_wait_until_each_knows_of_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pods = Pods(per_site(60))
    both = [pods.start("one"), pods.start("other")]
    for pod in both:
        _delay_board(pod, monkeypatch)
        pod.admit(1, MX)

    await asyncio.gather(*(pod.exchange() for pod in both))

    assert [pod.due() for pod in both] == [[], []]


def _delay_board(pod: RateLimiter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each request wait, as those of servers do."""
    for name in ("publish", "published"):
        honest = getattr(pod._shared, name)

        async def waiting(*arguments: Any, honest: Any = honest) -> object:
            await asyncio.sleep(0)
            return await honest(*arguments)

        monkeypatch.setattr(pod._shared, name, waiting)


async def test_a_pod_whose_note_was_long_on_its_way_sends_no_longer_than_the_note_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pods = Pods(per_site(60))
    pod = pods.start("one")
    honest = pod._shared.publish

    async def slow(*arguments: Any) -> None:
        await honest(*arguments)
        await pods.clock.advance(15 * SECOND)

    monkeypatch.setattr(pod._shared, "publish", slow)
    pod.admit(1, MX)
    await pod.exchange()
    assert pod.due() == [1]

    await pods.clock.advance(6 * SECOND)
    pod.admit(2, MX)
    assert pod.due() == []
