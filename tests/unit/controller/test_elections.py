"""Processes in one election, over a Lease in memory, with clocks, answers and suspensions drawn by
a seed: never do two of them act at once, and one of them does when it can."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from itertools import count
from random import Random
from typing import NamedTuple

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from postroad.controller.run.elector import (
    Candidacy,
    GetLease,
    LeaseRecord,
    LeaseRules,
    StopLeading,
    WaitUntil,
    WriteLease,
)

RULES = LeaseRules()
TAKEOVER = 20.0
"""Seconds after which there is another leader."""


@dataclass
class LeaseServer:
    """A Lease that is written by version."""

    record: LeaseRecord | None = None
    version: int = 0

    def write(self, record: LeaseRecord, version: str | None) -> str | None:
        """Return the new version, None for a conflict."""
        if version != (None if self.record is None else str(self.version)):
            return None
        self.record, self.version = record, self.version + 1
        return str(self.version)


class Answer(NamedTuple):
    """The Lease as the server has it then. No version: a conflict."""

    record: LeaseRecord | None
    version: str | None


@dataclass
class Member:
    """A process. Its clock runs at a `rate` of its own from a moment of its own. `pending` is the
    number of its request."""

    state: Candidacy
    rate: float
    began: float
    pending: int | None = None
    resumes: float = 0.0
    is_dead: bool = False

    def clock(self, true: float) -> timedelta:
        return timedelta(seconds=self.began + self.rate * true)

    def true_of(self, moment: timedelta) -> float:
        return (moment.total_seconds() - self.began) / self.rate

    def may_act(self, true: float) -> bool:
        """Whether the fence of this process is open, be the process suspended or not."""
        until = self.state.until
        return not self.is_dead and until is not None and self.clock(true) < until


@dataclass
class Election:
    """All of it, in true time. `trouble`: the chance that a request is lost, or slow."""

    random: Random
    members: list[Member]
    trouble: float
    server: LeaseServer = field(default_factory=LeaseServer)
    now: float = 0.0
    gaps: list[tuple[float, float]] = field(default_factory=list)
    led: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        for each in range(len(self.members)):
            self.at(0, partial(self.step, each))

    def at(self, when: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (max(when, self.now), next(self._numbers), event))

    def run(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, event = heapq.heappop(self._events)
            event()
            self.check()
        self.now = until

    def check(self) -> None:
        leaders = [each for each, member in enumerate(self.members) if member.may_act(self.now)]
        assert len(leaders) <= 1, f"{leaders} act at {self.now}"
        if leaders and leaders[-1:] != self.led[-1:]:
            self.led += leaders

    def step(self, who: int) -> None:
        member = self.members[who]
        if member.is_dead:
            return
        if self.now < member.resumes:
            self.at(member.resumes, lambda: self.step(who))
            return
        match member.state.next_step(member.clock(self.now), f"{self.now:.6f}"):
            case WaitUntil(until):
                self.at(member.true_of(until) + 1e-6, lambda: self.step(who))
            case StopLeading():
                member.is_dead = True
                fresh = Candidacy(f"{member.state.identity}'")
                self.members.append(Member(fresh, member.rate, member.began))
                again = len(self.members) - 1
                self.at(self.now + 1, lambda: self.step(again))
            case GetLease():
                self.send(who, None)
            case WriteLease() as wanted:
                self.send(who, wanted)

    def send(self, who: int, wanted: WriteLease | None) -> None:
        """Let a request reach the server, and its answer the process, each after its time or never;
        the process gives up after five seconds, and a lost request may reach the server later."""
        draw, sent = self.random, self.now
        slow = draw.random() < self.trouble
        there = draw.uniform(0, 9) if slow else draw.uniform(0, 0.05)
        back = draw.uniform(0, 9) if slow else draw.uniform(0, 0.05)
        reaches, answers = draw.random() > self.trouble / 2, draw.random() > self.trouble / 2
        gives_up = sent + 5
        number = next(self._numbers)
        self.members[who].pending = number

        def reach() -> None:
            record: LeaseRecord | None = self.server.record
            version: str | None = str(self.server.version)
            if wanted is not None:
                record, version = wanted.record, self.server.write(wanted.record, wanted.version)
            if answers:
                answer = Answer(record, version)
                self.at(self.now + back, lambda: self.answer(who, number, sent, wanted, answer))

        if reaches:
            self.at(sent + there, reach)
        self.at(gives_up, lambda: self.answer(who, number, sent, wanted, None))

    def answer(
        self, who: int, number: int, sent: float, wanted: WriteLease | None, result: Answer | None
    ) -> None:
        member = self.members[who]
        if member.is_dead or member.pending != number:
            return
        if self.now < member.resumes:
            self.at(member.resumes, lambda: self.answer(who, number, sent, wanted, result))
            return
        member.pending = None
        then, now, chance = member.clock(sent), member.clock(self.now), self.random.random()
        if result is None:
            member.state = member.state.failed(then, chance)
        elif result.version is None:
            member.state = member.state.conflicted(now, 0)
        elif wanted is None:
            member.state = member.state.observe(result.record, result.version, then, now, chance)
        else:
            member.state = member.state.wrote(wanted.record, result.version, then, now, chance)
        self.step(who)

    def suspend(self, who: int, seconds: float) -> None:
        self.members[who].resumes = self.now + seconds


def election(seed: int, size: int, trouble: float) -> Election:
    random = Random(seed)
    members = [
        Member(Candidacy(f"p{each}"), random.uniform(0.9, 1.1), random.uniform(0, 1e6))
        for each in range(size)
    ]
    return Election(random, members, trouble)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2**32),
    size=st.integers(2, 5),
    trouble=st.sampled_from([0.0, 0.1, 0.4]),
    pauses=st.lists(st.tuples(st.floats(0.5, 30), st.integers(0, 4), st.floats(1, 60)), max_size=8),
)
def test_two_never_act_at_once(
    seed: int, size: int, trouble: float, pauses: list[tuple[float, int, float]]
) -> None:
    run = election(seed, size, trouble)
    for after, who, seconds in pauses:
        run.run(run.now + after)
        run.suspend(who % len(run.members), seconds)
    run.run(run.now + 120)
    run.trouble = 0
    run.run(run.now + 60)
    assert any(each.may_act(run.now) for each in run.members), "one leads when all is well"


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 2**32), size=st.integers(2, 5))
def test_another_takes_over_within_twenty_seconds(seed: int, size: int) -> None:
    run = election(seed, size, 0.0)
    for each in run.members:
        each.rate = 1.0
    run.run(30 + Random(seed).uniform(0, 3))
    (leader,) = (each for each in run.members if each.may_act(run.now))
    leader.is_dead = True

    run.run(run.now + TAKEOVER)

    assert any(each.may_act(run.now) for each in run.members)


def test_a_leader_that_is_well_stays() -> None:
    run = election(1, 5, 0.0)

    run.run(600)

    assert len(run.led) == 1
    assert run.server.record
    assert run.server.record.transitions == 0


def test_the_search_finds_two_leaders_where_the_answer_counts() -> None:
    """The check bites: a leader that counts from the answer, not from the request, overlaps with
    its follower."""

    class FromTheAnswer(Candidacy):
        def wrote(
            self,
            record: LeaseRecord,
            version: str,
            sent: timedelta,
            now: timedelta,
            chance: float,
        ) -> Candidacy:
            return Candidacy.wrote(self, record, version, now, now, chance)

    def finds(seed: int) -> bool:
        run = election(seed, 3, 0.4)
        for each in run.members:
            each.state = FromTheAnswer(each.state.identity)
        try:
            for _ in range(20):
                run.run(run.now + run.random.uniform(0, 20))
                run.suspend(run.random.randrange(len(run.members)), run.random.uniform(1, 60))
        except AssertionError:
            return True
        return False

    assert any(finds(seed) for seed in range(200))
