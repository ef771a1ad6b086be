"""What the view holds and this release cannot decode is set aside, and in the way of nothing."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import pytest

from contract.queue_harness import Consumer, plain_mail
from postroad.domain.mail.mail import Outcome
from postroad.domain.queues.entries import Change, Ending, EndingKind, Entry, EntryKey, Mark
from postroad.domain.queues.selection import Selector
from postroad.errors import Undecodable
from postroad.ports.view import Record
from postroad.telemetry import metrics
from support.in_memory_cluster import LONG, NAME, WINDOW, Before, InMemoryCluster, Process
from support.memory.fault_injection import Step

ALL = Selector.all()
MINUTE = timedelta(minutes=1)
LIFETIME = timedelta(hours=2)


@pytest.fixture
async def cluster() -> AsyncIterator[InMemoryCluster]:
    cluster = InMemoryCluster()
    cluster.tables.row_lifetime = LIFETIME
    yield cluster
    await cluster.close()


def row_of(cluster: InMemoryCluster, name: str) -> Entry:
    return next(each for each in cluster.tables.live() if each.envelope.name == name)


def spoil(cluster: InMemoryCluster, name: str) -> EntryKey:
    """Let a mail's row be one that this release cannot decode; its message is gone."""
    key = row_of(cluster, name).key
    cluster.tables.undecodable.add(key)
    cluster.broker.ready = type(cluster.broker.ready)(
        each for each in cluster.broker.ready if each.message_id != key.enqueue_id
    )
    return key


def mark_unknown(cluster: InMemoryCluster, name: str) -> Entry:
    """Let a mail's entry have an ending of a newer release."""
    entry = row_of(cluster, name)
    cluster.tables.marks[entry.key] = Mark(ending=Ending(EndingKind.UNKNOWN, cluster.clock.now()))
    cluster.tables.traits[entry.key] = entry.traits
    return entry


async def names(process: Process) -> list[str | None]:
    return [view.mail.name async for view in process.queue.browse()]


def found(what: str) -> float:
    return float(metrics.UNDECODABLE.labels(NAME.namespace, NAME.name, what)._value.get())


async def maintenance(cluster: InMemoryCluster, process: Process, rounds: int) -> None:
    for _ in range(rounds):
        await cluster.pass_time(10 * MINUTE)
        await process.queue.maintain()


async def test_row_that_cannot_be_decoded_stops_no_operation_on_the_others(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, "bad", "held", "removed", "delayed", delay=10**6)
    spoil(cluster, "bad")

    assert await process.queue.hold(Selector(name="held")) == 1
    assert await process.queue.remove(Selector(name="removed")) == 1
    assert await process.queue.flush(ALL) == 1
    assert sorted(map(str, await names(process))) == ["delayed", "held", "unreadable mail"]
    assert await process.queue.release(ALL) == 1
    assert sum((await process.queue.ages())["example.net"].values()) == 2
    assert (await process.queue.size()).size == 3


@pytest.mark.parametrize("all_of_them", [True, False])
async def test_row_that_cannot_be_decoded_is_listed_and_removed(
    cluster: InMemoryCluster, process: Process, all_of_them: bool
) -> None:
    await cluster.enqueue(process, "good", "bad")
    key = spoil(cluster, "bad")

    shown = {view.mail.name: view async for view in process.queue.browse()}
    assert set(shown) == {"good", "unreadable mail"}
    bad = shown["unreadable mail"]
    assert bad.enqueue_id == key.enqueue_id
    assert "cannot be decoded" in (bad.last_error or "")
    assert await process.queue.remove(Selector(name="bad")) == 0
    selector = ALL if all_of_them else Selector(enqueue_id=key.enqueue_id)
    assert await process.queue.remove(selector) == 1 + all_of_them

    assert [view async for view in process.queue.browse(Selector(name="unreadable mail"))] == []
    cluster.tables.undecodable.remove(key)
    assert await names(process) == ([] if all_of_them else ["good"])


async def test_row_that_cannot_be_decoded_lets_no_other_expire_and_does_not_itself(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, "bad", "held", delay=10**6)
    await process.queue.hold(Selector(name="held"))
    key = spoil(cluster, "bad")

    await maintenance(cluster, process, rounds=40)

    assert sorted(each.envelope.name or "" for each in cluster.tables.live()) == ["bad", "held"]
    cluster.tables.undecodable.remove(key)
    assert sorted(str(each) for each in await names(process)) == ["bad", "held"]


async def test_records_of_recipients_are_renewed_with_a_row_that_cannot_be_decoded(
    cluster: InMemoryCluster, process: Process
) -> None:
    """Once it is decoded, these recipients are attempted no more."""
    await cluster.enqueue(process, "bad", delay=10**6)
    (entry,) = cluster.tables.live()
    got = Record("recipient@example.net", Outcome.delivered("250"), cluster.clock.now())
    await process.queue._engine.view.record(entry.mail_id, (got,))
    spoil(cluster, "bad")
    began = len(process.faults.steps)

    await maintenance(cluster, process, rounds=40)

    assert "record" in {each.operation for each in process.faults.steps[began:]}


async def test_row_is_renewed_although_its_delivery_records_cannot_be_decoded_either(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, "bad", delay=10**6)
    key = spoil(cluster, "bad")

    async def spoil_records(step: Step) -> None:
        if step.operation == "records":
            raise Undecodable("an outcome of a newer release")

    process.faults.before = spoil_records

    await maintenance(cluster, process, rounds=40)

    cluster.tables.undecodable.remove(key)
    assert await names(process) == ["bad"]


async def test_slice_of_a_row_that_cannot_be_decoded_is_kept_until_its_mail_has_ended(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, "bad", delay=10**6)
    key = spoil(cluster, "bad")
    await maintenance(cluster, process, rounds=3)
    start = cluster.tables.limits.browse_start
    assert start is not None
    assert start <= key.slice_start
    cluster.tables.marks[key] = Mark(delivered_at=cluster.clock.now())

    await maintenance(cluster, process, rounds=4)

    assert key not in cluster.tables.rows
    assert key not in cluster.tables.marks


async def test_purge_ends_a_row_that_cannot_be_decoded(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, "bad", "good", delay=10**6)
    spoil(cluster, "bad")
    await cluster.pass_time(WINDOW)

    assert await process.queue.purge() == 2
    assert cluster.blobs == {}


async def test_what_is_set_aside_is_alarmed_by_place_and_never_by_address(
    cluster: InMemoryCluster, process: Process, caplog: pytest.LogCaptureFixture
) -> None:
    await cluster.enqueue(process, "bad", "ended", "good", delay=10**6)
    key = spoil(cluster, "bad")
    mark_unknown(cluster, "ended")

    with caplog.at_level(logging.WARNING):
        await process.queue.maintain()

    [watermark] = [
        each for each in caplog.records if "row" in each.message and each.levelname == "ERROR"
    ]
    said = vars(watermark)
    assert (said["slice"], said["bucket"], said["enqueue_id"]) == (
        key.slice_start.isoformat(),
        key.bucket_id,
        str(key.enqueue_id),
    )
    assert not [each for each in caplog.records if "@" in str(vars(each))]
    assert (found("row"), found("mark"), found("dead_letter")) == (1, 1, 0)
    del cluster.tables.marks[next(iter(cluster.tables.marks))]
    cluster.tables.undecodable.clear()
    await maintenance(cluster, process, rounds=1)
    assert (found("row"), found("mark")) == (0, 0)


async def test_mail_whose_ending_is_unknown_is_never_delivered_and_keeps_its_bytes(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, "ended", "good")
    entry = mark_unknown(cluster, "ended")
    delivered = replace(cluster.tables.marks[entry.key], delivered_at=cluster.clock.now())

    assert await cluster.deliver(process) == ["good"]
    assert await names(process) == []
    assert (await process.queue.size()).size == 0
    assert await process.queue.remove(ALL) == 0
    for mark in (cluster.tables.marks[entry.key], delivered):
        cluster.tables.marks[entry.key] = mark
        await maintenance(cluster, process, rounds=5)
        assert entry.key in cluster.tables.rows
        assert entry.key in cluster.tables.marks
        assert set(cluster.blobs) == {entry.blob_key}


async def test_consumer_whose_mail_gets_an_unknown_ending_stops(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, "ended")
    consumer, item = await cluster.take(process)
    entry = mark_unknown(cluster, "ended")

    await item.retry(MINUTE)

    assert cluster.tables.marks[entry.key].is_unknown
    assert await consumer.nothing(LONG)
    assert set(cluster.blobs) == {entry.blob_key}


async def test_message_without_envelope_waits_for_a_release_that_decodes_its_row(
    cluster: InMemoryCluster, process: Process
) -> None:
    """A large envelope is not in the message. Meanwhile others are delivered."""
    recipients = tuple(f"user{number}@{'x' * 50}.example" for number in range(500))
    await process.queue.enqueue(plain_mail("bad", recipients=recipients))
    await cluster.enqueue(process, "good")
    key = row_of(cluster, "bad").key
    cluster.tables.undecodable.add(key)

    assert await cluster.deliver(process) == ["good"]
    assert cluster.tables.dead_letters == {}
    cluster.tables.undecodable.clear()
    assert await cluster.deliver(process) == ["bad"]


async def test_mark_whose_change_makes_no_mail_stops_no_operation_on_the_others(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, "bad", "good", delay=10**6)
    entry = row_of(cluster, "bad")
    change = replace(Change.nothing(entry), remaining=())
    successor = EntryKey(entry.key.slice_start, 0, process.queue._engine.ids.new())
    ending = Ending(EndingKind.REPLACED, cluster.clock.now(), successor, change)
    cluster.tables.marks[entry.key] = Mark(ending=ending)
    cluster.tables.traits[entry.key] = entry.traits

    assert await names(process) == ["good"]
    assert await process.queue.hold(ALL) == 1


async def test_delivery_of_a_mail_whose_row_cannot_be_decoded_keeps_its_slice(
    cluster: InMemoryCluster, process: Process
) -> None:
    """Its held successor would wait for ever, if the slice were passed."""
    await cluster.enqueue(process, "mail")
    consumer, item = await cluster.take(process)
    assert await process.queue.hold(ALL) == 1
    entry = next(each for each in cluster.tables.rows.values() if not each.held)
    await item.done()
    await consumer.close()
    cluster.tables.undecodable.add(entry.key)
    await cluster.pass_time(4 * WINDOW)

    await process.queue.maintain()

    assert not cluster.tables.limits.have_passed(entry.key.slice_start)
    cluster.tables.undecodable.clear()
    assert await cluster.recover() == []
    cluster.check_nothing_is_left()


async def test_dead_letter_that_cannot_be_decoded_is_listed_and_stays(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, "bad", "good")
    ids: dict[str, UUID] = {}
    consumer = Consumer(cluster, process.queue)
    for item in [await consumer.next(), await consumer.next()]:
        ids[item.mail.name or ""] = item.enqueue_id
        await item.reject("no")
    await consumer.close()
    spoilt = cluster.tables.dead_letters[ids["bad"]]
    cluster.tables.dead_letters[ids["bad"]] = replace(spoilt, entry=None, is_decoded=False)

    listed = [each.enqueue_id async for each in process.queue.dead_letters()]

    assert sorted(listed) == sorted(ids.values())
    assert await process.queue.requeue(ALL) == 1
    await maintenance(cluster, process, rounds=1)
    assert list(cluster.tables.dead_letters) == [ids["bad"]]
    assert found("dead_letter") == 1


async def test_dead_letter_of_an_entry_whose_ending_is_unknown_stays(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, "ended")
    _, item = await cluster.take(process)
    await item.reject("no")
    [key] = cluster.tables.marks
    cluster.tables.marks[key] = Mark(ending=Ending(EndingKind.UNKNOWN, cluster.clock.now()))

    await maintenance(cluster, process, rounds=2)

    assert await process.queue.requeue(ALL) == 0
    assert list(cluster.tables.dead_letters) == [key.enqueue_id]


@pytest.mark.parametrize("is_paused", [False, True], ids=["suspended", "paused"])
async def test_row_renewed_after_its_slice_was_cleaned_is_no_late_mail(
    cluster: InMemoryCluster, process: Process, is_paused: bool
) -> None:
    """Another release decoded and flushed it meanwhile; the message of its old entry comes
    later."""
    victim = await cluster.start()
    await cluster.enqueue(process, "bad", delay=2.5 * 3600)
    key = row_of(cluster, "bad").key
    cluster.tables.undecodable.add(key)
    await cluster.pass_time(65 * MINUTE)

    async def stand_still() -> None:
        start = cluster.clock.elapsed()
        cluster.tables.undecodable.clear()
        assert await process.queue.flush(ALL) == 1
        assert await cluster.deliver(process) == ["bad"]
        while key in cluster.tables.rows or key in cluster.tables.marks:
            await maintenance(cluster, process, rounds=1)
        if is_paused:
            victim.clock.pause(cluster.clock.elapsed() - start)

    before = Before("renew_row", stand_still)
    victim.faults.before = before
    await victim.queue._maintenance._rows.run()

    assert before.happened
    assert key in cluster.tables.rows
    await cluster.pass_time(60 * MINUTE)
    assert await cluster.recover() == []
    assert cluster.copies("bad") == 1
