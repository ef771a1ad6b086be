"""What goes wrong with one mail in a round of maintenance stays with that mail; what goes wrong
with a server ends the part of the round, and nothing is held on to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from contract.queue_harness import Consumer, plain_mail
from postroad.adapters.memory.broker import Message
from postroad.distributed.administration.dead_queue import KEPT_BYTES
from postroad.distributed.engine.timing import AT_ONCE
from postroad.distributed.entries.endings import IN_A_ROW, MAX_LOGGED
from postroad.domain.mail.mail import Outcome
from postroad.domain.queues.selection import Selector
from postroad.errors import BrokerUnavailable, CredentialsRefused, ViewRefused, ViewUnavailable
from postroad.telemetry import metrics
from support.in_memory_cluster import NAME, WINDOW, Before, InMemoryCluster, Process
from support.memory.fault_injection import Fault, Step, away, no_fault

ALL = Selector.all()
SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
LIFETIME = timedelta(hours=2)


class DriverBug(Exception):
    """No error that postroad knows."""


@pytest.fixture
async def cluster() -> AsyncIterator[InMemoryCluster]:
    cluster = InMemoryCluster()
    cluster.tables.row_lifetime = LIFETIME
    yield cluster
    await cluster.close()


def break_at(process: Process, operation: str, times: int = 1) -> None:
    """Let a step raise an unexpected error."""
    left = [times]

    async def before(step: Step) -> None:
        if step.operation == operation and left[0]:
            left[0] -= 1
            raise DriverBug(operation)

    process.faults.before = before


def errors() -> float:
    return float(metrics.MAINTENANCE_ERRORS.labels(NAME.namespace, NAME.name)._value.get())


async def wait_half_a_lifetime(cluster: InMemoryCluster) -> None:
    await cluster.pass_time(LIFETIME / 2 + MINUTE)


async def test_mail_that_cannot_be_rolled_forward_keeps_no_other_from_it(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, "bad", "good", "better", delay=10**6)
    await wait_half_a_lifetime(cluster)
    break_at(process, "end")
    before = errors()

    await process.queue.maintain()

    old = [entry for entry in cluster.tables.live() if entry.accepted_at == entry.enqueued_at]
    assert [entry.envelope.name for entry in old] == ["bad"]
    assert errors() == before + 1


async def test_trouble_with_very_many_mails_keeps_no_other_from_maintenance_and_is_raised(
    cluster: InMemoryCluster, process: Process, caplog: pytest.LogCaptureFixture
) -> None:
    """What is never rolled forward is lost when its row expires."""
    bad = [f"bad{number}" for number in range(MAX_LOGGED + 1)]
    await cluster.enqueue(process, *bad, "good", "better", delay=10**6)
    await wait_half_a_lifetime(cluster)
    order = [
        entry.envelope.name for entry in sorted(cluster.tables.live(), key=lambda t: t.enqueue_id)
    ]
    assert order[-2:] == ["good", "better"]
    break_at(process, "end", times=len(bad))
    before = errors()

    with pytest.raises(DriverBug):
        await process.queue.maintain()

    old = [entry for entry in cluster.tables.live() if entry.accepted_at == entry.enqueued_at]
    assert sorted(entry.envelope.name or "" for entry in old) == sorted(bad)
    assert errors() == before + len(bad)
    logged = [each for each in caplog.records if "failed for a mail" in each.getMessage()]
    assert len(logged) == MAX_LOGGED


async def test_server_that_is_away_ends_the_round_at_once(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, *(f"mail{number}" for number in range(100)), delay=10**6)
    await wait_half_a_lifetime(cluster)
    process.faults.plan = lambda step: Fault.AWAY if step.operation == "end" else None
    first = len(process.faults.steps)

    with pytest.raises(ViewUnavailable):
        await process.queue.maintain()

    tried = [step.operation for step in process.faults.steps[first:]].count("end")
    assert tried < IN_A_ROW + AT_ONCE
    process.faults.plan = no_fault
    await process.queue.maintain()
    assert not [entry for entry in cluster.tables.live() if entry.accepted_at == entry.enqueued_at]


@pytest.mark.parametrize("mails", [1, 50])
async def test_server_that_failed_for_every_mail_is_asked_again_in_the_next_round(
    cluster: InMemoryCluster, process: Process, mails: int
) -> None:
    await cluster.enqueue(process, *(f"mail{number}" for number in range(mails)), delay=10**6)
    await wait_half_a_lifetime(cluster)
    process.faults.plan = away("broker")
    with pytest.raises(BrokerUnavailable):
        await process.queue.maintain()
    process.faults.plan = no_fault

    await cluster.pass_time(2 * MINUTE)
    await process.queue.maintain()

    assert not [entry for entry in cluster.tables.live() if entry.accepted_at == entry.enqueued_at]
    assert all(mark.is_final for mark in cluster.tables.marks.values())


async def test_server_error_of_one_mail_keeps_no_other_from_maintenance(
    cluster: InMemoryCluster, process: Process
) -> None:
    """As when one delay queue of the delay queues is missing."""
    await cluster.enqueue(process, "bad", "good", "better", delay=10**6)
    await wait_half_a_lifetime(cluster)
    left = [1]

    def no_route(step: Step) -> Fault | None:
        left[0] -= step.operation == "publish"
        return Fault.AWAY if step.operation == "publish" and left[0] == 0 else None

    process.faults.plan = no_route
    before = errors()

    await process.queue.maintain()

    names = sorted(cluster.tables.rows[key].envelope.name or "" for key in cluster.tables.marks)
    assert names == ["bad", "better", "good"]
    assert errors() == before + 1


async def test_old_mails_are_rolled_forward_several_at_once(
    cluster: InMemoryCluster, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.enqueue(process, *(f"mail{number}" for number in range(50)), delay=10**6)
    await wait_half_a_lifetime(cluster)
    running, most = 0, 0
    end = process.queue._engine.view.end

    async def slow_end(*args: Any) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(10):
            await asyncio.sleep(0)
        running -= 1
        return await end(*args)

    monkeypatch.setattr(process.queue._engine.view, "end", slow_end)
    await process.queue.maintain()

    assert most == AT_ONCE
    assert not [entry for entry in cluster.tables.live() if entry.accepted_at == entry.enqueued_at]


async def test_dead_letter_that_cannot_be_maintained_keeps_no_other_from_it(
    cluster: InMemoryCluster, process: Process
) -> None:
    """Both burials stopped between dead letter and mark."""
    await cluster.enqueue(process, "bad", "good")
    consumer = Consumer(cluster, process.queue)
    for item in [await consumer.next(), await consumer.next()]:
        await item.reject("no")
    cluster.tables.marks.clear()
    break_at(process, "read_dead_letter")

    await process.queue.maintain()

    marked = {cluster.tables.rows[key].envelope.name for key in cluster.tables.marks}
    assert marked == {"good"}
    await consumer.close()


async def test_mail_that_cannot_be_settled_keeps_its_slice_and_nothing_else(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, "mail")
    _, item = await cluster.take(process)
    break_at(process, "insert")
    with pytest.raises(DriverBug):
        await item.retry(timedelta(0))
    start = cluster.tables.limits.browse_start
    await cluster.pass_time(4 * WINDOW)
    process.queue._maintenance._rows._due = timedelta(days=1)
    break_at(process, "change_successor")

    await process.queue.maintain()
    ((held_back, *_), before) = sorted({key.slice_start for key in cluster.tables.rows}), start
    assert cluster.tables.limits.browse_start is not None
    assert before is not None
    assert before < cluster.tables.limits.browse_start <= held_back

    for _ in range(3):
        await cluster.pass_time(WINDOW)
        await process.queue.maintain()
    assert cluster.tables.limits.have_passed(held_back)


async def test_message_that_breaks_its_handling_is_a_dead_letter_and_blocks_no_other(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, "bad", "good")
    cluster.broker.dead.extend(cluster.broker.ready)
    cluster.broker.ready.clear()
    break_at(process, "mark")

    await process.queue.maintain()

    (view,) = [each async for each in process.queue.dead_letters()]
    assert view.reason is not None
    assert "DriverBug" in view.reason
    assert await cluster.deliver(process, MINUTE) == ["good"]
    assert await process.queue.requeue(ALL) == 1
    assert await cluster.deliver(process, MINUTE) == ["bad"]
    cluster.check_nothing_is_left()


async def test_message_that_a_server_refuses_to_handle_stays_in_the_dead_queue(
    cluster: InMemoryCluster, process: Process
) -> None:
    """An administrator mends the credentials; a dead letter would have to be requeued by hand."""
    await cluster.enqueue(process, "mail")
    cluster.broker.dead.extend(cluster.broker.ready)
    cluster.broker.ready.clear()
    process.faults.before = Before("mark", refused)

    with pytest.raises(CredentialsRefused):
        await process.queue.maintain()

    assert (len(cluster.broker.dead), cluster.broker.unacked_dead) == (1, 0)
    assert cluster.tables.dead_letters == {}
    assert await cluster.recover() == ["mail"]


async def refused() -> None:
    raise CredentialsRefused("no")


async def test_message_that_the_view_cannot_keep_whole_is_cut_and_blocks_no_other(
    cluster: InMemoryCluster, process: Process
) -> None:
    """Cassandra refuses what is larger than half a commit log segment."""
    garbage = b"x" * (KEPT_BYTES + 1)
    cluster.broker.dead.append(Message(UUID(int=1), garbage))
    cluster.broker.dead.append(Message(UUID(int=2), b"small"))
    left = [1]

    async def refuse_first(step: Step) -> None:
        if step.operation == "write_dead_letter" and left[0]:
            left[0] -= 1
            raise ViewRefused("the mutation is too large")

    process.faults.before = refuse_first

    await process.queue.maintain()

    cut, small = sorted(
        cluster.tables.dead_letters.values(), key=lambda each: -len(each.body or b"")
    )
    assert cut.body == garbage[:KEPT_BYTES]
    assert str(len(garbage)) in cut.reason
    assert small.body == b"small"
    assert len(cluster.broker.dead) == cluster.broker.unacked_dead == 0


async def test_a_message_without_a_reference_is_one_dead_letter_however_often_it_comes(
    cluster: InMemoryCluster, process: Process
) -> None:
    for later in (timedelta(0), timedelta(milliseconds=1), SECOND, MINUTE, HOUR, 24 * HOUR):
        await cluster.pass_time(later)
        cluster.broker.dead.append(Message(UUID(int=1), b"garbage"))
        await process.queue.maintain()

    assert not cluster.broker.dead
    assert len(cluster.tables.dead_letters) == 1


async def test_messages_of_the_dead_queue_are_given_back_when_a_round_ends_early(
    cluster: InMemoryCluster, process: Process
) -> None:
    cluster.broker.dead.append(Message(UUID(int=1), b"garbage"))
    process.faults.plan = away("view")
    with pytest.raises(ViewUnavailable):
        await process.queue.maintain()

    assert (len(cluster.broker.dead), cluster.broker.unacked_dead) == (1, 0)
    process.faults.plan = no_fault
    await process.queue.maintain()
    assert len(cluster.tables.dead_letters) == 1


async def test_delivery_records_live_as_long_as_the_mail_that_needs_them(
    cluster: InMemoryCluster, process: Process
) -> None:
    """Cassandra forgets a record a row's lifetime after it was written; a held mail is kept."""
    both = ("one@example.net", "two@example.net")
    await process.queue.enqueue(plain_mail("mail", recipients=both))
    consumer, item = await cluster.take(process)
    assert await process.queue.hold(ALL) == 1
    await item.record(dict.fromkeys(both[:1], Outcome.delivered("250")))
    await item.retry(timedelta(0))
    await consumer.close()

    written = cluster.clock.now()

    async def note_writing(step: Step) -> None:
        nonlocal written
        if step.operation == "record":
            written = cluster.clock.now()

    process.faults.before = note_writing
    for _ in range(5):
        await wait_half_a_lifetime(cluster)
        await process.queue.maintain()
        if cluster.clock.now() - written >= LIFETIME:
            cluster.tables.records.clear()

    await process.queue.release(ALL)
    _, again = await cluster.take(process)
    assert again.mail.recipients == both[1:]
