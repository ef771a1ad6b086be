"""Mails behind one another on connections to a relay, and what a worker that is killed or stopped
does of them: the distributed queue in memory, SMTP to hops that a test scripts."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import cast
from unittest.mock import patch

import pytest

from postroad.bootstrap.targets import rules_of, target_of, window_of
from postroad.delivery_settings.delivery import DeliveryFileSettings
from postroad.delivery_settings.hops import Hop
from postroad.domain.delivery.retries import RetryPlan
from postroad.domain.mail.mail import Mail, Outcome
from postroad.domain.smtp.next_hops import NextHop
from postroad.ports.delivery import BeforeEnd, OnEvent, at_once
from postroad.ports.mail_queue import Item
from postroad.routing.routes import ResolvedHop
from postroad.scheduling.ranking import SchedulerRules
from postroad.settings import Settings
from postroad.settings.delivery import Worker as WorkerSettings
from postroad.smtp.client.connections import SmtpConnection
from postroad.smtp.client.jobs import MAX_SERIES
from postroad.worker.jobs.deliveries import Deliverer
from postroad.worker.jobs.item_progress import ItemProgress
from postroad.worker.jobs.worker_connections import WorkerConnection
from postroad.worker.route_finder import RelayRoutes
from postroad.worker.runner import Consumer
from support.fake_hop import CLOSE, FakeHop, HopRule
from support.in_memory_cluster import InMemoryCluster, Process
from support.memory.clock import ManualClock, SeededRandomness, settle
from support.memory.fault_injection import Step
from support.smtp_connections import connect
from support.workers import a_driving

MAILS = 12
RECORD = "mark_delivered"


class FakeHops:
    """Opens connections to fake hops that follow one rule, and counts what they have."""

    def __init__(self) -> None:
        self.opened: list[FakeHop] = []
        self.rule: HopRule = lambda verb, mail: None

    def open(
        self, hop: ResolvedHop, on_event: OnEvent, before_end: BeforeEnd = at_once
    ) -> SmtpConnection:
        fake = FakeHop(lambda verb, mail: self.rule(verb, mail), extensions=EXTENSIONS)
        self.opened.append(fake)
        chunking = hop.next_hop.chunking
        return connect(fake, on_event, before_end=before_end, chunking=chunking)

    @property
    def kept(self) -> Counter[bytes]:
        """How often each content arrived whole."""
        return Counter(each for hop in self.opened for each in hop.kept.values())

    @property
    def begun(self) -> int:
        """How many mails they were asked to take."""
        return sum(hop.verbs.count("MAIL") for hop in self.opened)


EXTENSIONS = ("PIPELINING", "CHUNKING")


class Worker:
    """A worker with a relay, as its settings have it; or with one smart host that gets chunks.
    `most_unrecorded`: how many mails the next hop had at most that were not recorded."""

    def __init__(
        self, cluster: InMemoryCluster, process: Process, connections: int, *, in_chunks: bool
    ) -> None:
        section = WorkerSettings(concurrency=connections)
        settings = Settings(worker=section)
        relay = Hop(host="relay.example")
        target = target_of(settings, DeliveryFileSettings(relay=relay))
        assert isinstance(target, NextHop)
        rules, window = rules_of(settings, target), window_of(settings, target)
        if in_chunks:
            rules = SchedulerRules(connections, per_destination=connections)
            window = settings.worker.window
            target = replace(target, chunking=True)
        self.queue, self.hops, self.process = process.queue, FakeHops(), process
        self.is_recording = asyncio.Event()
        """Cleared, no record becomes durable."""
        self.is_recording.set()
        self.recorded = self.most_unrecorded = 0
        self.driving = a_driving(
            self.hops,
            RetryPlan(),
            process.clock,
            SeededRandomness(7),
            routes=RelayRoutes(target),
            rules=rules,
        )
        self.consumer = Consumer(self.queue, self.driving, window=window)
        self.stop = asyncio.Event()
        process.faults.before = self._before

    async def _before(self, step: Step) -> None:
        if step.operation == RECORD:
            await self.is_recording.wait()
            for _ in range(20):  # the server takes its time
                await asyncio.sleep(0)
            self.recorded += 1

    def counting(self, rule: HopRule) -> HopRule:
        """Count at each end what the relay has and no record."""

        def counted(verb: str, mail: int) -> bytes | None:
            if verb == "DOT":
                unrecorded = self.hops.kept.total() - self.recorded
                self.most_unrecorded = max(self.most_unrecorded, unrecorded)
            return rule(verb, mail)

        return counted

    async def waiting(self) -> list[int]:
        """Return the attempts of each mail that waits."""
        return [view.attempt async for view in self.queue.browse()]


@asynccontextmanager
async def a_worker(
    connections: int,
    rule: HopRule = lambda verb, mail: None,
    *,
    mails: int = MAILS,
    in_chunks: bool = False,
) -> AsyncIterator[Worker]:
    cluster = InMemoryCluster()
    worker = Worker(cluster, await cluster.start(), connections, in_chunks=in_chunks)
    worker.hops.rule = worker.counting(rule)
    for number in range(mails):
        content = b"Subject: %d\r\n\r\nx\r\n" % number
        await worker.queue.enqueue(Mail("a@o.example", ("b@d.example",), content))
    running = asyncio.create_task(worker.consumer.run(worker.stop, timedelta(seconds=30)))
    try:
        yield worker
    finally:
        worker.is_recording.set()
        worker.stop.set()
        await running
        await cluster.close()


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(20_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it did not come to that")


async def quiet() -> None:
    for _ in range(20):
        await settle()


@pytest.mark.parametrize("connections", [1, 2, 5])
async def test_a_mail_is_behind_another_one_on_the_wire_and_each_arrives_once(
    connections: int,
) -> None:
    async with a_worker(connections) as worker:
        await until(lambda: worker.hops.kept.total() == MAILS and not len(worker.driving))

        assert set(worker.hops.kept.values()) == {1}
        assert 1 <= worker.most_unrecorded <= connections
        assert not any("BDAT" in hop.verbs for hop in worker.hops.opened)
        ahead = sum(hop.received.count(b"\r\n.\r\nMAIL") for hop in worker.hops.opened)
        assert ahead >= MAILS // 2 - connections


@pytest.mark.parametrize("connections", [1, 2, 5])
async def test_a_worker_that_is_killed_repeats_at_most_a_mail_for_each_connection(
    connections: int,
) -> None:
    """No record becomes durable from the start on, as before a kill, however long it takes; the
    next mail of each connection is begun, and the relay does not get its end."""
    async with a_worker(connections) as worker:
        worker.is_recording.clear()
        await quiet()

        assert worker.hops.kept.total() == connections
        assert worker.hops.begun == 2 * connections
        assert len(await worker.waiting()) == MAILS

        worker.is_recording.set()
        await until(lambda: worker.hops.kept.total() == MAILS and not len(worker.driving))
        assert worker.most_unrecorded == connections


@pytest.mark.parametrize("reply", [CLOSE, b"421 4.7.0 one mail a session\r\n"])
@pytest.mark.parametrize("connections", [1, 2])
async def test_that_holds_with_a_relay_that_closes_each_connection_behind_a_mail(
    connections: int, reply: bytes
) -> None:
    """Else the one in its place would leave a further mail without a record, and so on."""
    async with a_worker(connections, lambda *at: reply if at == ("MAIL", 2) else None) as worker:
        worker.is_recording.clear()
        await quiet()
        assert worker.hops.kept.total() == connections

        worker.is_recording.set()
        await until(lambda: worker.hops.kept.total() == MAILS and not len(worker.driving))
        assert set(worker.hops.kept.values()) == {1}
        assert worker.most_unrecorded == connections
        assert len(worker.hops.opened) >= MAILS


@pytest.mark.parametrize("verb", ["RCPT", "DOT"])
@pytest.mark.parametrize("connections", [1, 2])
async def test_a_worker_that_is_stopped_begins_no_further_mail(connections: int, verb: str) -> None:
    """The relay answers slowly; mails wait behind those that it has, at DOT on the wire, too."""
    is_silent = True

    def rule(given: str, mail: int) -> bytes | None:
        return b"" if is_silent and (given, mail) == (verb, 1) else None

    async with a_worker(connections, rule) as worker:
        await until(lambda: sum(verb in hop.verbs for hop in worker.hops.opened) == connections)
        await quiet()
        behind = sum(job.connection is not None for job in worker.driving._jobs)
        assert behind == 2 * connections
        worker.stop.set()
        await quiet()
        is_silent = False
        for hop in worker.hops.opened:
            hop.go_on(b"250 ok\r\n")
        await until(lambda: not len(worker.driving))

        assert worker.hops.kept.total() == connections
        assert await worker.waiting() == [0] * (MAILS - connections)


async def test_a_worker_that_is_stopped_while_it_connects_begins_no_mail() -> None:
    async with a_worker(2, lambda verb, mail: b"" if verb == "GREETING" else None) as worker:
        await until(lambda: bool(worker.hops.opened))
        await quiet()
        worker.stop.set()
        await until(lambda: not len(worker.driving))

        assert (len(worker.hops.opened), worker.hops.begun) == (1, 0)
        assert await worker.waiting() == [0] * MAILS


async def test_mails_behind_one_whose_connection_is_lost_are_no_attempt() -> None:
    lost = iter([CLOSE])

    def rule(verb: str, mail: int) -> bytes | None:
        return next(lost, None) if (verb, mail) == ("DOT", 3) else None

    async with a_worker(1, rule) as worker:
        await until(lambda: worker.hops.kept.total() == MAILS and not len(worker.driving))

        assert await worker.waiting() == [1], "the one that was in doubt alone is tried again"


@pytest.mark.parametrize("connections", [1, 2])
async def test_whole_series_follow_one_another_and_one_lacks_a_record(connections: int) -> None:
    """Each round trip takes a series of ten mails, and a process that is killed repeats so many for
    each connection."""
    mails = 100
    async with a_worker(connections, mails=mails, in_chunks=True) as worker:
        await until(lambda: worker.hops.kept.total() == mails and not len(worker.driving))

        assert set(worker.hops.kept.values()) == {1}
        series = sum(hop.verbs.count("DATA") for hop in worker.hops.opened)
        assert series <= mails // MAX_SERIES + 3 * connections
        assert MAX_SERIES <= worker.most_unrecorded <= MAX_SERIES * connections


class HeldItem:
    """An item whose records wait for a test, one by one."""

    def __init__(self) -> None:
        self.mail = Mail("a@o.example", ("one@d.example", "two@d.example"), b"")
        self.lets = asyncio.Semaphore(0)

    async def record(self, outcomes: Mapping[str, Outcome]) -> None:
        await self.lets.acquire()


async def test_a_record_is_waited_for_and_not_those_of_what_is_heard_after_it() -> None:
    """Else a connection would wait until a mail for many sites is quiet."""
    item, over = HeldItem(), list[ItemProgress]()
    deliverer = Deliverer("q", RetryPlan(), ManualClock(), SeededRandomness(7))
    ledger = ItemProgress(cast("Item", item), deliverer, over.append)
    ledger.open_jobs.add(1)
    recordings = []
    with patch.object(Deliverer, "note"):
        for recipient in item.mail.recipients:
            recordings.append(ledger.recording())
            ledger.on_outcomes({recipient: Outcome.delivered()})
            ledger.go_on()
            await settle()
    assert [each.done() for each in recordings] == [False, False]

    item.lets.release()
    await settle()
    assert [each.done() for each in recordings] == [True, False]

    ledger.cancel()
    assert [each.done() for each in recordings] == [True, True]
    assert ledger.recording().done()
    assert over == [ledger]


async def test_a_mail_waits_for_records_that_are_not_made_yet_alone() -> None:
    made, pending = (asyncio.get_running_loop().create_future() for _ in range(2))
    made.set_result(None)
    link = WorkerConnection("hop", [pending, made])

    waiting = asyncio.create_task(link.until_recorded())
    await asyncio.sleep(0)

    assert link.unrecorded == [pending]
    pending.set_result(None)
    await waiting
    assert link.unrecorded == []
