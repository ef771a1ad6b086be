"""No mail's bytes outlive it, whatever was away or killed when; and no audit takes bytes that a
mail still needs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.queue_harness import Consumer, plain_mail
from postroad.adapters.memory.view import MemoryView
from postroad.distributed.entries.dead_letters import month_of
from postroad.distributed.maintenance import audit as audits
from postroad.domain.queues.entries import Ending, EndingKind, Mark
from postroad.domain.queues.names import key_of_bytes, key_of_owner
from postroad.domain.queues.selection import Selector
from postroad.domain.values.identifiers import id_at
from postroad.errors import (
    BlobsUnavailable,
    ClockSkew,
    DeadlineExceeded,
    PostroadError,
    QueueClosed,
)
from postroad.ports.view import FOREVER, DeadLetter
from support.in_memory_cluster import NAME, WINDOW, Before, InMemoryCluster, Process
from support.memory.fault_injection import Fault, Plan, Step, Stopped, at, away, no_fault

ALL = Selector.all()
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


def fails(operation: str, fault: Fault) -> Plan:
    return lambda step: fault if step.operation == operation else None


async def day(cluster: InMemoryCluster, process: Process) -> None:
    """Let a day pass, with maintenance and deliveries."""
    for _ in range(24 * 6):
        await cluster.pass_time(10 * MINUTE)
        await process.queue.maintain()
        await cluster.deliver(process, SECOND)


def orphaned(cluster: InMemoryCluster, number: int) -> str:
    """Store an object that no mail ever had; return its key."""
    now = cluster.clock.now()
    key = key_of_bytes(NAME, now, id_at(now, 0, number))
    cluster.blobs[key] = b"bytes"
    return key


async def held(cluster: InMemoryCluster, process: Process) -> None:
    """Wait without a message."""
    await cluster.enqueue(process, "mail")
    await process.queue.hold(ALL)
    await cluster.deliver(process, MINUTE)


async def delayed(cluster: InMemoryCluster, process: Process) -> None:
    """Wait for a message that comes after the slice is cleaned."""
    await cluster.enqueue(process, "mail", delay=4 * 3600)


# What endings leave


@pytest.mark.parametrize("plan", [away("blobs"), fails("delete", Fault.STOP_BEFORE)])
@pytest.mark.parametrize("prepare", [held, delayed])
async def test_bytes_of_removed_mail_go_whether_it_has_a_message_or_not(
    cluster: InMemoryCluster, process: Process, prepare: Callable[..., object], plan: Plan
) -> None:
    await prepare(cluster, process)  # type: ignore[misc]
    victim = await cluster.start()
    victim.faults.plan = plan
    with suppress(Stopped):
        await victim.queue.remove(ALL)
    assert len(cluster.blobs) == 1

    await day(cluster, await cluster.start())

    assert cluster.transmitted.total() == 0
    cluster.check_nothing_is_left()


async def test_bytes_go_when_deletions_failed_until_the_slice_was_cleaned(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, "mail")
    process.faults.plan = fails("delete", Fault.AWAY)
    consumer = Consumer(cluster, process.queue)
    item = await consumer.next()
    await item.done()
    for _ in range(6):
        await cluster.pass_time(10 * MINUTE)
        await process.queue.maintain()
        assert await consumer.nothing(MINUTE)
    assert cluster.tables.marks == {}
    process.faults.plan = no_fault
    await consumer.close()

    await day(cluster, process)

    cluster.check_nothing_is_left()


# What uploads leave


@pytest.mark.parametrize("fault", [Fault.ANSWER_LOST, Fault.AWAY])
async def test_upload_whose_answer_was_lost_is_deleted(
    cluster: InMemoryCluster, process: Process, fault: Fault
) -> None:
    process.faults.plan = fails("put", fault)

    with pytest.raises(BlobsUnavailable):
        await process.queue.enqueue(plain_mail("mail"))

    await process.queue._engine.finish_background()
    assert cluster.blobs == {}


async def test_upload_whose_caller_went_away_is_deleted(
    cluster: InMemoryCluster, process: Process
) -> None:
    """The request goes on in the store after its sender was cancelled."""
    entered = asyncio.Event()

    async def hang(step: Step) -> None:
        if step.operation == "put":
            entered.set()
            cluster.blobs[f"{NAME}/carried out all the same"] = b""
            await asyncio.Event().wait()

    process.faults.before = hang
    caller = asyncio.ensure_future(process.queue.enqueue(plain_mail("mail")))
    await entered.wait()
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)
    await process.queue._engine.finish_background()

    assert [each.operation for each in process.faults.steps][-1] == "delete"


async def test_upload_slower_than_the_audit_waits_is_refused(
    cluster: InMemoryCluster, process: Process
) -> None:
    async def slow(step: Step) -> None:
        if step.operation == "put":
            await cluster.pass_time(6 * HOUR + SECOND)

    process.faults.before = slow

    with pytest.raises(DeadlineExceeded, match="upload"):
        await process.queue.enqueue(plain_mail("mail"))

    await process.queue._engine.finish_background()
    assert cluster.blobs == {}


async def test_upload_of_a_killed_process_is_found_by_maintenance_once_no_row_can_come(
    cluster: InMemoryCluster, process: Process
) -> None:
    victim = await cluster.start()
    victim.faults.plan = fails("put", Fault.STOP_AFTER)
    with pytest.raises(Stopped):
        await victim.queue.enqueue(plain_mail("mail"))
    await cluster.pass_time(5 * HOUR + 50 * MINUTE)
    await process.queue.maintain()
    assert len(cluster.blobs) == 1

    await day(cluster, process)

    assert cluster.blobs == {}


async def test_dry_run_lists_and_deletes_nothing(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, "mail")
    key = orphaned(cluster, 0)
    await cluster.pass_time(7 * HOUR)

    found = [each async for each in process.queue.audit()]

    assert [(each.blob_key, each.deleted) for each in found] == [(key, False)]
    assert key in cluster.blobs
    assert len(cluster.blobs) == 2


async def test_a_clock_that_is_ahead_audits_nothing(
    cluster: InMemoryCluster, process: Process
) -> None:
    """By that clock, an upload that may still run looks older than any upload."""
    under_way = orphaned(cluster, 1)
    ahead = await cluster.start(skew=7 * HOUR)

    with pytest.raises(ClockSkew):
        async for _ in ahead.queue.audit(repair=True):
            pass
    with pytest.raises(ClockSkew):
        await ahead.queue.delete_orphans([under_way])

    assert under_way in cluster.blobs


@pytest.mark.parametrize("adopt", [False, True])
async def test_closed_queue_is_not_audited(
    cluster: InMemoryCluster, process: Process, adopt: bool
) -> None:
    objects = cluster.world.bucket("bucket").objects
    orphaned(cluster, 0)
    objects[key_of_owner(NAME)] = b"another's"
    before = dict(objects)
    await cluster.pass_time(7 * HOUR)
    await process.queue.close()

    with pytest.raises(QueueClosed):
        [each async for each in process.queue.audit(repair=True, adopt=adopt)]

    assert objects == before


async def test_what_no_mail_is_called_is_left_alone(
    cluster: InMemoryCluster, process: Process
) -> None:
    theirs = [
        f"{NAME}/readme",
        f"{NAME}/2024/06/09/{UUID(int=7)}",
        f"{NAME}2/2024/06/09/01900000-0000-7000-8000-000000000000",
    ]
    cluster.blobs.update(dict.fromkeys(theirs, b"x"))

    assert await cluster.audit() == []
    assert sorted(cluster.blobs) == sorted(theirs)


# What an audit leaves alone


async def test_bytes_of_every_mail_that_lives_stay(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, "held", "dead", "in flight", "plain")
    await cluster.enqueue(process, "delayed", delay=10**6)
    await process.queue.hold(Selector(name="held"))
    consumer = Consumer(cluster, process.queue)
    for _ in range(3):
        item = await consumer.next()
        if item.mail.name == "dead":
            await item.reject("no")
    keys = set(cluster.blobs)

    assert await cluster.audit() == []

    assert set(cluster.blobs) == keys
    assert len(keys) == 5
    await consumer.close()


async def test_bytes_of_a_message_that_could_not_be_read_stay(
    cluster: InMemoryCluster, process: Process
) -> None:
    """`requeue` hands it back as soon as it can be read; its row may have expired by then."""
    await cluster.enqueue(process, "mail")
    (message,) = cluster.broker.ready
    cluster.tables.rows.clear()
    dead_letter_id = UUID("01900000-0000-7000-8000-000000000001")
    now = process.clock.now()
    unreadable = DeadLetter(dead_letter_id, month_of(dead_letter_id), now, "no", None, message.body)
    await process.queue._engine.view.write_dead_letter(unreadable)

    assert await cluster.audit() == []


@pytest.mark.parametrize("after", ["end", "insert", "mark_published"])
async def test_bytes_of_a_replacement_that_stopped_half_way_stay(
    cluster: InMemoryCluster, process: Process, after: str
) -> None:
    await cluster.enqueue(process, "mail", delay=10**6)
    victim = await cluster.start()
    victim.faults.plan = fails(after, Fault.STOP_AFTER)
    with pytest.raises(Stopped):
        await victim.queue.hold(ALL)

    assert await cluster.audit() == []
    assert len(cluster.blobs) == 1


@pytest.mark.parametrize("row_lifetime", [timedelta(days=14), FOREVER])
async def test_bytes_of_late_mail_before_browse_start_stay(
    cluster: InMemoryCluster, process: Process, row_lifetime: timedelta
) -> None:
    """Its row is the only witness: it came after its slice was passed."""
    cluster.tables.row_lifetime = row_lifetime
    await cluster.enqueue(process, "late", delay=10**6)
    await cluster.pass_time(2 * HOUR)
    await process.queue._engine.view.advance(
        browse_start=process.clock.now() - HOUR, content_start=process.clock.now() - HOUR
    )

    assert await cluster.audit() == []
    assert len(cluster.blobs) == 1


async def test_bytes_stay_while_rows_of_their_time_have_vanished(
    cluster: InMemoryCluster, process: Process
) -> None:
    """The mail's message still comes."""
    await cluster.enqueue(process, "vanished", "kept", delay=12 * 3600)
    await cluster.pass_time(20 * MINUTE)
    await process.queue.maintain()
    assert cluster.tables.slices
    key = min(cluster.tables.rows)
    del cluster.tables.rows[key]

    assert await cluster.audit() == []
    names = await cluster.deliver(process, 13 * HOUR)

    assert sorted(names) == ["kept", "vanished"]


@pytest.mark.parametrize("names_bytes", [True, False])
async def test_bytes_of_an_undecodable_row_stay_even_if_it_names_none(
    cluster: InMemoryCluster, process: Process, monkeypatch: pytest.MonkeyPatch, names_bytes: bool
) -> None:
    await cluster.enqueue(process, "mail", delay=10**6)
    (entry,) = cluster.tables.live()
    cluster.tables.undecodable.add(entry.key)
    orphaned(cluster, 0)
    await cluster.pass_time(MINUTE)
    younger = orphaned(cluster, 1)
    auditor = await cluster.start()
    view = auditor.queue._engine.view
    blob_keys = view.blob_keys

    async def nameless(*place: Any) -> AsyncIterator[tuple[UUID, str | None]]:
        async for enqueue_id, _ in blob_keys(*place):
            yield enqueue_id, None

    if not names_bytes:
        monkeypatch.setattr(view, "blob_keys", nameless)
    await cluster.pass_time(7 * HOUR)
    found = [each.blob_key async for each in auditor.queue.audit(repair=True)]

    assert younger in found
    assert len(found) == (2 if names_bytes else 1)
    assert entry.blob_key in cluster.blobs


async def test_bytes_of_a_dead_letter_or_an_ending_that_cannot_be_decoded_stay(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, "ended")
    (entry,) = cluster.tables.live()
    unknown = Ending(EndingKind.UNKNOWN, cluster.clock.now())
    cluster.tables.marks[entry.key] = Mark(ending=unknown)
    await cluster.pass_time(MINUTE)
    orphaned(cluster, 0)
    await cluster.pass_time(MINUTE)
    now = cluster.clock.now()
    dead_letter_id = id_at(now, 0, 0)
    unread = DeadLetter(dead_letter_id, month_of(dead_letter_id), now, "no", None, is_decoded=False)
    await process.queue._engine.view.write_dead_letter(unread)
    await cluster.pass_time(MINUTE)
    younger = orphaned(cluster, 1)

    assert await cluster.audit() == [younger]


@pytest.mark.parametrize("operation", ["dead_letters", "occupied", "blob_keys", "marks", "limits"])
@pytest.mark.parametrize("number", range(8))
async def test_mail_that_moves_while_it_is_audited_keeps_its_bytes(
    cluster: InMemoryCluster, process: Process, operation: str, number: int
) -> None:
    """Between any two reads: from the dead letters to the rows, back, and on to another row."""
    await cluster.enqueue(process, "dead", "waits", delay=0)
    await process.queue.hold(Selector(name="waits"))
    consumer = Consumer(cluster, process.queue)
    await (await consumer.next()).reject("no")
    await consumer.close()
    mover = await cluster.start()
    await cluster.pass_time(7 * HOUR)
    auditor = await cluster.start()
    count = 0

    async def move(step: Step) -> None:
        nonlocal count
        if step.operation != operation:
            return
        count += 1
        if count == number + 1:
            await mover.queue.requeue(ALL)
            await mover.queue.release(ALL)
            await cluster.clock.advance(timedelta(0))
        elif count == number + 2:
            moved = Consumer(cluster, mover.queue)
            await (await moved.next()).reject("no")
            await moved.close()

    auditor.faults.before = move
    found = [each async for each in auditor.queue.audit(repair=True)]

    assert found == []
    assert len(cluster.blobs) == 2


async def test_mail_that_is_always_ahead_of_the_audit_keeps_its_bytes(
    cluster: InMemoryCluster, process: Process
) -> None:
    """Each time the audit reads rows, the mail gets a new one in a slice that was not listed."""
    await cluster.enqueue(process, "mail", delay=10**6)
    mover, auditor = await cluster.start(), await cluster.start()
    await cluster.pass_time(7 * HOUR)
    moves = 0

    async def move(step: Step) -> None:
        nonlocal moves
        if step.operation == "blob_keys" and moves < 10:
            moves += 1
            await cluster.pass_time(WINDOW)
            assert await (mover.queue.hold if moves % 2 else mover.queue.release)(ALL) == 1

    auditor.faults.before = move
    assert [each async for each in auditor.queue.audit(repair=True)] == []

    assert moves > 2
    assert len(cluster.blobs) == 1


@pytest.mark.parametrize("body", [b"garbage", None])
async def test_dead_letter_without_a_reference_needs_no_bytes(
    cluster: InMemoryCluster, process: Process, body: bytes | None
) -> None:
    orphan = orphaned(cluster, 0)
    await cluster.pass_time(MINUTE)
    now = cluster.clock.now()
    dead_letter_id = id_at(now, 0, 0)
    unreadable = DeadLetter(dead_letter_id, month_of(dead_letter_id), now, "no", None, body)
    await process.queue._engine.view.write_dead_letter(unreadable)

    assert await cluster.audit() == [orphan]


async def test_nothing_is_deleted_when_rows_were_cleaned_while_they_were_read(
    cluster: InMemoryCluster, process: Process
) -> None:
    """What was made and ended since the audit began cannot be seen any more."""
    victim = await cluster.start()
    victim.faults.plan = fails("put", Fault.STOP_AFTER)
    with pytest.raises(Stopped):
        await victim.queue.enqueue(plain_mail("orphan"))
    await cluster.pass_time(7 * HOUR)
    auditor = await cluster.start()
    view = process.queue._engine.view
    later = cluster.clock.now() + 2 * WINDOW
    auditor.faults.before = Before("occupied", lambda: view.advance(content_start=later))

    assert [each async for each in auditor.queue.audit(repair=True)] == []
    assert len(cluster.blobs) == 1


# Portions and processes


async def test_portions_find_what_one_look_finds(
    cluster: InMemoryCluster, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audits, "PORTION", 2)
    await cluster.enqueue(process, *(f"mail {number}" for number in range(7)), delay=10**6)
    orphans = [orphaned(cluster, number) for number in range(5)]

    assert await cluster.audit() == orphans
    assert len(cluster.blobs) == 7


async def test_an_audit_asks_about_no_more_partitions_at_once_where_there_are_many_buckets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Cassandra answers no request about thousands of them in time."""
    cluster = InMemoryCluster(buckets=60)
    process = await cluster.start()
    await cluster.enqueue(process, "waits", delay=10**6)
    orphan = orphaned(cluster, 1)
    await cluster.pass_time(7 * HOUR)
    occupied, asked = MemoryView.occupied, list[int]()

    def counted(view: MemoryView, starts: Sequence[datetime], buckets: int) -> Any:
        asked.append(len(starts) * buckets)
        return occupied(view, starts, buckets)

    monkeypatch.setattr(MemoryView, "occupied", counted)

    assert await cluster.audit() == [orphan]
    assert max(asked) <= 120
    await cluster.close()


async def test_one_process_of_several_audits_and_goes_on_where_it_was(
    cluster: InMemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audits, "PORTION", 1)
    several = [await cluster.start() for _ in range(3)]
    await cluster.enqueue(several[0], "one", "two", "three", delay=10**6)
    await cluster.pass_time(7 * HOUR)
    before = [len(each.faults.steps) for each in several]

    for _ in range(8):
        await cluster.pass_time(10 * MINUTE)
        for each in several:
            await each.queue.maintain()

    listed = [
        sum(step.operation == "keys" for step in each.faults.steps[first:])
        for each, first in zip(several, before, strict=True)
    ]
    # Three portions of one object, and one that finds the end; then hours of rest.
    assert sorted(listed)[:2] == [0, 0]
    assert max(listed) <= 8


async def test_another_process_audits_when_the_first_died(cluster: InMemoryCluster) -> None:
    first, second = await cluster.start(), await cluster.start()
    await cluster.pass_time(10 * MINUTE)
    await first.queue.maintain()
    first.faults.stop()
    orphaned(cluster, 0)

    for _ in range(80):
        await cluster.pass_time(10 * MINUTE)
        await second.queue.maintain()

    assert cluster.blobs == {}


async def test_an_audit_whose_process_ended_goes_on_in_another_after_half_an_hour(
    cluster: InMemoryCluster, process: Process
) -> None:
    """The claim of the process that ended lapses after three portions' time."""
    other = await cluster.start()
    orphan = orphaned(cluster, 1)
    await cluster.pass_time(7 * HOUR)
    process.fail(lambda step: Fault.STOP_AFTER if step.operation == "claim" else None)
    with suppress(Stopped):
        await process.queue._maintenance._audit.run()
    assert process.faults.stopped

    for _ in range(3):
        assert orphan in cluster.blobs
        await other.queue._maintenance._audit.run()
        await cluster.pass_time(10 * MINUTE)
    await other.queue._maintenance._audit.run()

    assert orphan not in cluster.blobs


async def test_maintenance_leaves_most_of_the_bytes_to_a_person(
    cluster: InMemoryCluster,
    process: Process,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The view may have been restored from a backup, or the bucket may be another queue's too."""
    monkeypatch.setattr(audits, "MAX_UNASKED", 2)
    await cluster.enqueue(process, "mail", delay=10**6)
    for number in range(5):
        orphaned(cluster, number)

    with caplog.at_level(logging.ERROR):
        await day(cluster, process)

    assert len(cluster.blobs) == 6
    assert any("most bytes have no mail" in each.message for each in caplog.records)
    assert len([each async for each in process.queue.audit(repair=True)]) == 5
    assert len(cluster.blobs) == 1


async def test_audit_stopped_at_any_step_takes_no_mails_bytes(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, "kept", delay=10**6)
    (kept,) = cluster.blobs
    await cluster.pass_time(7 * HOUR)
    for number in range(60):
        for fault in (Fault.STOP_AFTER, Fault.AWAY, Fault.ANSWER_LOST):
            orphaned(cluster, number)
            victim = await cluster.start()
            victim.fail(at(number, fault))
            with suppress(Stopped, PostroadError):
                async for _ in victim.queue.audit(repair=True):
                    pass
            assert kept in cluster.blobs
    await cluster.audit()
    assert list(cluster.blobs) == [kept]


# Any story


ACTIONS = (
    *("enqueue", "delayed", "upload", "retry", "reject", "done", "hold", "release"),
    *("remove", "purge", "requeue", "wait", "maintain"),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 25)), max_size=20))
def test_after_an_audit_every_mail_has_its_bytes_and_no_orphan_is_left(
    story: list[tuple[str, int]],
) -> None:
    asyncio.run(_tell(story))


async def _tell(story: list[tuple[str, int]]) -> None:
    """Each action runs in a process that may be killed or lose a server at one of its steps."""
    cluster = InMemoryCluster()
    await cluster.start()
    for number, (action, detail) in enumerate(story):
        victim = await cluster.start()
        fault = (Fault.STOP_AFTER, Fault.AWAY, Fault.ANSWER_LOST)[detail % 3]
        victim.fail(at(detail, fault))
        work = asyncio.ensure_future(_act(cluster, victim, action, f"mail {number % 4}"))
        if not await cluster.outcome(work, 3 * MINUTE):
            work.cancel()
        with suppress(Stopped, PostroadError, asyncio.CancelledError, StopAsyncIteration):
            await work
        victim.faults.stop()
    keeper = await cluster.start()
    for _ in range(3):
        await cluster.pass_time(10 * MINUTE)
        await keeper.queue.maintain()
    await cluster.audit()

    live = [entry.blob_key for entry in cluster.tables.live()]
    dead_letters = [
        each.entry.blob_key for each in cluster.tables.dead_letters.values() if each.entry
    ]
    assert set(cluster.blobs) >= set(live) | set(dead_letters)
    # An ended entry's row keeps its bytes only until it is cleaned.
    for _ in range(6):
        await cluster.pass_time(10 * MINUTE)
        await keeper.queue.maintain()
    await cluster.audit()
    held_back = [entry.blob_key for entry in cluster.tables.live()]
    dead_letters = [
        each.entry.blob_key for each in cluster.tables.dead_letters.values() if each.entry
    ]
    assert set(cluster.blobs) == set(held_back) | set(dead_letters)
    await cluster.close()


async def _act(cluster: InMemoryCluster, process: Process, action: str, name: str) -> None:
    queue = process.queue
    if action in {"enqueue", "delayed"}:
        await queue.enqueue(plain_mail(name), timedelta(hours=20 if action == "delayed" else 0))
    elif action == "upload":
        process.faults.plan = fails("put", Fault.STOP_AFTER)
        await queue.enqueue(plain_mail(name))
    elif action in {"hold", "release", "remove"}:
        await getattr(queue, action)(Selector(name=name))
    elif action == "requeue":
        await queue.requeue(ALL)
    elif action == "purge":
        await queue.purge()
    elif action == "maintain":
        await queue.maintain()
    elif action == "wait":
        await cluster.pass_time(10 * MINUTE)
    else:
        consumer = Consumer(cluster, queue, prefetch=1)
        if not await consumer.nothing(12 * SECOND):
            item = await consumer.next()
            ending = {"retry": lambda: item.retry(MINUTE), "reject": lambda: item.reject("no")}
            await ending.get(action, item.done)()
        await consumer.close()
