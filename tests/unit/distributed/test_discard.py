"""Dead letters are discarded with their bytes, whatever stops half way or meets whom."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import pytest

from contract.queue_harness import Consumer
from postroad.adapters.memory.broker import Message
from postroad.distributed.entries import dead_letters
from postroad.domain.queues.entries import Ending, EndingKind, Mark
from postroad.domain.queues.selection import Selector
from postroad.errors import PostroadError
from postroad.ports.view import DeadLetter
from support.in_memory_cluster import WINDOW, Before, InMemoryCluster, Process
from support.memory.fault_injection import Fault, Step, Stopped, at
from support.suspension import suspended

ALL = Selector.all()
MINUTE = timedelta(minutes=1)


async def test_discard_takes_dead_letter_and_bytes_at_once(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.give_up(process, "one", "two")

    assert await process.queue.discard(Selector(name="one")) == 1

    cluster.check_nothing_is_left(["two"])


async def test_discard_takes_both_dead_letters_that_a_mail_has_by_two_of_its_entries(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.give_up(process, "mail")
    (first,) = cluster.tables.dead_letters.values()
    assert first.entry is not None
    key = await process.queue._engine.new_key(after=first.enqueue_id)
    second = replace(first, enqueue_id=key.enqueue_id, entry=replace(first.entry, key=key))
    await process.queue._engine.view.write_dead_letter(second)

    await process.queue.discard(ALL)

    assert not cluster.tables.dead_letters


@pytest.mark.parametrize(
    ("kind", "dead_letters_left"), [(EndingKind.REMOVED, 0), (EndingKind.UNKNOWN, 1)]
)
async def test_discard_of_a_dead_letter_whose_mail_ended_otherwise_takes_the_dead_letter_alone(
    cluster: InMemoryCluster, process: Process, kind: EndingKind, dead_letters_left: int
) -> None:
    """One whose mail ended in a way that this release cannot decode stays."""
    await cluster.give_up(process, "mail")
    (dead_letter,) = cluster.tables.dead_letters.values()
    assert dead_letter.entry is not None
    cluster.tables.marks[dead_letter.entry.key] = Mark(ending=Ending(kind, cluster.clock.now()))

    assert await process.queue.discard(ALL) == 0

    assert len(cluster.tables.dead_letters) == dead_letters_left
    assert len(cluster.blobs) == 1


async def test_a_dead_letter_of_a_slice_that_was_passed_is_discarded_and_counted(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.give_up(process, "mail")
    for _ in range(4):
        await cluster.pass_time(WINDOW + 3 * MINUTE)
        await process.queue.maintain()
    assert not cluster.tables.marks

    assert await process.queue.discard(ALL) == 1

    assert cluster.tables.dead_letters == {}


async def test_a_dead_letter_that_cannot_be_decoded_is_selected_by_its_id_or_with_all(
    cluster: InMemoryCluster, process: Process
) -> None:
    cluster.broker.dead.append(Message(UUID(int=1), b"garbage"))
    await process.queue.maintain()
    [dead_letter_id] = cluster.tables.dead_letters

    for other in (Selector(name="mail"), Selector(enqueue_id=UUID(int=2))):
        assert await process.queue.discard(other) == 0
    assert await process.queue.discard(Selector(enqueue_id=dead_letter_id)) == 1
    assert cluster.tables.dead_letters == {}


async def test_a_dead_letter_that_is_being_requeued_is_neither_discarded_nor_requeued_twice(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.give_up(process, "mail")
    other = await cluster.start()
    requeuing = other.queue.requeue(ALL)
    suspension, task = await suspended(cluster, other, "rewrite_dead_letter", requeuing)

    assert await process.queue.discard(ALL) == 0
    assert await process.queue.requeue(ALL) == 0

    suspension.end()
    assert await task == 1
    assert await cluster.deliver(process) == ["mail"]
    cluster.check_nothing_is_left()


@pytest.mark.parametrize("fault", [Fault.STOP_AFTER, Fault.AWAY, Fault.ANSWER_LOST])
async def test_discard_that_stops_at_any_step_is_finished_by_repeating_it(fault: Fault) -> None:
    for number in range(12):
        cluster = InMemoryCluster()
        process, victim = await cluster.start(), await cluster.start()
        await cluster.give_up(process, "mail")
        victim.fail(at(number, fault))
        with suppress(Stopped, PostroadError):
            await victim.queue.discard(ALL)
        await cluster.pass_time(3 * MINUTE)

        await process.queue.discard(ALL)
        for _ in range(4):  # until the rejected entry is cleaned
            await process.queue.maintain()
            await cluster.pass_time(10 * MINUTE)
        await cluster.audit()

        assert await cluster.recover() == []
        cluster.check_nothing_is_left()
        await cluster.close()


@pytest.mark.parametrize(
    "operation", ["claim", "read_dead_letter", "limits", "end", "delete_dead_letter", "delete"]
)
async def test_discard_and_requeue_at_once_leave_a_whole_mail_or_none(
    cluster: InMemoryCluster, process: Process, operation: str
) -> None:
    await cluster.give_up(process, "mail")
    other = await cluster.start()
    counts: list[int] = []

    async def requeue() -> None:
        counts.append(await other.queue.requeue(ALL))

    process.faults.before = Before(operation, requeue)
    counts.append(await process.queue.discard(ALL))
    process.faults.before = None
    delivered = await cluster.recover()

    assert sum(counts) == 1
    assert delivered == (["mail"] if counts[0] else [])
    cluster.check_nothing_is_left()


async def test_suspended_discard_takes_no_bytes_of_a_mail_requeued_meanwhile(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.give_up(process, "mail")
    other = await cluster.start()

    async def sleep() -> None:
        await cluster.pass_time(3 * MINUTE)
        assert await other.queue.requeue(ALL) == 1

    process.faults.before = Before("delete_dead_letter", sleep)
    await process.queue.discard(ALL)

    assert await cluster.recover() == ["mail"]


async def with_a_dead_letter_that_came_back(cluster: InMemoryCluster, process: Process) -> None:
    """A mail waits that was requeued, and its dead letter is there again, as a Cassandra node
    brings it back that was away for longer than the others keep the deletion. A mail that is held
    for longer keeps browse start, so that the mark of the dead letter's entry is there too."""
    await cluster.enqueue(process, "held")
    await process.queue.hold(ALL)
    await cluster.give_up(process, "mail")
    [dead_letter] = cluster.tables.dead_letters.values()
    assert await process.queue.requeue(ALL) == 1
    cluster.tables.write_dead_letter(dead_letter)


@pytest.mark.parametrize("days", [0, 5])
async def test_dead_letter_that_came_back_is_discarded_without_the_bytes_of_the_requeued_mail(
    cluster: InMemoryCluster, process: Process, days: int
) -> None:
    await with_a_dead_letter_that_came_back(cluster, process)
    await cluster.pass_time(timedelta(days=days))

    assert await process.queue.discard(ALL) == 0

    assert cluster.tables.dead_letters == {}
    assert "mail" in await cluster.recover()
    assert cluster.copies("mail") == 1


async def test_dead_letter_that_came_back_is_not_requeued_again(
    cluster: InMemoryCluster, process: Process
) -> None:
    await with_a_dead_letter_that_came_back(cluster, process)

    assert await process.queue.requeue(ALL) == 0

    assert cluster.tables.dead_letters == {}
    assert await cluster.recover() == ["mail"]
    assert cluster.copies("mail") == 1


async def test_dead_letter_that_came_back_half_requeued_is_not_gone_on_with(
    cluster: InMemoryCluster, process: Process
) -> None:
    """The node had seen the requeue begin."""
    await cluster.give_up(process, "mail")
    seen: list[DeadLetter] = []

    async def see() -> None:
        seen.extend(cluster.tables.dead_letters.values())

    process.faults.before = Before("publish", see)
    assert await process.queue.requeue(ALL) == 1
    assert await cluster.deliver(process) == ["mail"]
    cluster.tables.write_dead_letter(seen[0])

    await cluster.pass_time(20 * MINUTE)
    assert await cluster.recover() == []

    assert cluster.tables.dead_letters == {}
    assert cluster.copies("mail") == 1


async def test_dead_letter_without_note_that_came_back_leaves_bytes_to_the_audit(
    cluster: InMemoryCluster, process: Process
) -> None:
    """Nothing tells that it was requeued but its age."""
    await with_a_dead_letter_that_came_back(cluster, process)
    cluster.tables.gone.clear()
    for _ in range(10 * 24):
        await cluster.pass_time(60 * MINUTE)
    [dead_letter] = cluster.tables.dead_letters.values()
    assert dead_letter.entry is not None
    assert not (await process.queue._engine.limits_cache.limits()).have_passed(
        dead_letter.entry.key.slice_start
    )

    assert await process.queue.discard(ALL) == 1

    assert dead_letter.entry.blob_key in cluster.blobs


async def test_dead_letter_buried_again_by_a_suspended_consumer_takes_nothing_of_a_requeued_mail(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, "held")
    await process.queue.hold(ALL)
    await cluster.enqueue(process, "mail")
    victim, other = await cluster.start(), await cluster.start()
    consumer, item = await cluster.take(victim)
    victim.faults.plan = lambda step: Fault.AWAY if step.operation == "claim" else None

    async def sleep() -> None:
        (entry,) = (each for each in cluster.tables.live() if each.envelope.name == "mail")
        await dead_letters.give_up(other.queue._engine, entry, entry.envelope, "too often")
        await cluster.pass_time(3 * MINUTE)
        assert await other.queue.requeue(ALL) == 1

    victim.faults.before = Before("write_dead_letter", sleep)
    await item.reject("no")
    await consumer.close()

    assert await process.queue.discard(ALL) == 0
    assert await cluster.recover() == ["mail"]


async def test_dead_letter_that_a_requeue_left_half_way_is_not_discarded(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.give_up(process, "mail")
    victim = await cluster.start()
    victim.faults.plan = lambda step: Fault.STOP_AFTER if step.operation == "publish" else None
    with pytest.raises(Stopped):
        await victim.queue.requeue(ALL)
    await cluster.pass_time(3 * MINUTE)

    assert await process.queue.discard(ALL) == 0

    assert await cluster.recover() == ["mail"]


async def test_mail_rejected_in_a_claimed_entry_can_be_requeued_and_discarded_at_once(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, "mail", "other")
    consumer = Consumer(cluster, process.queue)
    for _ in range(2):
        await (await consumer.next()).retry(timedelta(0))
    for _ in range(2):
        await (await consumer.next()).reject("no")

    assert await process.queue.requeue(Selector(name="mail")) == 1
    assert await process.queue.discard(Selector(name="other")) == 1
    await consumer.close()


async def test_claim_renewed_while_a_slow_item_is_rejected_is_given_back_too(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, "slow")
    consumer = Consumer(cluster, process.queue)
    item = await consumer.next()

    async def reject(step: Step) -> None:
        if step.operation == "claim":
            process.faults.before = None
            await item.reject("no")

    process.faults.before = reject
    await cluster.pass_time(10 * timedelta(seconds=1))

    assert await process.queue.requeue(ALL) == 1
    await consumer.close()
