"""Messages that consumers crashed on, or that none could read: what maintenance does with each."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import pytest

from contract.queue_harness import plain_mail
from postroad.adapters.memory.broker import Message
from postroad.distributed.administration.dead_queue import KEPT_BYTES, UNREADABLE
from postroad.distributed.entries.dead_letters import OVER_THE_LIMIT
from postroad.domain.mail.mail import Outcome
from postroad.domain.queues.references import decode, encode
from postroad.domain.queues.selection import Selector
from postroad.errors import ViewRefused
from postroad.ports.view import Record
from postroad.telemetry import metrics
from support.in_memory_cluster import NAME, WINDOW, InMemoryCluster, Process
from support.memory.fault_injection import Fault, Step, Stopped

ALL = Selector.all()
MINUTE = timedelta(minutes=1)
MANY = tuple(f"user{number}@{'x' * 50}.example" for number in range(500))
"""Recipients whose envelope is too large for a message."""


def put_aside(cluster: InMemoryCluster) -> None:
    """Let the broker put aside what is ready."""
    while cluster.broker.ready:
        cluster.broker.dead_letter_message(cluster.broker.ready.popleft())


async def dead_letters(process: Process) -> list[tuple[str | None, str | None]]:
    return [(each.mail.name, each.reason) async for each in process.queue.dead_letters()]


async def test_a_message_without_a_reference_is_the_same_dead_letter_in_every_release(
    cluster: InMemoryCluster, process: Process
) -> None:
    """Two releases at work on one queue write one dead letter, filed under the month's first
    moment."""
    await cluster.pass_time(timedelta(days=3, hours=4, seconds=5, milliseconds=6))
    cluster.broker.dead.append(Message(UUID(int=1), b"garbage"))

    await process.queue.maintain()

    assert list(cluster.tables.dead_letters) == [UUID("019b76da-a800-7241-9df4-b0e27a373a55")]


async def test_a_message_of_a_slice_that_was_passed_is_acked(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, "mail")
    [message] = cluster.broker.ready
    assert await cluster.deliver(process) == ["mail"]
    for _ in range(4):
        await cluster.pass_time(WINDOW + 3 * MINUTE)
        await process.queue.maintain()
    assert not cluster.tables.marks
    cluster.broker.dead.append(message)

    await process.queue.maintain()

    cluster.check_nothing_is_left()


async def test_a_message_that_is_small_and_refused_is_kept_by_the_broker(
    cluster: InMemoryCluster, process: Process
) -> None:
    cluster.broker.dead.append(Message(UUID(int=1), b"x" * KEPT_BYTES))

    async def refuse(step: Step) -> None:
        if step.operation == "write_dead_letter":
            raise ViewRefused("no")

    process.faults.before = refuse
    with pytest.raises(ViewRefused):
        await process.queue.maintain()

    assert (len(cluster.broker.dead), cluster.broker.unacked_dead) == (1, 0)


async def test_a_removed_mail_loses_the_bytes_that_its_removal_left(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, "mail")
    process.faults.plan = lambda step: Fault.AWAY if step.server == "blobs" else None
    assert await process.queue.remove(ALL) == 1
    process.fail(lambda _: None)
    put_aside(cluster)

    await process.queue.maintain()

    cluster.check_nothing_is_left()


async def test_a_dead_letter_keeps_its_bytes(cluster: InMemoryCluster, process: Process) -> None:
    await cluster.enqueue(process, "mail")
    assert await process.queue.expire(ALL) == 1
    put_aside(cluster)

    await process.queue.maintain()

    cluster.check_nothing_is_left(dead=["mail"])


async def test_a_replacement_that_stopped_is_finished(cluster: InMemoryCluster) -> None:
    process, victim = await cluster.start(), await cluster.start()
    await cluster.enqueue(process, "mail")
    await cluster.pass_time(MINUTE)
    victim.fail(lambda step: Fault.STOP_BEFORE if step.operation == "publish" else None)
    with pytest.raises(Stopped):
        await victim.queue.republish(timedelta(0))
    put_aside(cluster)

    await process.queue.maintain()

    assert (len(cluster.broker.dead), cluster.broker.unacked_dead) == (0, 0)
    [successor] = cluster.broker.delayed_messages
    assert decode(successor.body).previous
    assert all(each.is_final for each in cluster.tables.marks.values())
    assert await cluster.deliver(process) == ["mail"]
    cluster.check_nothing_is_left()


async def test_a_mail_whose_consumers_crashed_too_often_is_given_up(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, "crashes", "waits")
    limit = process.queue._engine.delivery_limit
    crashes, waits = (
        decode(each.body).again(crashes=count)
        for each, count in zip(cluster.broker.ready, (limit, limit - 1), strict=True)
    )
    cluster.broker.ready.clear()
    for each in (crashes, waits):
        cluster.broker.dead.append(Message(each.key.enqueue_id, encode(each)))

    await process.queue.maintain()

    assert await dead_letters(process) == [("crashes", OVER_THE_LIMIT)]
    assert (len(cluster.broker.dead), cluster.broker.unacked_dead) == (0, 0)
    [again] = cluster.broker.delayed_messages
    assert decode(again.body).crashes == limit
    assert await cluster.deliver(process, timedelta(hours=2)) == ["waits"]
    cluster.check_nothing_is_left(dead=["crashes"])


@pytest.mark.parametrize("meets", ["maintenance", "consumer"])
@pytest.mark.parametrize("got", [1, 2])
async def test_a_mail_that_is_given_up_is_no_dead_letter_of_those_who_got_it(
    cluster: InMemoryCluster, process: Process, meets: str, got: int
) -> None:
    """Its consumers broke down after they had recorded whom they delivered it to. The records
    expire before the dead letter does, which a requeue delivers."""
    both = ("a@x.example", "b@x.example")
    await process.queue.enqueue(plain_mail("mail", recipients=both))
    reference = decode(cluster.broker.ready.popleft().body)
    for each in both[:got]:
        record = Record(each, Outcome.delivered("250 ok"), cluster.clock.now())
        await process.queue._engine.view.record(reference.mail_id, (record,))
    body = encode(reference.again(crashes=process.queue._engine.delivery_limit))
    if meets == "maintenance":
        cluster.broker.dead.append(Message(UUID(int=1), body))
        await process.queue.maintain()
    else:
        cluster.broker.ready.append(Message(UUID(int=1), body, 1, redelivered=True))
    assert await cluster.deliver(process, timedelta(hours=2)) == []

    found = [each.mail.recipients async for each in process.queue.dead_letters()]
    assert found == ([both[1:]] if got == 1 else [])
    cluster.check_nothing_is_left(dead=["mail"] if got == 1 else [])


async def test_a_mail_that_is_given_up_under_a_replacement_waits_for_its_successor(
    cluster: InMemoryCluster,
) -> None:
    """Administration replaces it after maintenance read that it has no mark."""
    process, admin = await cluster.start(), await cluster.start()
    await cluster.enqueue(process, "mail")
    await cluster.pass_time(MINUTE)
    [message] = cluster.broker.ready
    reference = decode(message.body).again(crashes=process.queue._engine.delivery_limit)
    cluster.broker.ready.clear()
    cluster.broker.dead.append(Message(message.message_id, encode(reference)))
    admin.fail(lambda step: Fault.STOP_AFTER if step.operation == "end" else None)
    stopped: list[Step] = []

    async def before(step: Step) -> None:
        if step.operation == "write_dead_letter" and not stopped:
            with pytest.raises(Stopped):
                await admin.queue.republish(timedelta(0))
            stopped.append(step)

    process.faults.before = before
    process.queue._maintenance._rows._due = timedelta(days=1)

    await process.queue.maintain()

    assert stopped
    assert await dead_letters(process) == []
    assert all(each.is_final for each in cluster.tables.marks.values())
    assert await cluster.deliver(process) == ["mail"]
    cluster.check_nothing_is_left()


async def test_a_large_envelope_is_read_from_its_row(
    cluster: InMemoryCluster, process: Process
) -> None:
    await process.queue.enqueue(plain_mail("mail", recipients=MANY))
    put_aside(cluster)

    await process.queue.maintain()

    assert await cluster.deliver(process) == ["mail"]
    cluster.check_nothing_is_left()


async def test_a_row_that_cannot_be_decoded_counts_as_no_crash(
    cluster: InMemoryCluster, process: Process
) -> None:
    await process.queue.enqueue(plain_mail("mail", recipients=MANY))
    [key] = cluster.tables.rows
    cluster.tables.undecodable.add(key)
    put_aside(cluster)

    await process.queue.maintain()

    [again] = cluster.broker.delayed_messages
    assert decode(again.body).crashes == 0
    assert await dead_letters(process) == []
    cluster.tables.undecodable.clear()
    assert await cluster.deliver(process, MINUTE) == ["mail"], "it waits no longer than that"


async def test_a_large_envelope_whose_row_is_gone_leaves_the_message(
    cluster: InMemoryCluster, process: Process
) -> None:
    await process.queue.enqueue(plain_mail("mail", recipients=MANY))
    [key] = cluster.tables.rows
    del cluster.tables.rows[key]
    body = cluster.broker.ready[0].body
    put_aside(cluster)

    await process.queue.maintain()

    assert await dead_letters(process) == [("unreadable message", UNREADABLE)]
    assert [each.body for each in cluster.tables.dead_letters.values()] == [body]
    assert (len(cluster.broker.dead), cluster.broker.unacked_dead) == (0, 0)


async def test_a_task_discards_dead_letters_that_cannot_be_read_and_that_came_before(
    cluster: InMemoryCluster, process: Process
) -> None:
    await process.queue.enqueue(plain_mail("mail", recipients=MANY))
    cluster.tables.rows.clear()
    created = cluster.clock.now()
    await cluster.pass_time(MINUTE)
    put_aside(cluster)
    await process.queue.maintain()
    assert await dead_letters(process) == [("unreadable message", UNREADABLE)]

    before = [replace(Selector.all(), accepted_before=created)]
    before += [replace(Selector.all(), accepted_before=created + 2 * MINUTE)]

    assert [await process.queue.discard(each) for each in before] == [0, 1]


async def test_a_consumer_puts_aside_a_message_whose_mail_has_no_envelope(
    cluster: InMemoryCluster, process: Process
) -> None:
    """Neither the message nor a row has it; others are delivered meanwhile."""
    await process.queue.enqueue(plain_mail("mail", recipients=MANY))
    [key] = cluster.tables.rows
    del cluster.tables.rows[key]
    await cluster.enqueue(process, "next")

    unreadable = metrics.SKIPPED.labels(NAME.namespace, NAME.name, "unreadable")._value
    before = unreadable.get()

    assert await cluster.deliver(process) == ["next"]

    assert len(cluster.broker.dead) == 1
    assert unreadable.get() == before + 1
