"""A job that waits can be taken back; nothing of it is left, and what others do stays as it was."""

from __future__ import annotations

import random

import pytest

from postroad.scheduling.events import (
    Assign,
    BackOff,
    CloseConnection,
    Closed,
    DeliveryJob,
    Established,
    Finished,
    NotOpened,
    OpenConnection,
    Site,
    Submitted,
    Tick,
    Withdrawn,
)
from postroad.scheduling.ranking import SchedulerRules
from postroad.scheduling.scheduler import Scheduler

SITES = [Site((("a",),)), Site((("b",), ("c",))), Site((("a", "c"),))]


def test_a_job_is_taken_back_where_it_waits_and_where_a_connection_has_it() -> None:
    it = Scheduler(SchedulerRules(connections=1, longest_queue=1, backlog=1), lambda _: 0)
    first, second, third = (DeliveryJob(number, "m", SITES[0]) for number in (1, 2, 3))
    assert it.on(Submitted(first), 0) == [OpenConnection(1, "a"), Assign(1, 1)]
    assert it.on(Submitted(second), 0) == []
    assert it.on(Submitted(third), 0) == []

    assert it.on(Withdrawn(second), 0) == []
    assert it.on(Withdrawn(first), 0) == [Assign(3, 1)], "its place is free"
    assert it.on(Withdrawn(first), 0) == []

    it.on(Established(1), 0)
    assert it.on(Finished(1), 0) == []
    assert it.on(Finished(3), 0) == []
    assert it._shares == {}
    assert it._waiting._queues == {}


def test_a_job_that_is_taken_off_a_connection_is_no_success_of_its_destination() -> None:
    rules = SchedulerRules(first_backoff=10, max_backoff=1000)
    it = Scheduler(rules, lambda _: 0)
    it.on(Submitted(DeliveryJob(1, "m", SITES[0])), 0)
    it.on(Established(1), 0)
    assert BackOff("a", 10) in it.on(Closed(1), 0), "it failed once"
    assert it.on(Tick(), 10) == []

    second = DeliveryJob(2, "m", SITES[0])
    assert it.on(Submitted(second), 10) == [OpenConnection(2, "a"), Assign(2, 2)]
    it.on(Withdrawn(second), 10)

    assert BackOff("a", 50) in it.on(NotOpened(2), 10), (
        "it failed twice, and backoffs four times as long"
    )


def test_a_connection_whose_only_job_was_taken_back_did_not_fail() -> None:
    it = Scheduler(SchedulerRules(), lambda _: 0)
    job = DeliveryJob(1, "m", SITES[0])
    it.on(Submitted(job), 0)
    it.on(Established(1), 0)
    it.on(Withdrawn(job), 0)

    assert it.on(Closed(1), 0) == []


def test_a_mail_that_others_yielded_to_and_that_is_taken_back_blocks_none() -> None:
    """Else the places that they left empty for it stay empty."""
    it = Scheduler(SchedulerRules(connections=1, longest_queue=4, backlog=1), lambda _: 0)
    for number in (1, 2):
        it.on(Submitted(DeliveryJob(number, "list", SITES[0])), 0)
    other = DeliveryJob(9, "small", Site((("z",),)))
    it.on(Submitted(other), 0)
    assert it.on(Submitted(DeliveryJob(3, "list", SITES[0])), 0) == []

    assert it.on(Withdrawn(other), 0) == [Assign(3, 1)]


@pytest.mark.parametrize("seed", range(10))
def test_every_job_is_finished_or_taken_back(seed: int) -> None:
    chance = random.Random(seed)
    it = Scheduler(SchedulerRules(connections=3, backlog=1, longest_queue=2), chance.randrange)
    jobs = {
        number: DeliveryJob(number, f"m{chance.randrange(20)}", chance.choice(SITES))
        for number in range(150)
    }
    at_work: dict[int, int] = {}
    finished, taken_back, now = set[int](), set[int](), 0.0

    def tell(event: Submitted | Withdrawn | Finished | Established) -> None:
        for decision in it.on(event, now):
            if isinstance(decision, Assign):
                assert decision.job not in taken_back
                at_work[decision.job] = decision.connection
            elif isinstance(decision, OpenConnection):
                opened.append(decision.connection)
            elif isinstance(decision, CloseConnection):
                assert decision.connection not in at_work.values()

    opened: list[int] = []
    left = list(jobs)
    while left or len(finished | taken_back) < len(jobs):
        now += 0.1
        while opened:
            tell(Established(opened.pop()))
        waiting = [n for n in jobs if n not in at_work and n not in {*left, *finished, *taken_back}]
        if left and chance.random() < 0.5:
            tell(Submitted(jobs[left.pop()]))
        elif waiting and chance.random() < 0.3:
            taken_back.add(number := chance.choice(waiting))
            tell(Withdrawn(jobs[number]))
        elif at_work:
            number = chance.choice(sorted(at_work))
            del at_work[number]
            finished.add(number)
            tell(Finished(number))

    assert len(finished) + len(taken_back) == len(jobs)
    assert taken_back
    assert it._shares == {}
    assert it._waiting._queues == {}
