"""A recipient that a next hop refuses for now is tried at another one next, and at the first one
again soon, for the sake of grey lists."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from uuid import UUID

import pytest

from postroad.domain.mail.mail import Envelope, Outcome
from postroad.domain.smtp.next_hops import NextHop
from postroad.ports.delivery import (
    BeforeEnd,
    JobFinished,
    OnEvent,
    Transmission,
    at_once,
)
from postroad.routing.routes import ResolvedHop
from postroad.scheduling.events import Site
from postroad.worker.jobs.transmissions import MAX_REMEMBERED, Deferrals
from postroad.worker.route_finder import DeliveryRoute
from support.memory.connections import MemoryConnection, MemoryConnector
from unit.worker.test_driving import MINUTE, SECOND, Worker, a_worker

MAIL = UUID(int=1)
LATER = Outcome.deferred("451 4.3.0 later")
DELIVERED, FAILED = Outcome.delivered("250 ok"), Outcome.failed("550 5.1.1 no")


def a_route(*tiers: str) -> DeliveryRoute:
    """Return a route to hosts that are named by letters."""
    hops = {each: ResolvedHop(NextHop(each), ()) for tier in tiers for each in tier}
    return DeliveryRoute(Site(tuple(map(tuple, tiers))), "site", hops)


def tiers_for(deferrals: Deferrals, route: DeliveryRoute, recipient: str) -> list[str]:
    [(found, (only,))] = deferrals.routes(MAIL, route, [recipient])
    assert (only, found.name, found.hops) == (recipient, route.name, route.hops)
    return ["".join(tier) for tier in found.site.tiers]


def attempts(route: DeliveryRoute, count: int) -> str:
    """Return the hosts that a recipient is tried at whom all of them refuse for now."""
    deferrals, tried = Deferrals(), ""
    for _ in range(count):
        host = tiers_for(deferrals, route, "r")[0][0]
        deferrals.on_outcomes(MAIL, route, host, {"r": LATER})
        tried += host
    return tried


@pytest.mark.parametrize(
    ("tiers", "tried"),
    [
        (["a"], "aaaaaa"),
        (["a", "b"], "ababab"),
        (["ab"], "ababab"),
        (["a", "b", "c"], "abacabac"),
        (["ab", "c"], "abacabac"),
        (["a", "bc", "d"], "abacadabacad"),
    ],
)
def test_attempts_alternate_between_the_first_hosts_and_those_not_tried(
    tiers: list[str], tried: str
) -> None:
    assert attempts(a_route(*tiers), len(tried)) == tried


def test_hosts_that_deferred_a_recipient_are_the_last_ones() -> None:
    """They have the mail where no other can be connected to."""
    deferrals, route = Deferrals(), a_route("ab", "c")
    deferrals.on_outcomes(MAIL, route, "a", {"r": LATER})

    assert tiers_for(deferrals, route, "r") == ["b", "c", "a"]
    assert tiers_for(deferrals, route, "s") == ["ab", "c"]


def test_recipients_of_one_mail_go_each_by_their_own_route() -> None:
    deferrals, route = Deferrals(), a_route("a", "b")
    deferrals.on_outcomes(MAIL, route, "a", {"r": LATER, "s": LATER, "t": FAILED})

    found = {recipients: by.site.tiers for by, recipients in deferrals.routes(MAIL, route, "rtsu")}

    assert found == {("r", "s"): (("b",), ("a",)), ("t", "u"): (("a",), ("b",))}
    assert next(deferrals.routes(UUID(int=2), route, "r"))[0].site == route.site


@pytest.mark.parametrize("outcome", [DELIVERED, FAILED])
def test_a_recipient_that_is_finished_is_forgotten(outcome: Outcome) -> None:
    deferrals, route = Deferrals(), a_route("a", "b")
    deferrals.on_outcomes(MAIL, route, "a", {"r": LATER})
    deferrals.on_outcomes(MAIL, route, "b", {"r": outcome})

    assert not deferrals._by


def test_hosts_that_the_route_has_no_more_do_not_count() -> None:
    deferrals = Deferrals()
    deferrals.on_outcomes(MAIL, a_route("a", "b"), "a", {"r": LATER})

    assert tiers_for(deferrals, a_route("c", "d"), "r") == ["c", "d"]


def test_what_is_remembered_is_bounded() -> None:
    deferrals, route = Deferrals(), a_route("a", "b")
    for number in range(MAX_REMEMBERED + 10):
        deferrals.on_outcomes(MAIL, route, "a", {str(number): LATER})

    assert len(deferrals._by) == MAX_REMEMBERED == 20_000
    assert tiers_for(deferrals, route, "9") == ["a", "b"]
    assert tiers_for(deferrals, route, "10") == ["b", "a"]


class Choosy(MemoryConnector):
    """Next hops that refuse recipients for now: `refuses` has the host and the recipient."""

    def __init__(self, refuses: Callable[[str, str], bool]) -> None:
        super().__init__()
        self.refuses = refuses
        self.tried: list[tuple[str, str]] = []

    def open(
        self, hop: ResolvedHop, on_event: OnEvent, before_end: BeforeEnd = at_once
    ) -> MemoryConnection:
        return _Choosing(self, hop.next_hop.host, on_event, before_end)


class _Choosing(MemoryConnection):
    def _take(self, job: Transmission, content: bytes) -> None:
        hop = self._hop
        assert isinstance(hop, Choosy)
        hop.tried += [(self._host, each) for each in job.envelope.recipients]
        outcomes: Mapping[str, Outcome] = {
            each: LATER if hop.refuses(self._host, each) else DELIVERED
            for each in job.envelope.recipients
        }
        taken = tuple(each for each, found in outcomes.items() if found is DELIVERED)
        if taken:
            hop.delivered.append((Envelope(job.envelope.sender, taken), content))
        self._report(JobFinished(job.job, outcomes))


def hosts_of(worker: Worker, recipient: str) -> list[str]:
    assert isinstance(worker.hops, Choosy)
    return [host for host, each in worker.hops.tried if each == recipient]


def two_tiers(worker: Worker) -> None:
    worker.resolver.add("one.example", (10, "mx1.example"), (20, "mx2.example"))
    worker.resolver.add("mx1.example", "192.0.2.1")
    worker.resolver.add("mx2.example", "192.0.2.2")


async def test_the_second_attempt_goes_to_the_backup_of_a_server_that_refuses_for_now() -> None:
    hops = Choosy(lambda host, recipient: host == "mx1.example")
    async with a_worker(hops=hops) as worker:
        two_tiers(worker)
        await worker.enqueue("a@one.example")
        await worker.pass_time(SECOND)
        assert hosts_of(worker, "a@one.example") == ["mx1.example"]

        await worker.pass_time(2 * MINUTE)

        assert hosts_of(worker, "a@one.example") == ["mx1.example", "mx2.example"]
        assert worker.delivered == {"a@one.example": 1}
        await worker.enqueue("b@one.example")
        await worker.pass_time(SECOND)
        assert hosts_of(worker, "b@one.example") == ["mx1.example"]


async def test_servers_of_one_preference_are_tried_in_turns_whichever_has_a_connection() -> None:
    """A connection that is open draws mail; one that refuses all would draw it for ever."""
    hops = Choosy(lambda host, recipient: host == "mx1.example")
    async with a_worker(hops=hops) as worker:
        worker.domain("one.example", "mx1.example", "mx2.example")
        for number in range(20):
            await worker.enqueue(f"{number}@one.example")
        await worker.pass_time(2 * MINUTE)

        assert sum(worker.delivered.values()) == 20
        assert max(len(hosts_of(worker, f"{number}@one.example")) for number in range(20)) == 2


async def test_only_the_recipient_that_was_refused_goes_to_the_backup() -> None:
    hops = Choosy(lambda host, recipient: (host, recipient[0]) == ("mx1.example", "a"))
    async with a_worker(hops=hops) as worker:
        two_tiers(worker)
        await worker.enqueue("a@one.example", "b@one.example")
        await worker.pass_time(2 * MINUTE)

        assert hosts_of(worker, "a@one.example") == ["mx1.example", "mx2.example"]
        assert hosts_of(worker, "b@one.example") == ["mx1.example"]
        assert worker.delivered == {"a@one.example": 1, "b@one.example": 1}


async def test_a_grey_list_of_each_server_sees_the_sender_again_at_the_third_attempt() -> None:
    """Each server accepts a recipient that it refused five minutes ago, or longer."""
    hops = Choosy(lambda host, recipient: False)
    seen: dict[tuple[str, str], timedelta] = {}
    async with a_worker(hops=hops) as worker:
        clock = worker.process.clock
        hops.refuses = lambda *at: (
            clock.elapsed() - seen.setdefault(at, clock.elapsed()) < 5 * MINUTE
        )
        for number in range(1, 8):
            worker.resolver.add(f"mx{number}.example", f"192.0.2.{number}")
        worker.resolver.add("one.example", *((n, f"mx{n}.example") for n in range(1, 8)))
        await worker.enqueue("a@one.example")
        await worker.pass_time(10 * MINUTE)

        assert hosts_of(worker, "a@one.example") == ["mx1.example", "mx2.example", "mx1.example"]
        assert worker.delivered == {"a@one.example": 1}


async def test_a_backup_that_is_away_leaves_the_mail_to_the_first_server() -> None:
    hops = Choosy(lambda host, recipient: len(hops.tried) == 1)
    hops.away = {"mx2.example": "451 4.4.1 connection refused"}
    async with a_worker(hops=hops) as worker:
        two_tiers(worker)
        await worker.enqueue("a@one.example")
        await worker.pass_time(3 * MINUTE)

        assert worker.delivered == {"a@one.example": 1}
        assert hosts_of(worker, "a@one.example") == ["mx1.example", "mx1.example"]
