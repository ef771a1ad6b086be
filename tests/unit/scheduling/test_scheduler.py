"""What the scheduler decides in whole situations: targets 6 to 14 of the simulation."""

from __future__ import annotations

from collections import Counter

from postroad.scheduling.events import (
    Assign,
    BackOff,
    BackoffReported,
    CloseConnection,
    Closed,
    Defer,
    DeliveryJob,
    Established,
    Finished,
    LookupFinished,
    LookupJob,
    LookupRequested,
    NotOpened,
    OpenConnection,
    Pipelined,
    Precedence,
    Site,
    StartLookup,
    Submitted,
    Tick,
)
from postroad.scheduling.ranking import SchedulerRules, ShareLimits
from postroad.scheduling.scheduler import Scheduler
from support.simulated_delivery import Simulation

A = Site((("a",),))
B = Site((("b",),))
AB = Site((("a", "b"),))


def scheduler(**rules: object) -> Scheduler:
    return Scheduler(SchedulerRules(**rules), lambda _: 0)  # type: ignore[arg-type]


def job(number: int, mail: str | None = None, site: Site = A, priority: int = 0) -> Submitted:
    return Submitted(DeliveryJob(number, mail or f"m{number}", site, priority))


def own(least: int, scale: float = 10) -> dict[Precedence, ShareLimits]:
    return dict.fromkeys(Precedence, ShareLimits(least, scale))


def test_look_ups_start_as_routers_become_free_beside_deliveries() -> None:
    """Source: SC-1."""
    it = scheduler(routers=2, connections=1)

    asked = [it.on(LookupRequested(LookupJob(number, "a mail")), 0) for number in (1, 2, 3)]

    assert asked == [[StartLookup(1)], [StartLookup(2)], []]
    assert it.on(job(1), 0) == [OpenConnection(1, "a"), Assign(1, 1)]
    assert it.on(LookupFinished(1), 0) == [StartLookup(3)]


def test_a_job_opens_a_connection_and_the_next_ones_wait_on_it() -> None:
    """Source: SC-10."""
    it = scheduler(backlog=3)

    assert it.on(job(1), 0) == [OpenConnection(1, "a"), Assign(1, 1)]
    assert it.on(job(2), 0) == [Assign(2, 1)]
    assert it.on(job(3), 0) == [Assign(3, 1)]


def test_a_backlog_opens_a_further_connection_once_the_destination_has_answered() -> None:
    """Source: SC-11; AMB-24."""
    it = scheduler(backlog=1)
    it.on(job(1), 0)

    assert it.on(job(2), 0) == [Assign(2, 1)], "rides: the destination has not answered"
    assert it.on(Established(1), 1) == []
    assert it.on(job(3), 1) == [OpenConnection(2, "a"), Assign(3, 2)]


def test_a_mail_rides_free_beyond_its_limit_without_a_new_connection() -> None:
    """Source: SC-15; AMB-15."""
    it = scheduler(connections=10, backlog=1, limits=own(2, 0))
    it.on(job(1, "other"), 0)
    it.on(Established(1), 0)
    it.on(job(2, "list", B), 0)
    it.on(job(3, "list", Site((("c",),))), 0)

    rides = [it.on(job(number, "list"), 0) for number in range(4, 9)]

    assert rides == [[Assign(number, 1)] for number in range(4, 9)]
    assert it.on(job(9, "list"), 0) == [], "AMB-23: the queue is at its longest"
    assert it.on(job(10, "list", Site((("d",),))), 0) == [], "it may not open one"


def test_more_jobs_ride_on_a_connection_while_it_transmits_them_in_series() -> None:
    it = scheduler(connections=1, backlog=1, longest_queue=2)
    it.on(job(1), 0)
    it.on(Established(1), 0)
    for number in range(2, 9):
        it.on(job(number), 0)

    assert it.on(Pipelined(1, 4), 1) == [Assign(3, 1), Assign(4, 1)]
    assert it.on(Finished(1), 1) == [Assign(5, 1)]
    assert it.on(Pipelined(1, 1), 2) == []
    assert [it.on(Finished(number), 2) for number in (2, 3, 4)] == [[], [], [Assign(6, 1)]]
    assert it.on(Pipelined(99, 4), 3) == [], "it has ended meanwhile"


def test_a_job_rides_where_there_is_room_beside_a_newer_connection_that_is_full() -> None:
    it = scheduler(connections=2, backlog=1, longest_queue=2)
    it.on(job(1), 0)
    it.on(Established(1), 0)
    for number in range(2, 6):
        it.on(job(number), 0)

    assert it.on(Pipelined(1, 3), 1) == [Assign(5, 1)], "the second one has two of its two jobs"
    assert it.on(Pipelined(2, 5), 1) == []
    assert [it.on(job(number), 1) for number in (6, 7)] == [[Assign(6, 2)], [Assign(7, 2)]]


def test_places_on_a_connection_go_to_transactional_mail_then_to_who_has_fewest_there() -> None:
    it = scheduler(connections=1, backlog=1, longest_queue=2)
    it.on(job(1, "list"), 0)
    it.on(job(2, "list"), 0)
    assert it.on(job(3, "list"), 0) == []
    assert it.on(job(4, "bulk", priority=-1), 0) == []
    assert it.on(job(5, "later"), 0) == []
    assert it.on(job(6, "transactional", priority=1), 0) == []

    placed = [it.on(Finished(number), 1) for number in (1, 2, 6, 3, 5)]

    assert placed == [[Assign(6, 1)], [Assign(3, 1)], [Assign(5, 1)], [], [Assign(4, 1)]]


def test_bulk_rides_on_no_connection_that_transactional_mail_opened() -> None:
    """Source: AMB-26."""
    it = scheduler(connections=3, backlog=1, longest_queue=2, limits=own(1, 0))
    it.on(job(1, "bulk", priority=-1), 0)
    it.on(Established(1), 0)
    assert it.on(job(2, "urgent", priority=1), 0) == [OpenConnection(2, "a"), Assign(2, 2)]

    assert it.on(job(3, "bulk", priority=-1), 0) == [Assign(3, 1)]
    assert it.on(job(4, "bulk", priority=-1), 0) == []
    assert it.on(job(5, "urgent", priority=1), 0) == [Assign(5, 2)]
    assert it.on(job(6, "urgent", priority=1), 0) == [], "both queues are at their longest"
    assert it.on(Finished(1), 1) == [Assign(6, 1)], "it rides on those of bulk"


def test_a_mail_that_has_no_connection_gets_one_from_a_mail_that_has_several() -> None:
    """Source: AMB-25."""
    simulation = Simulation(SchedulerRules(connections=2, backlog=1, longest_queue=2))
    for number in range(400):
        simulation.submit(*(("list", A), ("another list", B))[number % 2])
    small = simulation.submit("small", Site((("c",),)), at=5.2)
    simulation.run(30)

    assert simulation.finished_at[small] < 5.2 + 4
    assert len(simulation.finished_at) > 2 * 25, "the lists go on"


def test_a_place_at_a_site_goes_to_who_has_fewest_jobs_there_whatever_it_has_elsewhere() -> None:
    """Source: AMB-25."""
    it = scheduler(connections=2, per_destination=1, backlog=1, longest_queue=2)
    for number, mail, site in ((1, "list", B), (2, "list", B), (3, "b", A), (4, "b", A)):
        it.on(job(number, mail, site), 0)
    assert it.on(job(5, "b", A), 0) == []
    assert it.on(job(6, "list", A), 0) == []

    assert it.on(Finished(3), 1) == [Assign(6, 2)]


def test_a_list_uses_the_connection_that_became_idle_for_the_same_site() -> None:
    it = scheduler(connections=2, per_destination=1, backlog=1, longest_queue=1, overdue_share=0)
    for number, site in ((1, A), (2, B), (3, Site((("c",),))), (4, A)):
        it.on(job(number, "list", site), 0)

    assert it.on(Finished(1), 1) == [Assign(4, 1)]
    assert it.on(Finished(4), 2) == [
        CloseConnection(1), OpenConnection(3, "c"), Assign(3, 3),
    ]  # fmt: skip


def test_an_idle_connection_is_closed_where_a_new_one_needs_its_place() -> None:
    """Source: SC-22; AMB-17."""
    it = scheduler(connections=2)
    it.on(job(1, site=A), 0)
    it.on(job(2, site=B), 0)
    it.on(Finished(2), 1)
    it.on(Finished(1), 2)

    assert it.on(job(3, site=Site((("c",),))), 3) == [
        CloseConnection(2), OpenConnection(3, "c"), Assign(3, 3),
    ]  # fmt: skip


def test_idle_connections_are_closed_after_a_while() -> None:
    it = scheduler(idle=60)
    it.on(job(1), 0)
    it.on(Finished(1), 10)

    assert it.next_moment() == 70
    assert it.on(Tick(), 70) == [CloseConnection(1)]


def test_jobs_of_a_closed_connection_are_scheduled_again() -> None:
    """Source: SC-22."""
    it = scheduler(backlog=3)
    for number in (1, 2, 3):
        it.on(job(number), 0)
    it.on(Finished(1), 1)

    decisions = it.on(Closed(1), 2)

    assert decisions[0] == OpenConnection(2, "a")
    assert set(decisions[1:]) == {Assign(2, 2), Assign(3, 2)}
    assert it.on(Finished(2), 3) == []
    assert it.on(Closed(1), 3) == [], "it is known already"
    assert it.on(Finished(1), 3) == []


def test_jobs_of_a_destination_that_does_not_answer_go_to_another_one() -> None:
    it = scheduler()
    it.on(job(1, site=AB), 0)

    assert it.on(NotOpened(1), 1) == [BackOff("a", 16), OpenConnection(2, "b"), Assign(1, 2)]


def test_a_connection_that_closes_before_its_first_outcome_counts_as_a_failure() -> None:
    it = scheduler()
    it.on(job(1), 0)
    it.on(Established(1), 0)

    assert it.on(Closed(1), 1) == [BackOff("a", 16), Defer(1, 16)]


def test_the_second_tier_is_used_only_while_all_of_the_first_rest() -> None:
    """Source: SC-21; AMB-18."""
    it = scheduler()
    tiers = Site((("a", "b"), ("c",), ("d",)))
    it.on(job(1, site=tiers), 0)
    assert OpenConnection(2, "b") in it.on(NotOpened(1), 0)
    assert OpenConnection(3, "c") in it.on(NotOpened(2), 0)
    assert OpenConnection(4, "d") in it.on(NotOpened(3), 0)
    assert it.on(NotOpened(4), 1) == [BackOff("d", 16), Defer(1, 15)]
    assert it.on(job(2, site=tiers), 2) == [Defer(2, 15)]
    assert it.on(job(3, site=tiers), 15)[0] == OpenConnection(5, "a")


def test_jobs_that_wait_move_to_the_next_tier_with_their_site() -> None:
    it = scheduler(connections=1, backlog=1, longest_queue=1)
    tiers = Site((("a",), ("c",)))
    it.on(job(1, "one", tiers), 0)
    it.on(job(2, "two", tiers), 0)
    it.on(job(3, "three", tiers), 0)

    decisions = it.on(NotOpened(1), 1)

    assert [each for each in decisions if isinstance(each, OpenConnection)] == [
        OpenConnection(2, "c")
    ]
    assert not any(isinstance(each, Defer) for each in decisions)
    after = [it.on(Finished(1), 2), it.on(Finished(2), 3), it.on(Finished(3), 4)]
    assert sum(isinstance(each, Assign) for step in after for each in step) == 2


def test_a_destination_that_another_process_found_broken_is_not_tried() -> None:
    """Source: SC-23; AMB-19."""
    it = scheduler()

    assert it.on(BackoffReported("a", 100), 0) == []
    assert it.on(job(1, site=AB), 1)[0] == OpenConnection(1, "b")
    assert it.on(job(2, site=A), 2) == [Defer(2, 100)]


def test_what_is_heard_lasts_no_longer_than_the_longest_rest() -> None:
    it = scheduler(max_backoff=600)
    it.on(BackoffReported("a", 1e12), 10)

    assert it.on(job(1, site=A), 20) == [Defer(1, 610)]


def test_other_processes_hear_once_of_a_host_that_ends_all_its_connections() -> None:
    it = scheduler(backlog=1)
    for number in range(20):
        it.on(job(number, f"m{number}"), 0)
    for number in range(1, 5):
        it.on(Established(number), 0)

    heard = [each for number in range(1, 5) for each in it.on(Closed(number), 1)]

    assert [each for each in heard if isinstance(each, BackOff)] == [BackOff("a", 16)]


def test_a_dead_destination_costs_one_connection_at_a_time() -> None:
    """Source: AMB-24."""
    simulation = Simulation(
        SchedulerRules(remember_broken=7200), connect=lambda _: None, refusal=30
    )
    for number in range(50):
        simulation.submit(f"m{number}", A, at=number / 10)
    simulation.run(600)

    assert len(simulation.openings) <= 6, "30 s each, with backoffs of 15, 60, 135, 240 s"
    assert len(simulation.deferred) >= 50


def test_when_the_load_falls_the_oldest_connections_become_idle_and_close() -> None:
    """Source: SC-14."""
    simulation = Simulation(SchedulerRules(backlog=2, longest_queue=2, age=10_000))
    for number in range(40):
        simulation.submit(f"m{number}", A, at=number / 10, seconds=10)
    simulation.run(5)
    before = sorted(simulation.lines)
    for number in range(40, 140):
        simulation.submit(f"m{number}", A, at=20 + (number - 40) * 4, seconds=10)
    simulation.run(300)

    left = sorted(simulation.lines)
    assert 0 < len(left) < len(before)
    assert left == before[-len(left) :], "those that are left are the newest"


def test_every_host_of_a_cluster_is_used_before_one_is_used_again() -> None:
    """Source: SC-18."""
    hosts = tuple(f"h{number}" for number in range(10))
    simulation = Simulation(SchedulerRules(idle=1), seed=3)
    for number in range(30):
        simulation.submit(f"m{number}", Site((hosts,)), at=number * 10)
    simulation.run(1000)
    used = [each.destination for each in simulation.openings]

    assert sorted(used[:10]) == sorted(hosts)
    assert used[:10] != list(hosts), "in an order that chance made"
    assert used[10:20] == used[:10] == used[20:30]


def test_a_broken_host_is_left_alone_until_it_is_forgotten_unless_all_others_are_full() -> None:
    """Source: SC-19."""
    hosts = tuple(f"h{number}" for number in range(5))

    def world(**rules: object) -> Simulation:
        chosen = SchedulerRules(remember_broken=5000, **rules)  # type: ignore[arg-type]
        return Simulation(chosen, connect=lambda name: None if name == "h0" else 0.0)

    idle = world(idle=1)
    for number in range(300):
        idle.submit(f"m{number}", Site((hosts,)), at=number * 30)
    idle.run(9000)
    tried = [each.at for each in idle.openings if each.destination == "h0"]
    assert len(tried) == 2
    assert 5000 <= tried[1] - tried[0] - 15 < 5200

    busy = world(per_destination=1, backlog=1, longest_queue=1)
    for number in range(500):
        busy.submit(f"m{number}", Site((hosts,)), at=number / 5)
    busy.run(100)
    assert len([each for each in busy.openings if each.destination == "h0"]) >= 3


def test_ageing_spreads_a_load_of_one_mail_at_a_time() -> None:
    """Source: SC-22."""
    hosts = tuple(f"h{number}" for number in range(5))
    simulation = Simulation(SchedulerRules(age=100, idle=60))
    for number in range(400):
        simulation.submit(f"m{number}", Site((hosts,)), at=number * 5.0, seconds=4.9)
    simulation.run(2000)
    used = Counter(each.destination for each in simulation.openings)

    assert set(used) == set(hosts)
    assert max(used.values()) - min(used.values()) <= 1


def test_verifications_have_a_limit_of_their_own_and_hold_up_no_delivery() -> None:
    """Source: SC-26."""
    simulation = Simulation(SchedulerRules(connections=50), seed=1)
    most = 0

    def watch(_: object) -> None:
        nonlocal most
        most = max(most, simulation.working[None])

    simulation.on_event = watch
    for number in range(500):
        simulation.submit(None, (A, B)[number % 2])
    small = [simulation.submit(f"m{n}", (A, B)[n % 2], at=n / 2) for n in range(100)]
    simulation.run()

    assert len(simulation.finished_at) == 600
    assert most == 10
    waits = [simulation.finished_at[each] - simulation.submitted_at[each] for each in small]
    assert max(waits) <= 6, "behind a queue at its longest at most"


def test_a_process_has_hundreds_of_connections_and_never_more_than_it_may() -> None:
    """Source: SC-25."""
    simulation = Simulation(SchedulerRules(connections=400, limits=own(400)))
    for number in range(600):
        simulation.submit("list", Site(((f"d{number}",),)))
    simulation.run(0.5)
    assert len(simulation.lines) == 400
    simulation.run()
    assert len(simulation.finished_at) == 600
