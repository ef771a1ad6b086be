"""A stopped replacement is listed once, and counts as no removal once its mail was delivered; a
message that is handed back leaves no dead letter."""

from __future__ import annotations

import pytest

from postroad.distributed.entries.dead_letters import month_of
from postroad.domain.mail.mail import Outcome
from postroad.domain.queues.references import Reference, encode
from postroad.domain.queues.selection import Selector
from postroad.ports.view import DeadLetter, Record
from support.in_memory_cluster import InMemoryCluster
from support.memory.fault_injection import Fault, Stopped
from support.suspension import suspended

ALL = Selector.all()


async def test_a_mail_under_replacement_is_listed_once() -> None:
    cluster = InMemoryCluster(buckets=1)
    process, victim = await cluster.start(), await cluster.start()
    await cluster.enqueue(process, "mail")
    victim.fail(lambda step: Fault.STOP_BEFORE if step.operation == "mark_published" else None)
    with pytest.raises(Stopped):
        await victim.queue.hold(ALL)

    assert [each.held async for each in process.queue.browse()] == [True]


async def test_a_removal_that_meets_a_delivery_under_replacement_removes_no_mail() -> None:
    cluster = InMemoryCluster(buckets=1)
    worker, victim, admin = [await cluster.start() for _ in range(3)]
    await cluster.enqueue(worker, "mail")
    consumer, item = await cluster.take(worker)
    suspension, removing = await suspended(cluster, admin, "end", admin.queue.remove(ALL))
    victim.fail(lambda step: Fault.STOP_AFTER if step.operation == "end" else None)
    with pytest.raises(Stopped):
        await victim.queue.hold(ALL)
    await item.done()
    await consumer.close()

    suspension.end()

    assert await removing == 0
    assert (await worker.queue.size()).size == 0
    assert await cluster.recover() == []
    cluster.check_nothing_is_left()


async def test_administration_that_comes_second_does_not_count_a_mail_delivered_meanwhile() -> None:
    """Another administrator replaced the entry that a consumer had in flight."""
    cluster = InMemoryCluster(buckets=1)
    worker, first, second = [await cluster.start() for _ in range(3)]
    await cluster.enqueue(worker, "mail")
    consumer, item = await cluster.take(worker)
    suspension, holding = await suspended(cluster, second, "end", second.queue.hold(ALL))
    assert await first.queue.hold(ALL) == 1
    await item.done()
    await consumer.close()

    suspension.end()

    assert await holding == 0
    assert await cluster.recover() == []
    cluster.check_nothing_is_left()


async def test_mail_that_all_recipients_got_does_not_expire() -> None:
    """The consumer stopped between the last record and the mark."""
    cluster = InMemoryCluster()
    process = await cluster.start()
    await cluster.enqueue(process, "mail")
    [entry] = cluster.tables.rows.values()
    view, now = process.queue._engine.view, cluster.clock.now()
    got = Record("recipient@example.net", Outcome.delivered("250"), now)
    await view.record(entry.mail_id, (got,))

    assert await process.queue.expire(ALL) == 0

    assert cluster.tables.dead_letters == {}


async def test_a_message_that_is_handed_back_loses_its_dead_letter() -> None:
    cluster = InMemoryCluster(buckets=1)
    process = await cluster.start()
    await cluster.enqueue(process, "mail")
    engine = process.queue._engine
    [entry] = cluster.tables.rows.values()
    body = encode(Reference.to(entry, claim=True))
    dead_letter_id = engine.ids.new()
    dead_letter = DeadLetter(
        dead_letter_id, month_of(dead_letter_id), engine.clock.now(), "unread", None, body
    )
    await engine.view.write_dead_letter(dead_letter)

    assert await process.queue.requeue(ALL) == 1

    assert [each async for each in process.queue.dead_letters()] == []
    assert await process.queue.requeue(ALL) == 0


async def test_a_consumer_that_rejects_a_mail_finishes_the_replacement_that_came_first() -> None:
    """Its message, which would do so otherwise, is acked."""
    cluster = InMemoryCluster()
    process, other = await cluster.start(), await cluster.start()
    await cluster.enqueue(process, "mail")
    consumer, item = await cluster.take(process)
    other.fail(lambda step: Fault.STOP_AFTER if step.operation == "end" else None)
    with pytest.raises(Stopped):
        await other.queue.hold(ALL)

    await item.reject("no")

    assert [each.held for each in cluster.tables.live()] == [True]
    assert cluster.tables.dead_letters == {}
    await consumer.close()
    await cluster.close()
