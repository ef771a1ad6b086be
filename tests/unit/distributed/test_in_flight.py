"""A mail that is in a worker's hands stays there alone, whatever administration and the broker do
meanwhile (invariant 10)."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from contract.queue_harness import Consumer, plain_mail
from postroad.adapters.memory.broker import Message
from postroad.distributed.dequeue.leases import AT_ONCE
from postroad.domain.queues.entries import LONG_CHAIN
from postroad.domain.queues.references import decode, encode
from postroad.domain.queues.selection import Selector
from support.in_memory_cluster import WINDOW, InMemoryCluster, Process
from support.memory.fault_injection import Step

ALL = Selector.all()
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)


@pytest.mark.parametrize("change", ["republish", "hold and release", "flush"])
async def test_successor_of_a_mail_that_was_just_handed_out_waits_for_its_claim(
    cluster: InMemoryCluster, process: Process, change: str
) -> None:
    """For the first seconds no claim tells that it is in flight."""
    await cluster.enqueue(process, "mail", delay=1 if change == "flush" else 0)
    # With one place, so that the successor goes to the other process.
    consumer = Consumer(cluster, process.queue, prefetch=1)
    item = await consumer.next()
    other = await cluster.start()
    elsewhere = Consumer(cluster, other.queue)
    await cluster.pass_time(SECOND)
    if change == "hold and release":
        await other.queue.hold(ALL)
        await other.queue.release(ALL)
    else:
        await other.queue.republish(timedelta(0))

    assert await elsewhere.nothing(5 * MINUTE)
    cluster.transmit(item)
    await item.done()
    assert await elsewhere.nothing(5 * MINUTE)
    cluster.check_nothing_is_left()
    await consumer.close()


async def test_many_items_in_flight_are_claimed_some_at_a_time_and_within_a_redelivery_delay(
    cluster: InMemoryCluster, process: Process
) -> None:
    count = 3 * AT_ONCE
    await cluster.enqueue(process, *(f"mail{number}" for number in range(count)))
    consumer = Consumer(cluster, process.queue, prefetch=count)
    items = [await consumer.next() for _ in range(count)]
    asking, most = 0, 0

    async def before(step: Step) -> None:
        nonlocal asking, most
        if step.operation == "claim":
            asking += 1
            most = max(most, asking)
            await asyncio.sleep(0)
            asking -= 1

    process.faults.before = before
    await cluster.pass_time(process.queue._engine.timing.redelivery_delay)

    assert 1 < most <= AT_ONCE
    assert set(cluster.tables.claims) == {item.enqueue_id for item in items}
    await consumer.close()


async def test_connections_lost_with_a_mail_in_flight_are_no_crashes_of_its_consumer(
    cluster: InMemoryCluster, process: Process
) -> None:
    """Its message comes back to the process that has it, counted by the broker more often than the
    delivery limit allows."""
    await cluster.enqueue(process, "slow")
    consumer, item = await cluster.take(process)
    (delivery,) = process.queue._engine.broker.leased  # type: ignore[attr-defined]
    times = process.queue._engine.delivery_limit + 1
    cluster.broker.put(Message(item.enqueue_id, delivery.body, times, redelivered=True), 0)

    assert await consumer.nothing(5 * MINUTE)
    assert cluster.tables.dead_letters == {}
    cluster.transmit(item)
    await item.done()
    await consumer.close()
    assert await cluster.recover() == []
    cluster.check_nothing_is_left()


async def test_process_whose_claim_lapsed_does_not_hand_out_the_successor_too(
    cluster: InMemoryCluster, process: Process
) -> None:
    """It was suspended for longer than a claim lives, and goes on with the successor before it
    claims anew: nothing in the view says then that it has the mail."""
    await cluster.enqueue(process, "mail")
    consumer, item = await cluster.take(process)
    other = await cluster.start()
    await cluster.pass_time(SECOND)
    assert await other.queue.republish(timedelta(0)) == 1

    async def lapse(step: Step) -> None:
        cluster.tables.claims.clear()

    process.faults.before = lapse
    assert await consumer.nothing(5 * MINUTE)
    cluster.transmit(item)
    await item.done()
    assert await consumer.nothing(5 * MINUTE)
    assert cluster.copies("mail") == 1
    await consumer.close()


@pytest.mark.parametrize("is_claimed", [False, True], ids=["without claims", "one with a claim"])
async def test_two_messages_of_one_mail_that_come_together_are_one_item(
    cluster: InMemoryCluster, process: Process, *, is_claimed: bool
) -> None:
    """A delay queue delivered it twice. The second is dispatched before the first is in flight,
    which no claim shows yet."""
    many = tuple(f"user{number}@{'x' * 50}.example" for number in range(500))
    await process.queue.enqueue(plain_mail("mail", recipients=many))
    [message] = cluster.broker.ready
    reference = decode(message.body)
    body = encode(reference.again()) if is_claimed else message.body
    cluster.broker.ready.append(Message(message.message_id, body))
    both = asyncio.Barrier(2)

    async def meet(step: Step) -> None:
        if step.operation == "row" and len(met) < both.parties:
            met.append(step)
            await both.wait()
        elif step.operation == "claim":
            await asyncio.sleep(0)  # the one without a claim is first

    met: list[Step] = []
    process.faults.before = meet
    consumer, item = await cluster.take(process)

    assert await consumer.nothing(MINUTE)
    assert len(met) == both.parties
    cluster.transmit(item)
    await item.done()
    assert await consumer.nothing(5 * MINUTE)
    await consumer.close()
    cluster.check_nothing_is_left()


@pytest.mark.parametrize("change", ["republish", "hold and release"])
async def test_mail_in_flight_for_long_is_changed_any_number_of_times(
    cluster: InMemoryCluster, process: Process, change: str
) -> None:
    """As by a job that republishes every minute beside a delivery that takes an hour; and at the
    end many times at once."""
    await cluster.enqueue(process, "mail")
    consumer, item = await cluster.take(process)
    other = await cluster.start()
    elsewhere = Consumer(cluster, other.queue)

    for number in range(24):
        await cluster.pass_time(MINUTE if number < 12 else timedelta(milliseconds=100))
        if change == "republish":
            assert await other.queue.republish(timedelta(0)) == 1
        else:
            assert await other.queue.hold(ALL) == await other.queue.release(ALL) == 1

    assert await elsewhere.nothing(5 * MINUTE)
    cluster.transmit(item)
    await item.done()
    assert await elsewhere.nothing(10 * MINUTE)
    assert cluster.copies("mail") == 1
    await consumer.close()
    cluster.check_nothing_is_left()


async def test_mail_that_was_just_handed_out_is_changed_many_times_at_once(
    cluster: InMemoryCluster, process: Process
) -> None:
    """It has no claim yet, and is not taken for one in no consumer's hands."""
    await cluster.enqueue(process, "mail")
    consumer, item = await cluster.take(process)
    other = await cluster.start()
    elsewhere = Consumer(cluster, other.queue)

    for _ in range(12):
        await cluster.pass_time(timedelta(milliseconds=100))
        assert await other.queue.republish(timedelta(0)) == 1
    (live,) = cluster.tables.live()

    assert item.enqueue_id in {each.enqueue_id for each in live.previous}
    await item.done()
    assert await elsewhere.nothing(MINUTE)
    await consumer.close()


async def test_successor_in_flight_is_remembered_as_the_first_entry_is(
    cluster: InMemoryCluster, process: Process
) -> None:
    """The entry in flight lies in the middle of the chain."""
    await cluster.enqueue(process, "mail")
    for _ in range(5):
        await cluster.pass_time(SECOND)
        assert await process.queue.republish(timedelta(0)) == 1
    consumer, item = await cluster.take(process)
    other = await cluster.start()
    elsewhere = Consumer(cluster, other.queue)

    for _ in range(12):
        assert await elsewhere.nothing(MINUTE)
        assert await other.queue.republish(timedelta(0)) == 1

    assert await elsewhere.nothing(5 * MINUTE)
    cluster.transmit(item)
    await item.done()
    assert await elsewhere.nothing(5 * MINUTE)
    assert cluster.copies("mail") == 1
    await consumer.close()


async def test_chain_of_a_mail_that_was_changed_often_stays_short(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, "mail")
    for _ in range(12):
        await process.queue.hold(ALL)
        await cluster.pass_time(MINUTE)
        await process.queue.release(ALL)

    (live,) = cluster.tables.live()
    assert len(live.previous) <= LONG_CHAIN + 1
    assert cluster.tables.claims == {}, "a claim that stays hides a free entry for minutes"
    assert await cluster.recover() == ["mail"]


async def test_a_chain_is_cut_once_it_is_long(cluster: InMemoryCluster, process: Process) -> None:
    """Until then a change takes no claim."""
    await cluster.enqueue(process, "mail")
    for _ in range(LONG_CHAIN // 2):
        await process.queue.hold(ALL)
        await cluster.pass_time(MINUTE)
        await process.queue.release(ALL)
        await cluster.pass_time(MINUTE)
    (live,) = cluster.tables.live()
    assert len(live.previous) == LONG_CHAIN
    assert "claim" not in {each.operation for each in process.faults.steps}

    await process.queue.hold(ALL)

    (live,) = cluster.tables.live()
    assert len(live.previous) < LONG_CHAIN


async def test_a_delivery_ends_all_entries_that_replaced_its_own(cluster: InMemoryCluster) -> None:
    """The last one is held, so that no message would show a consumer the delivery, and they lie in
    a slice that stays open."""
    worker, person = await cluster.start(), await cluster.start()
    await cluster.enqueue(worker, "mail")
    consumer, item = await cluster.take(worker)
    await cluster.pass_time(WINDOW + timedelta(minutes=3))
    for change in (person.queue.hold, person.queue.release, person.queue.hold):
        assert await change(Selector.all()) == 1

    cluster.transmit(item)
    await item.done()
    await person.queue.maintain()

    assert cluster.tables.live() == []
    await consumer.close()
    assert await cluster.recover() == []
    cluster.check_nothing_is_left()
