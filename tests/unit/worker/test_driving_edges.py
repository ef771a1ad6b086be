"""Deliveries at their edges: a recipient named twice, a lease that ends, a stop, an item that is
given up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta

import pytest
import structlog

from postroad.distributed.dequeue.items import DistributedItem
from postroad.domain.delivery.attempts import Attempted
from postroad.domain.mail.mail import Mail, Outcome
from postroad.errors import BlobsUnavailable, EntryLost
from postroad.routing.answers import Answer, Question
from postroad.routing.routes import NoRoute
from postroad.routing.tables import RouteRequest
from postroad.scheduling.events import Decision, Event, NotOpened
from postroad.worker.jobs import deliveries
from postroad.worker.jobs.deliveries import UNEXPECTED, Deliverer
from postroad.worker.jobs.transmissions import KEPT_WHILE_WAITING, NO_TIME_LEFT
from postroad.worker.route_finder import DeliveryRoute
from postroad.worker.runner import NO_ROUTER
from support.memory.clock import settle
from support.workers import A_HOP
from unit.worker.test_driving import MINUTE, SECOND, Worker, a_worker, until


class Log:
    """An attempt log that notes recipients and outcomes."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def write(
        self, attempted: Attempted, outcomes: Mapping[str, Outcome], *, given_up: bool = False
    ) -> None:
        self.lines += [(each, outcome.kind.value) for each, outcome in outcomes.items()]


def logging(worker: Worker) -> Log:
    log = Log()
    object.__setattr__(worker.driving._deliverer, "attempt_log", log)
    return log


async def test_a_recipient_named_twice_gets_one_copy_and_the_item_ends() -> None:
    async with a_worker() as worker:
        worker.domain("one.example")
        await worker.enqueue("a@one.example", "b@one.example", "a@one.example")
        await worker.pass_time(SECOND)

        assert worker.delivered == {"a@one.example": 1, "b@one.example": 1}
        assert (len(worker.driving), (await worker.queue.size()).size) == (0, 0)


async def test_the_end_of_a_lease_breaks_off_no_other_mail_of_the_connection() -> None:
    """Y is being transmitted; X waits behind it on the connection, and its lease ends."""
    async with a_worker() as worker:
        worker.domain("slow.example")
        worker.hops.gate.clear()
        await worker.enqueue("y@slow.example", sender="y@o.example")
        await worker.pass_time(SECOND)
        await worker.enqueue("x@slow.example", sender="x@o.example")
        await worker.pass_time(SECOND)
        assert len(worker.hops.opened) == 1
        (late,) = (e for e in worker.driving._ledgers if e.item.mail.sender == "x@o.example")
        late.item.lease_until = worker.process.clock.elapsed()  # type: ignore[misc]
        await worker.pass_time(2 * SECOND)

        worker.hops.gate.set()
        await until(lambda: len(worker.driving) == 0)

        assert worker.delivered == {"y@slow.example": 1}
        assert await worker.waiting() == {"x@slow.example": (0, NO_TIME_LEFT)}


async def test_a_mail_that_another_connection_takes_over_does_not_seem_to_wait() -> None:
    """X waits behind Y on a connection that ends; then the routes of all that waits are found anew,
    while the next connection has X."""
    async with a_worker() as worker:
        worker.domain("slow.example")
        worker.hops.gate.clear()
        await worker.enqueue("y@slow.example", sender="y@o.example")
        await worker.pass_time(SECOND)
        await worker.enqueue("x@slow.example", sender="x@o.example")
        await worker.pass_time(SECOND)
        (first,) = worker.driving._links._links
        worker.driving._links.abort(first)
        await worker.pass_time(SECOND)
        assert len(worker.hops.opened) == 2
        (job,) = worker.driving._jobs
        assert job.recipients == ("x@slow.example",)

        worker.driving.route_again()
        await worker.pass_time(SECOND)
        worker.hops.gate.set()
        await until(lambda: len(worker.driving) == 0)

        assert worker.delivered["x@slow.example"] == 1


async def test_the_end_of_a_lease_breaks_off_the_mail_itself() -> None:
    async with a_worker() as worker:
        worker.domain("slow.example")
        worker.hops.stuck.add("mx.slow.example")
        await worker.enqueue("x@slow.example")
        await worker.pass_time(26 * MINUTE)

        ((attempt, error),) = (await worker.waiting()).values()
        assert (attempt, "may be delivered" in (error or "")) == (1, True)
        assert len(worker.driving) == 0


async def test_a_stop_records_and_logs_what_connections_heard() -> None:
    async with a_worker(within=1) as worker:
        log = logging(worker)
        worker.domain("stuck.example")
        worker.hops.stuck.add("mx.stuck.example")
        await worker.enqueue("a@stuck.example")
        await worker.pass_time(SECOND)
        await worker.driving.end(timedelta(milliseconds=50))

        ((attempt, error),) = (await worker.waiting()).values()
        assert (attempt, "may be delivered" in (error or "")) == (1, True)
        assert log.lines == [("a@stuck.example", "deferred")]


async def test_a_stop_opens_no_connection() -> None:
    async with a_worker() as worker:
        worker.domain("stuck.example")
        worker.hops.stuck.add("mx.stuck.example")
        for number in range(5):
            await worker.enqueue(f"r{number}@stuck.example")
        await worker.pass_time(SECOND)
        before = len(worker.hops.opened)
        await worker.driving.end(timedelta(milliseconds=50))

        assert len(worker.hops.opened) == before


async def test_what_is_heard_of_an_item_that_was_given_up_is_logged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def lost(self: DistributedItem, outcomes: object) -> None:
        raise EntryLost("its row is gone")

    async with a_worker() as worker:
        log = logging(worker)
        worker.domain("fast.example")
        worker.domain("slow.example")
        worker.hops.stuck.add("mx.slow.example")
        monkeypatch.setattr(DistributedItem, "record", lost)
        await worker.enqueue("a@fast.example", "b@slow.example")
        await worker.pass_time(SECOND)
        assert len(worker.driving) == 0

        worker.hops.stuck.clear()
        for link in worker.driving._links._links.values():
            link.connection._changed.set()  # type: ignore[union-attr]
        await settle()

        assert log.lines == [("a@fast.example", "delivered"), ("b@slow.example", "delivered")]


def let_look_ups_wait(worker: Worker, monkeypatch: pytest.MonkeyPatch, name: str) -> asyncio.Event:
    """Let questions about a name wait until the event is set."""
    answers, look_up = asyncio.Event(), worker.resolver.look_up

    async def slowly(*questions: Question) -> tuple[Answer, ...]:
        if any(each.name.endswith(name) for each in questions):
            await answers.wait()
        return await look_up(*questions)

    monkeypatch.setattr(worker.resolver, "look_up", slowly)
    return answers


async def test_a_recipient_whose_route_is_looked_up_blocks_no_other_of_its_mail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor is its content kept meanwhile, nor is its mail deferred for want of a connection."""
    async with a_worker(window=1) as worker:
        worker.domain("known.example")
        worker.domain("slow.example")
        await worker.enqueue("w@known.example")  # now its route is known
        await worker.pass_time(SECOND)
        answers = let_look_ups_wait(worker, monkeypatch, "slow.example")
        content = b"Subject: x\r\n\r\n" + b"x" * KEPT_WHILE_WAITING + b"\r\n"
        recipients = ("a@known.example", "b@slow.example")
        await worker.queue.enqueue(Mail("s@o.example", recipients, content))
        await worker.pass_time(2 * MINUTE)

        assert set(worker.delivered) == {"w@known.example", "a@known.example"}
        (ledger,) = worker.driving._ledgers
        assert ledger.item._content is None  # type: ignore[attr-defined]

        answers.set()
        await worker.pass_time(SECOND)
        assert set(worker.delivered) == {"w@known.example", *recipients}


async def test_mails_that_wait_for_look_ups_do_not_keep_others_from_being_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Domains without an answer, more of them than there are lookups at a time."""
    async with a_worker(window=300) as worker:
        worker.domain("well.example")
        await worker.enqueue("w@well.example")  # now its route is known
        await worker.pass_time(SECOND)
        let_look_ups_wait(worker, monkeypatch, "silent.example")
        for number in range(400):
            await worker.enqueue(f"r@d{number}.silent.example")
        await worker.enqueue("a@well.example")
        await worker.pass_time(SECOND)
        assert set(worker.delivered) == {"w@well.example"}

        await worker.pass_time(2 * MINUTE)

        assert set(worker.delivered) == {"w@well.example", "a@well.example"}
        assert (0, NO_ROUTER) in (await worker.waiting()).values()


async def test_the_log_of_mail_that_was_not_tried_has_the_class_of_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written = structlog.testing.LogCapture()
    monkeypatch.setattr(deliveries, "_log", structlog.wrap_logger(None, [written]))
    async with a_worker() as worker:
        worker.domain("dead.example")
        worker.hops.away["mx.dead.example"] = "451 4.4.1 connection refused"
        await worker.enqueue("a@dead.example")
        await worker.pass_time(MINUTE)

    line = written.entries[0]
    assert (line["event"], line["attempt"]) == ("mail deferred", 1)
    assert line["reasons"] == ["unreachable"]
    assert "dead.example" not in str(line)


async def test_a_content_that_cannot_be_read_is_no_success_of_its_next_hop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a hop that is away backoffs for short times only, where mails without bytes wait for
    it."""

    def failing(self: DistributedItem) -> AsyncIterator[bytes]:
        raise BlobsUnavailable("the store is away")

    async with a_worker() as worker:
        worker.domain("dead.example")
        worker.hops.away["mx.dead.example"] = "451 4.4.1 connection refused"
        await worker.enqueue("a@dead.example")
        await worker.pass_time(SECOND)
        worker.hops.away.clear()
        monkeypatch.setattr(DistributedItem, "stream", failing)
        await worker.pass_time(20 * SECOND)

        assert len(worker.hops.opened) == 2
        assert next(iter(await worker.waiting())) == "a@dead.example"
        destinations = worker.driving._scheduler._destinations._records
        assert [each.failures for each in destinations.values()] == [1]


async def test_the_end_of_a_lease_ends_the_look_ups_of_its_mail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with a_worker() as worker:
        let_look_ups_wait(worker, monkeypatch, "slow.example")
        await worker.enqueue("x@slow.example")
        await worker.pass_time(26 * MINUTE)

        assert await worker.waiting() == {"x@slow.example": (0, NO_TIME_LEFT)}
        assert len(worker.driving) == 0


async def test_contents_of_mails_that_no_connection_has_are_not_kept() -> None:
    async with a_worker(window=300) as worker:
        worker.domain("fast.example")
        worker.domain("slow.example")
        worker.hops.stuck.add("mx.slow.example")
        content = b"Subject: x\r\n\r\n" + b"x" * KEPT_WHILE_WAITING + b"\r\n"
        for number in range(200):
            recipients = (f"a{number}@fast.example", f"b{number}@slow.example")
            await worker.queue.enqueue(Mail("s@o.example", recipients, content))
        await worker.pass_time(10 * SECOND)

        kept = [each for each in worker.driving._ledgers if each.item._content is not None]  # type: ignore[attr-defined]
        jobs = list(worker.driving._jobs)
        assert len(worker.driving) == 200
        assert 0 < len(kept) <= sum(job.connection is not None for job in jobs) < 200

        worker.hops.stuck.clear()
        for link in worker.driving._links._links.values():
            link.connection._changed.set()  # type: ignore[union-attr]
        await worker.pass_time(MINUTE)
        assert len(worker.delivered) == 400
        assert {len(content) for _, content in worker.hops.delivered} == {len(content)}


@pytest.mark.parametrize("reply", ["421 4.3.2 later", "451 4.4.2 the connection was lost"])
async def test_a_hop_that_ends_each_session_over_its_first_mail_costs_one_mail_a_rest(
    reply: str,
) -> None:
    """The others go by another host, or wait as for one that accepts no connection."""
    async with a_worker() as worker:
        worker.domain("one.example")
        worker.hops.unavailable["mx.one.example"] = reply
        for number in range(50):
            await worker.enqueue(f"r{number}@one.example")
        await worker.pass_time(4 * MINUTE)

        waiting = (await worker.waiting()).values()
        assert len(worker.hops.opened) <= 5
        assert sum(attempt for attempt, _ in waiting) == len(worker.hops.opened)

        worker.domain("two.example", "mx.one.example", "mx.two.example")
        for number in range(20):
            await worker.enqueue(f"r{number}@two.example")
        await worker.pass_time(SECOND)
        assert len(worker.delivered) >= 19, "at most one was tried at the host that is due"


async def test_a_hop_that_asks_to_be_left_alone_is_asked_again_when_that_time_is_over() -> None:
    async with a_worker(has_relay=True) as worker:
        worker.hops.backoffs[A_HOP.host] = 10 * MINUTE
        for number in range(5):
            await worker.enqueue(f"r{number}@one.example")
            await worker.pass_time(SECOND)
        assert len(worker.hops.opened) == 1
        await worker.pass_time(MINUTE)
        attempts = [attempt for attempt, _ in (await worker.waiting()).values()]
        assert sorted(attempts) == [0, 0, 0, 0, 1], "those that came later were not attempted"

        worker.hops.backoffs.clear()
        await worker.pass_time(8 * MINUTE)
        assert len(worker.hops.opened) == 1
        assert not worker.delivered
        await worker.pass_time(5 * MINUTE)
        assert sum(worker.delivered.values()) == 5


async def test_an_item_whose_routing_fails_with_an_unexpected_error_leaves_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with a_worker(window=1) as worker:
        worker.domain("well.example")
        known = worker.routes.known

        def failing(request: RouteRequest) -> DeliveryRoute | NoRoute | None:
            if request.domain == "poison.example":
                raise RuntimeError("unexpected")
            return known(request)

        monkeypatch.setattr(worker.routes, "known", failing)
        await worker.enqueue("x@well.example", "y@poison.example")
        await worker.enqueue("a@well.example")
        await worker.pass_time(2 * SECOND)

        assert worker.delivered == {"a@well.example": 1}
        assert await worker.waiting() == {"x@well.example": (0, UNEXPECTED)}


async def test_an_outcome_survives_an_unexpected_error_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The book of sites, or the attempt log, fails: the mail has its outcome, and its connection
    the next mail."""
    async with a_worker(window=1) as worker:
        worker.domain("well.example")

        def failing(*_: object, **__: object) -> None:
            raise RuntimeError("unexpected")

        with monkeypatch.context() as patched:
            patched.setattr(worker.driving._book, "replied", failing)
            await worker.enqueue("a@well.example")
            await worker.pass_time(SECOND)
        with monkeypatch.context() as patched:
            patched.setattr(logging(worker), "write", failing)
            await worker.enqueue("b@well.example")
            await worker.pass_time(SECOND)
        await worker.enqueue("c@well.example")
        await worker.pass_time(SECOND)

        assert worker.delivered == {f"{each}@well.example": 1 for each in "abc"}
        assert (len(worker.driving), (await worker.queue.size()).size) == (0, 0)
        assert len(worker.hops.opened) == 1
        assert not worker.driving._scheduler._at_work


async def test_a_job_whose_connection_is_lost_in_an_unexpected_error_waits_in_the_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with a_worker(window=1) as worker:
        worker.domain("dead.example")
        worker.domain("well.example")
        worker.hops.away["mx.dead.example"] = "451 4.4.1 connection refused"
        on = worker.driving._scheduler.on

        def failing(event: Event, now: float) -> list[Decision]:
            if isinstance(event, NotOpened):
                raise RuntimeError("unexpected")
            return on(event, now)

        monkeypatch.setattr(worker.driving._scheduler, "on", failing)
        await worker.enqueue("x@dead.example")
        await worker.enqueue("a@well.example")
        await worker.pass_time(2 * SECOND)

        assert worker.delivered == {"a@well.example": 1}
        assert await worker.waiting() == {"x@dead.example": (0, UNEXPECTED)}


async def test_an_item_whose_end_fails_with_an_unexpected_error_comes_again_for_who_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise RuntimeError("unexpected")

    async with a_worker(window=1) as worker:
        worker.domain("well.example")
        worker.hops.outcomes["b@well.example"] = Outcome.deferred("451 4.2.0 later")
        with monkeypatch.context() as patched:
            patched.setattr(Deliverer, "_ending", failing)
            await worker.enqueue("a@well.example", "b@well.example")
            await worker.pass_time(SECOND)
        assert await worker.waiting() == {"b@well.example": (0, UNEXPECTED)}

        worker.hops.outcomes.clear()
        await worker.enqueue("c@well.example")
        await worker.pass_time(30 * MINUTE)
        assert worker.delivered == {f"{each}@well.example": 1 for each in "abc"}
