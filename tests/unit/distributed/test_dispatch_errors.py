"""References whose dispatch goes wrong half way: the mail comes all the same, soon, and others do
not wait for it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from uuid import UUID

import pytest

from contract.queue_harness import Consumer, plain_mail
from postroad.adapters.memory.broker import MemoryBroker, Message
from postroad.distributed.entries.endings import SERVER_RETRY_SECONDS
from postroad.domain.mail.mail import Outcome
from postroad.domain.queues.selection import Selector
from postroad.errors import CredentialsRefused
from postroad.ports.view import Record
from postroad.telemetry import metrics
from support.in_memory_cluster import NAME, Before, InMemoryCluster, Process
from support.memory.fault_injection import Fault, Plan, Step, away, no_fault

ALL = Selector.all()
MINUTE = timedelta(minutes=1)


def raise_at(process: Process, operation: str, error: Exception, times: int) -> None:
    left = [times]

    async def before(step: Step) -> None:
        if step.operation == operation and left[0]:
            left[0] -= 1
            raise error

    process.faults.before = before


def skipped(reason: str) -> float:
    """Return how many deliveries were not handed out, for a reason."""
    return float(metrics.SKIPPED.labels(NAME.namespace, NAME.name, reason)._value.get())


def nth(operation: str, number: int, fault: Fault) -> Plan:
    """Return a plan in which an operation goes wrong at its n-th time."""
    seen = [0]

    def plan(step: Step) -> Fault | None:
        seen[0] += step.operation == operation
        return fault if step.operation == operation and seen[0] == number else None

    return plan


async def test_unexpected_error_puts_one_reference_aside_and_the_consumer_goes_on(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, "unlucky", "next")
    raise_at(process, "mark", RuntimeError("a bug"), times=1)

    assert await cluster.deliver(process, MINUTE) == ["next"]
    assert len(cluster.broker.dead) == 1

    assert await cluster.recover() == ["unlucky"]
    cluster.check_nothing_is_left()


async def test_server_that_refuses_is_waited_for(
    cluster: InMemoryCluster, process: Process
) -> None:
    """An administrator mends credentials that were changed."""
    await cluster.enqueue(process, "mail")
    raise_at(process, "mark", CredentialsRefused("no"), times=30)
    consumer = Consumer(cluster, process.queue)
    first = len(process.faults.steps)

    assert await consumer.nothing(MINUTE)
    assert len(process.faults.steps) - first < 60, "it does not spin"
    process.faults.before = None

    assert (await consumer.next()).mail.name == "mail"


@pytest.mark.parametrize("fault", [Fault.AWAY, Fault.ANSWER_LOST])
@pytest.mark.parametrize("number", [1, 2, 3])
async def test_claims_that_were_taken_in_part_do_not_stand_in_ones_own_way(
    cluster: InMemoryCluster, process: Process, number: int, fault: Fault
) -> None:
    await cluster.enqueue(process, "mail")
    await process.queue.hold(ALL)
    await process.queue.release(ALL)
    process.faults.plan = nth("claim", number, fault)
    consumer = Consumer(cluster, process.queue)

    item = await consumer.next(timedelta(seconds=20))

    assert item.mail.name == "mail"


async def test_marks_that_could_not_be_read_again_do_not_lose_the_claims(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, "mail")
    await process.queue.hold(ALL)
    await process.queue.release(ALL)
    process.faults.plan = lambda step: (
        Fault.AWAY
        if step.operation == "mark" and process.faults.steps[-2].operation == "records"
        else None
    )
    consumer = Consumer(cluster, process.queue)
    assert await consumer.nothing(timedelta(seconds=15))
    process.faults.plan = no_fault

    assert (await consumer.next(timedelta(seconds=45))).mail.name == "mail", "before they lapse"


async def test_ending_that_was_lost_is_repeated_although_it_fails_once_more(
    cluster: InMemoryCluster, process: Process
) -> None:
    """All recipients are finished, so nothing is handed out, and the first try's lease ends."""
    who = ("one@example.net", "two@example.net")
    await process.queue.enqueue(plain_mail("mail", recipients=who))
    _, item = await cluster.take(process)
    await item.record(dict.fromkeys(who[:1], Outcome.delivered("250")))
    await item.record(dict.fromkeys(who[1:], Outcome.failed("550")))
    process.faults.stop()
    other = await cluster.start()
    other.faults.plan = nth("write_dead_letter", 1, Fault.AWAY)
    consumer = Consumer(cluster, other.queue)

    assert await consumer.nothing(timedelta(minutes=5))

    (dead,) = cluster.tables.dead_letters.values()
    assert dead.entry is not None
    assert dead.entry.envelope.recipients == who[1:]
    assert other.queue._engine.in_flight == set()
    assert (len(cluster.broker.ready), cluster.broker.delayed) == (0, 0)


async def test_message_that_is_no_reference_is_put_aside_and_counted(
    cluster: InMemoryCluster, process: Process
) -> None:
    cluster.broker.ready.append(Message(UUID(int=1), b"garbage"))
    before = skipped("unreadable")

    assert await cluster.deliver(process, MINUTE) == []

    assert len(cluster.broker.dead) == 1
    assert skipped("unreadable") == before + 1


async def test_reference_is_deferred_by_another_delay_queue_where_one_takes_nothing(
    cluster: InMemoryCluster, process: Process
) -> None:
    """Its row cannot be decoded; the first delay queue has lost its quorum."""
    many = tuple(f"user{number}@{'x' * 50}.example" for number in range(500))
    await process.queue.enqueue(plain_mail("mail", recipients=many))
    cluster.tables.undecodable.update(cluster.tables.rows)
    cluster.broker.without_quorum.add(SERVER_RETRY_SECONDS)
    consumer = Consumer(cluster, process.queue)
    before = skipped("unserved")

    assert await consumer.nothing(MINUTE)

    assert skipped("unserved") > before
    await consumer.close()


async def test_mail_that_all_recipients_got_is_over_without_a_mark(
    cluster: InMemoryCluster, process: Process
) -> None:
    """A consumer crashed between the last record and the mark."""
    await cluster.enqueue(process, "mail")
    _, item = await cluster.take(process)
    view, now = process.queue._engine.view, cluster.clock.now()
    got = Record("recipient@example.net", Outcome.delivered("250"), now)
    await view.record(item.mail_id, (got,))
    process.faults.stop()
    other = await cluster.start()
    before = skipped("marked")

    assert await cluster.deliver(other) == []

    assert skipped("marked") == before + 1
    (mark,) = cluster.tables.marks.values()
    assert mark.delivered_at is not None
    assert other.queue._engine.in_flight == set()
    cluster.check_nothing_is_left()


async def test_repetition_of_a_mail_that_was_just_removed_is_over(
    cluster: InMemoryCluster, process: Process
) -> None:
    """The broker has the second message of an enqueue alone; administration ends the entry before
    the consumer replaces it."""
    admin = await cluster.start()
    process.faults.plan = nth("publish", 1, Fault.LOST)
    enqueuing = asyncio.ensure_future(process.queue.enqueue(plain_mail("mail")))
    assert await cluster.outcome(enqueuing, MINUTE)
    before = Before("end", lambda: admin.queue.remove(ALL))
    process.faults.before = before

    assert await cluster.deliver(process) == []

    assert before.happened
    cluster.check_nothing_is_left()


async def test_reference_whose_channel_is_gone_is_left_to_whom_the_broker_gave_it(
    cluster: InMemoryCluster, process: Process
) -> None:
    """Else each dispatch that waits for a server would defer a message that is leased no more, and
    there would be several."""
    await cluster.enqueue(process, "mail")
    process.faults.plan = away("view")
    consumer = Consumer(cluster, process.queue)
    assert await consumer.nothing(MINUTE)
    broker = process.queue._engine.broker
    assert isinstance(broker, MemoryBroker)
    for _ in range(3):
        broker.disconnect()
        await cluster.pass_time(MINUTE)

    await cluster.pass_time(process.queue._engine.timing.longest_wait)

    assert len(cluster.broker.ready) + cluster.broker.unacked + cluster.broker.delayed == 1


async def test_items_that_were_not_taken_are_free_for_others_at_once(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, "first", "second")
    await process.queue.hold(ALL)
    await process.queue.release(ALL)
    consumer = Consumer(cluster, process.queue)
    mine = await consumer.next()  # the other one is claimed by now, and waits to be handed out
    await cluster.pass_time(MINUTE)
    await consumer.close()
    other = Consumer(cluster, (await cluster.start()).queue)

    theirs = await other.next(timedelta(seconds=20))
    assert {mine.mail.name, theirs.mail.name} == {"first", "second"}


async def test_a_consumer_ends_although_what_it_gives_back_does_not_go(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, "first", "second", "third")
    consumer = Consumer(cluster, process.queue)
    await consumer.next()  # the others wait to be handed out
    await cluster.pass_time(timedelta(seconds=1))
    raise_at(process, "give_back", RuntimeError("a bug"), times=1)

    await consumer.close()

    assert len(cluster.broker.ready) == 1
    process.faults.before = None


async def test_bytes_that_the_object_store_never_deletes_are_tried_less_and_less_often(
    cluster: InMemoryCluster, process: Process
) -> None:
    """Retention keeps them: the messages of an hour's mail would fill the broker's time."""
    await cluster.enqueue(process, "mail")
    process.faults.plan = lambda step: Fault.AWAY if step.operation == "delete" else None

    assert await cluster.deliver(process, timedelta(hours=1)) == ["mail"]

    assert 5 < sum(step.operation == "delete" for step in process.faults.steps) < 12
    process.faults.plan = no_fault
    assert await cluster.deliver(process, timedelta(hours=1)) == []
    assert cluster.blobs == {}
