"""How much a mail may use, and which mail is next: SC-4 to SC-9, AMB-14, by lookups, whose
routers are all alike."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from postroad.scheduling.destination_records import Lookups
from postroad.scheduling.events import LookupJob, Precedence
from postroad.scheduling.ranking import SchedulerRules, ShareLimits, may_grow


@pytest.mark.parametrize(
    ("working", "free", "allowed"),
    [
        (4, 0, True), (5, 0, False), (5, 1, True), (9, 1, True), (10, 1, False), (10, 2, True),
        (0, 0, True),
    ],
)  # fmt: skip
def test_a_mail_grows_below_m_and_below_s_times_the_free_workers(
    working: int, free: int, allowed: bool
) -> None:
    """Source: SC-6."""
    assert may_grow(working, ShareLimits(5, 10), free) is allowed


def limits(least: int, scale: float = 10) -> Mapping[Precedence, ShareLimits]:
    return dict.fromkeys(Precedence, ShareLimits(least, scale))


def filled(lookups: Lookups, mails: int, jobs: int) -> dict[str, int]:
    """Ask for lookups of these mails, one mail after the other; return who has how many."""
    for mail in range(mails):
        ask(lookups, f"m{mail}", jobs)
    return working(lookups)


def ask(lookups: Lookups, mail: str | None, jobs: int, priority: int = 0) -> list[int]:
    first = ask.__dict__.setdefault("next", 0)
    ask.__dict__["next"] += jobs
    for number in range(first, first + jobs):
        lookups.ask(LookupJob(number, mail, priority))
    return lookups.start()


def working(lookups: Lookups) -> dict[str, int]:
    return {str(share.mail): share.working for share in lookups._shares.values() if share.working}


@pytest.mark.parametrize(("workers", "most"), [(11, 10), (100, 91), (1000, 910)])
def test_one_mail_gets_ten_elevenths_of_an_idle_system(workers: int, most: int) -> None:
    """Source: SC-7."""
    lookups = Lookups(SchedulerRules(routers=workers, limits=limits(1)))

    assert filled(lookups, 1, 2000) == {"m0": most}


@pytest.mark.parametrize(("least", "second"), [(1, 82), (10, 82), (100, 90)])
def test_a_second_mail_gets_what_is_free_as_far_as_its_limits_let_it(
    least: int, second: int
) -> None:
    """Source: SC-8."""
    lookups = Lookups(SchedulerRules(routers=1000, limits=limits(least)))

    assert filled(lookups, 2, 2000) == {"m0": 910, "m1": second}


def test_a_second_mail_takes_over_as_jobs_of_the_first_end() -> None:
    lookups = Lookups(SchedulerRules(routers=100, limits=limits(1)))
    first, second = ask(lookups, "a", 1000), ask(lookups, "b", 1000)
    assert (len(first), len(second)) == (91, 9)

    for job in first:
        lookups.finish(job)
        lookups.start()

    assert working(lookups) == {"a": 48, "b": 48}


def test_the_mail_with_the_fewest_look_ups_under_way_is_next_then_the_first() -> None:
    lookups = Lookups(SchedulerRules(routers=2, limits=limits(5)))
    begun = ask(lookups, "a", 9)
    ask(lookups, "b", 9)
    ask(lookups, "c", 9)

    lookups.finish(begun[0])
    lookups.start()

    assert working(lookups) == {"a": 1, "b": 1}


def test_transactional_mail_goes_before_bulk() -> None:
    lookups = Lookups(SchedulerRules(routers=1, limits=limits(5)))
    begun = ask(lookups, "under way", 1)
    ask(lookups, "bulk", 1, priority=-1)
    ask(lookups, "ordinary", 1)
    ask(lookups, "transactional", 1, priority=1)
    order: list[str] = []
    while begun:
        lookups.finish(begun[0])
        begun = lookups.start()
        order += working(lookups)

    assert order == ["transactional", "ordinary", "bulk"]


def test_verifications_are_one_mail_with_limits_of_its_own() -> None:
    """Source: SC-26."""
    rules = SchedulerRules(routers=100)
    own = rules.limits[Precedence.VERIFICATION]
    lookups = Lookups(rules)

    begun = ask(lookups, None, 10_000)

    assert len(begun) == own.max_message_concurrency
    assert len(ask(lookups, "a mail", 1)) == 1


def test_an_answer_that_comes_twice_frees_one_router() -> None:
    lookups = Lookups(SchedulerRules(routers=1, limits=limits(5)))
    (job,) = ask(lookups, "a", 1)
    lookups.finish(job)
    lookups.finish(job)

    assert len(ask(lookups, "b", 2)) == 1


def test_the_usual_rules_are_those_of_the_source() -> None:
    """Source: AMB-17."""
    usual, limits = SchedulerRules(), ShareLimits(5, 10)

    assert (usual.connections, usual.routers) == (200, 50)
    assert (usual.per_destination, usual.backlog, usual.longest_queue) == (20, 3, 6)
    assert (usual.idle, usual.age, usual.jobs_per_connection) == (60, 300, 1000)
    assert (usual.first_backoff, usual.max_backoff) == (15, 3600)
    assert (usual.remember_closed, usual.remember_broken) == (3600, 3600)
    assert usual.limits == dict.fromkeys(Precedence, limits) | {
        Precedence.VERIFICATION: ShareLimits(10, 0.1)
    }
