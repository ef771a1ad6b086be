"""How many jobs of failing sites a worker has in flight beside others. Source: ADR 0070."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from postroad.scheduling.events import Site
from postroad.worker.jobs.admission import InFlightLimit, failing_site_quota, is_nearly_full
from postroad.worker.jobs.item_progress import ItemProgress
from postroad.worker.jobs.job_table import JobTable, OpenJob
from postroad.worker.route_finder import DeliveryRoute
from support.workers import A_HOP


def route(name: str, *hosts: str) -> DeliveryRoute:
    names = hosts or (name,)
    hops = {host: SimpleNamespace(next_hop=replace(A_HOP, host=host)) for host in names}
    return DeliveryRoute(Site((names,)), name, hops)  # type: ignore[arg-type]


def add(table: JobTable, at: DeliveryRoute, number: int, *, is_waiting: bool = True) -> OpenJob:
    mail = SimpleNamespace(priority=0)
    ledger = cast("ItemProgress", SimpleNamespace(item=SimpleNamespace(mail=mail), open_jobs=set()))
    job = OpenJob(number, f"m{number}", ledger, at, ("a@b.example",))
    job.connection = None if is_waiting else 1
    table.add(job)
    return job


@pytest.mark.parametrize(("in_flight", "nearly_full"), [(74, False), (75, True), (100, True)])
def test_a_window_is_nearly_full_from_three_quarters_on(in_flight: int, nearly_full: bool) -> None:
    assert is_nearly_full(in_flight, window=100) is nearly_full


def test_the_last_jobs_that_wait_at_sites_failing_have_no_room() -> None:
    table = JobTable()
    limit = InFlightLimit(80, table, lambda name: name in {"dead", "slow"})
    dead, slow, well = route("dead"), route("slow"), route("well")
    for number in range(8):
        add(table, dead, number)
        add(table, slow, 100 + number, is_waiting=number >= 4)
        add(table, well, 200 + number)

    assert limit.surplus(59) == []
    numbers = [each.number for each in limit.surplus(60)]

    assert numbers == [5, 6, 7, 105, 106, 107], "five for each of two sites"


def test_one_job_more_has_room_by_what_its_site_and_all_sites_failing_have() -> None:
    table = JobTable()
    limit = InFlightLimit(32, table, lambda name: name != "well")
    sites = [route(f"dead{number}") for number in range(5)]
    for number, each in enumerate(sites[:2]):
        add(table, each, number)
    assert limit.has_room(sites[4]), "it is not known to be nearly full"
    assert limit.surplus(32) == []

    assert limit.has_room(sites[0])
    assert [limit.has_room(each) for each in sites] == [True, False, False, False, False]
    assert limit.has_room(route("well"))
    assert limit.surplus(0) == []
    assert limit.has_room(sites[4]), "it is nearly full no more"


def test_a_site_with_one_destination_that_works_is_not_failing() -> None:
    table = JobTable()
    limit = InFlightLimit(8, table, lambda name: name == "dead")
    for number in range(8):
        add(table, route("two", "dead", "well"), number)

    assert limit.surplus(8) == []


def test_where_all_mail_has_one_next_hop_none_is_deferred() -> None:
    table = JobTable()
    limit = InFlightLimit(None, table, lambda _: True)
    for number in range(8):
        add(table, route("relay"), number)

    assert limit.surplus(10**6) == []
    assert limit.has_room(route("relay"))


def test_many_sites_have_one_job_each_while_there_is_room_for_all_of_them() -> None:
    room = failing_site_quota(80, sites=100)
    assert room.each == 1
    assert [room.takes(0) for _ in range(12)] == [True] * 10 + [False] * 2
    assert not failing_site_quota(80, sites=1).takes(jobs_before=10)
