"""Under drawn loads, failures and closes every job is finished once, within all limits, and none
waits that has a place."""

from __future__ import annotations

import random
from collections import Counter
from itertools import product

import pytest

from postroad.scheduling.choosing import NoneWorks, OpenTo, Take
from postroad.scheduling.events import Established, Pipelined, Precedence, Site
from postroad.scheduling.queues import MailShare
from postroad.scheduling.ranking import ConnectionLimits, SchedulerRules, ShareLimits, may_grow
from support.simulated_delivery import Simulation

HOSTS = [f"h{number}" for number in range(16)]
JOBS = 100
IN_SERIES = 4
"""Jobs on a connection that has been open for a second."""


def drawn_site(chance: random.Random) -> Site:
    """One or two tiers of hosts that other sites have too."""
    tiers = [chance.sample(HOSTS, chance.randint(1, 3)) for _ in range(chance.randint(1, 2))]
    return Site(tuple(map(tuple, tiers)))


def drawn(seed: int) -> Simulation:
    """A world of few hosts in common to many sites, of which some are broken at times."""
    chance = random.Random(seed)
    limits = ShareLimits(chance.choice([1, 3]), chance.choice([0, 1, 10]))
    rules = SchedulerRules(
        connections=chance.choice([1, 3, 8, 30]), per_destination=chance.choice([1, 2, 9]),
        limits=dict.fromkeys(Precedence, limits), idle=3, age=20,
        backlog=1, longest_queue=chance.choice([1, 2, 5, None]),
        jobs_per_connection=chance.choice([3, 1000]), remember_closed=30, remember_broken=30,
        prompt=2, overdue_after=0.4, overdue_share=chance.choice([0, 0.5, 1]),
    )  # fmt: skip
    broken = set(chance.sample(HOSTS, 2))
    own = {host: ConnectionLimits(chance.choice([1, 12]), 4) for host in chance.sample(HOSTS, 2)}
    simulation = Simulation(
        rules, seed=seed, refusal=2,
        connect=lambda host: None if host in broken and simulation.now < 60 else 0.5,
    )  # fmt: skip
    simulation.scheduler.limit(lambda host: own.get(host, ConnectionLimits()))
    sites = [drawn_site(chance) for _ in range(6)]
    for _ in range(JOBS):
        mail = None if chance.random() < 0.1 else f"m{min(chance.randrange(60), 30)}"
        simulation.submit(
            mail, chance.choice(sites), at=chance.uniform(0, 30), seconds=chance.uniform(0.1, 4),
            priority=0 if mail is None else int(mail[1:]) % 3 - 1,
        )  # fmt: skip
    return simulation


@pytest.mark.parametrize("seed", range(16))
def test_every_job_is_finished_once_within_all_limits(seed: int) -> None:
    simulation = drawn(seed)
    rules = simulation.scheduler._rules
    chance = random.Random(seed)

    def check(event: object) -> None:
        if isinstance(event, Established):
            simulation.at(simulation.now + 1, Pipelined(event.connection, IN_SERIES))
        lines = simulation.lines.values()
        assert len(lines) <= rules.connections + rules.overdue_places
        for host, count in Counter(each.destination for each in lines).items():
            own = simulation.scheduler._destinations._limits_of(host)
            assert count <= (own.connections or rules.per_destination)
        if rules.longest_queue is not None:
            longest = max(IN_SERIES, rules.longest_queue)
            assert max((len(each.jobs) for each in lines), default=0) <= longest
        if chance.random() < 0.2:
            assert places_left(simulation) == []
            assert first_of_all(simulation) is first_found(simulation)

    simulation.on_event = check
    for moment in range(1, 200):
        simulation.run(moment / 3)
        if simulation.lines and chance.random() < 0.3:
            simulation.close(chance.choice(sorted(simulation.lines)))
    simulation.run(5000)

    assert len(simulation.finished_at) == simulation.finishes == JOBS
    assert simulation.scheduler._shares == {}
    assert simulation.scheduler._waiting._queues == {}
    assert simulation.scheduler._waiting._at == {}
    assert simulation.scheduler._yielding_queues == {}
    assert simulation.scheduler._yielding_names == {}
    known = simulation.scheduler._destinations
    assert known._records == {}, "all is forgotten"
    assert len(known._overdue) == known._overdue._failing == 0
    assert known._busy._used == [0, 0, 0]
    assert simulation.scheduler.next_moment() is None


def first_of_all(simulation: Simulation) -> MailShare | None:
    """The mail that gets the next free connection, found by looking at all that wait. Source: SC-6,
    SC-8; AMB-27."""
    inside = simulation.scheduler
    known = inside._destinations
    free = known.free
    for trusts, precedence in product(known.contests(), Precedence):
        open_for_one = {
            share: None
            for queue in inside._waiting._queues.values()
            if any(known.is_open(name) and known.trust(name) in trusts for name in queue.names)
            for share in queue.mails.members()
            if share.precedence is precedence
        }
        limits = inside._rules.limits[precedence]
        first = min(open_for_one, key=lambda each: each.rank, default=None)
        if first is not None and may_grow(first.working, limits, free):
            return first
    return None


def first_found(simulation: Simulation) -> MailShare | None:
    inside = simulation.scheduler
    found = inside._best(inside._destinations.free)
    return None if found is None else found[0]


def places_left(simulation: Simulation) -> list[int]:
    """Jobs that wait although they have a place, found by choosing for each of them again."""
    inside = simulation.scheduler
    free, waiting = inside._destinations.free, inside._waiting
    yielding = inside._first_in_need() is not None
    left = []
    for queue in waiting._queues.values():
        for share in queue.mails.members():
            limits = inside._rules.limits[share.precedence]
            growing = may_grow(share.working, limits, free)
            match inside._chooser.choose(queue.site.tiers, share.precedence, may_grow=growing):
                case Take() if yielding:
                    pass
                case Take() | OpenTo() | NoneWorks():
                    left += [each.number for each in share.waiting[queue]]
    return left
