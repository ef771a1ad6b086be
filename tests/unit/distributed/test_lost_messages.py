"""Mails without a message: maintenance gives them one, and disturbs nothing that has one."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import pytest

from contract.queue_harness import Consumer
from postroad.adapters.memory.servers import MemoryServers
from postroad.distributed.maintenance.row_maintenance import ROW_PASS_INTERVAL
from postroad.domain.queues.lost_messages import BEYOND_LEASES, OVERDUE, STEADY
from postroad.domain.queues.names import DELAY_SECONDS, QueueName
from postroad.domain.queues.selection import Selector
from support.in_memory_cluster import InMemoryCluster, Process
from support.memory.fault_injection import Fault, Step

ALL = Selector.all()
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


async def looks(cluster: InMemoryCluster, process: Process, count: int) -> None:
    for _ in range(count):
        await cluster.pass_time(ROW_PASS_INTERVAL)
        await process.queue.maintain()


async def killed_before_the_publish(
    cluster: InMemoryCluster, name: str = "orphan", delay: float = 0
) -> None:
    victim = await cluster.start()
    victim.fail(lambda step: Fault.STOP_AFTER if step.operation == "insert" else None)
    await asyncio.wait([asyncio.ensure_future(cluster.enqueue(victim, name, delay=delay))])
    assert victim.faults.stopped


async def test_row_of_a_process_that_was_killed_before_its_publish_is_delivered_once(
    cluster: InMemoryCluster, process: Process
) -> None:
    await killed_before_the_publish(cluster)

    await looks(cluster, process, STEADY - 1)
    assert await cluster.deliver(process, MINUTE) == []
    await looks(cluster, process, 1)

    assert await cluster.deliver(process, MINUTE) == ["orphan"]
    await looks(cluster, process, 2 * STEADY)
    assert await cluster.deliver(process, MINUTE) == []
    cluster.check_nothing_is_left()


async def test_delayed_row_without_a_message_comes_when_it_is_due(
    cluster: InMemoryCluster, process: Process
) -> None:
    await killed_before_the_publish(cluster, delay=7200)

    await looks(cluster, process, STEADY)
    assert await cluster.deliver(process, HOUR) == []
    assert await cluster.deliver(process, HOUR) == ["orphan"]


async def test_mails_that_have_their_messages_are_left_alone(
    cluster: InMemoryCluster, process: Process
) -> None:
    """In flight for long, delayed, due; and one that is held, which has none."""
    await cluster.enqueue(process, "in flight")
    consumer, item = await cluster.take(process)
    other = await cluster.start()
    await cluster.enqueue(other, "held")
    await other.queue.hold(Selector(name="held"))
    await consumer.close()
    assert await cluster.deliver(other, MINUTE) == []  # the message of the held one goes away
    await cluster.enqueue(other, "delayed", delay=10**6)
    await cluster.enqueue(other, "due")
    before = {entry.key for entry in cluster.tables.live()}
    assert cluster.broker.unacked + len(cluster.broker.ready) + cluster.broker.delayed == 3

    await looks(cluster, other, 3 * STEADY)

    assert {entry.key for entry in cluster.tables.live()} == before
    assert len(before) == 4
    await item.done()


async def test_orphan_among_many_is_found_and_nothing_comes_twice(
    cluster: InMemoryCluster, process: Process
) -> None:
    """A mail in a worker's hands is among those that get a new entry."""
    await cluster.enqueue(process, "in flight", *(f"mail{number}" for number in range(5)))
    await killed_before_the_publish(cluster)
    worker = await cluster.start()
    consumer = Consumer(cluster, worker.queue, prefetch=1)
    item = await consumer.next()
    await cluster.pass_time(MINUTE)

    await looks(cluster, process, STEADY)
    other = await cluster.deliver(await cluster.start())
    cluster.transmit(item)
    await item.done()
    await consumer.close()
    await cluster.recover()

    assert "orphan" in other
    assert set(cluster.transmitted.values()) == {1}
    assert len(cluster.transmitted) == 7
    cluster.check_nothing_is_left()


class DriverBug(Exception):
    """No error that postroad knows."""


async def test_messages_that_could_not_be_given_are_given_in_the_next_round(
    cluster: InMemoryCluster, process: Process
) -> None:
    """The count has risen by as many as got one, so it is right, and is not awaited again."""
    names = [f"mail{number}" for number in range(30)]
    await cluster.enqueue(process, *names)
    cluster.broker.lose_everything()
    await looks(cluster, process, STEADY - 1)
    left = [20]

    async def fail(step: Step) -> None:
        if step.operation == "end" and left[0]:
            left[0] -= 1
            raise DriverBug

    process.faults.before = fail
    await looks(cluster, process, 1)
    assert len(cluster.broker.ready) + cluster.broker.delayed == 10
    await looks(cluster, process, 1)

    assert len(cluster.broker.ready) + cluster.broker.delayed == 30
    assert sorted(await cluster.deliver(process, MINUTE)) == sorted(names)


def replaced(process: Process) -> int:
    return [step.operation for step in process.faults.steps].count("end")


async def test_broker_that_lost_everything_gets_all_of_it_back_in_one_round(
    cluster: InMemoryCluster, process: Process
) -> None:
    names = [f"mail{number}" for number in range(250)]
    await cluster.enqueue(process, *names)
    cluster.broker.lose_everything()

    await looks(cluster, process, STEADY)

    assert sorted(await cluster.deliver(process, MINUTE)) == sorted(names)
    assert set(cluster.transmitted.values()) == {1}
    cluster.check_nothing_is_left()


async def test_several_processes_do_not_multiply_the_work(
    cluster: InMemoryCluster, process: Process
) -> None:
    await cluster.enqueue(process, *(f"mail{number}" for number in range(150)))
    cluster.broker.lose_everything()
    others = [await cluster.start() for _ in range(3)]

    for _ in range(STEADY + 1):
        await cluster.pass_time(ROW_PASS_INTERVAL)
        await asyncio.gather(*(each.queue.maintain() for each in [process, *others]))

    assert len(cluster.broker.ready) + cluster.broker.delayed == 150
    assert sum(replaced(each) for each in [process, *others]) == 150


async def test_process_that_dies_over_it_is_relieved(
    cluster: InMemoryCluster, process: Process
) -> None:
    names = [f"mail{number}" for number in range(40)]
    await cluster.enqueue(process, *names)
    cluster.broker.lose_everything()
    victim = await cluster.start()
    await looks(cluster, victim, STEADY - 1)
    await looks(cluster, process, STEADY - 1)
    victim.fail(lambda step: Fault.STOP_BEFORE if step.operation == "end" else None)
    await asyncio.wait([asyncio.ensure_future(looks(cluster, victim, 1))])
    assert victim.faults.stopped

    await looks(cluster, process, 3)

    assert sorted(await cluster.deliver(process, MINUTE)) == sorted(names)


async def test_round_of_maintenance_does_not_wait_for_all_of_many(
    cluster: InMemoryCluster, process: Process
) -> None:
    """Each publish takes a second here; the next look goes on at once."""
    await cluster.enqueue(process, *(f"mail{number}" for number in range(700)))
    cluster.broker.lose_everything()

    async def slow(step: Step) -> None:
        if step.operation == "publish":
            process.clock.jump(SECOND)

    process.faults.before = slow
    healed = []
    for _ in range(STEADY + 2):
        await looks(cluster, process, 1)
        healed.append(replaced(process))

    assert healed[: STEADY - 1] == [0] * (STEADY - 1)
    assert 300 <= healed[STEADY - 1] < 350
    assert 600 <= healed[STEADY] < 700
    assert healed[STEADY + 1] == 700


async def test_broker_that_does_not_count_what_is_leased_is_not_judged(
    cluster: InMemoryCluster, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = process.queue._engine.broker
    depths = broker.depths

    async def partial() -> object:
        return replace(await depths(), leased=None)

    monkeypatch.setattr(broker, "depths", partial)
    await killed_before_the_publish(cluster)

    await looks(cluster, process, 2 * STEADY)

    assert await cluster.deliver(process, MINUTE) == []


async def test_broker_that_is_away_stops_no_other_step_of_maintenance(
    cluster: InMemoryCluster, process: Process
) -> None:
    await killed_before_the_publish(cluster)
    await looks(cluster, process, STEADY - 1)
    process.faults.plan = lambda step: Fault.AWAY if step.operation == "depths" else None

    await looks(cluster, process, 1)

    process.faults.plan = lambda step: None
    await looks(cluster, process, STEADY - 1)
    assert len(cluster.tables.live()) == 1
    assert await cluster.deliver(process, MINUTE) == []


async def test_delayed_messages_of_other_queues_hide_no_lost_message_for_long(
    cluster: InMemoryCluster, process: Process
) -> None:
    neighbour = MemoryServers(cluster.world).broker(QueueName("mail", "neighbour"))
    for number in range(5):
        await neighbour.publish(UUID(int=number), b"later", max(DELAY_SECONDS))
    await killed_before_the_publish(cluster)
    await cluster.enqueue(process, "later", delay=10**6)

    await looks(cluster, process, STEADY)
    assert await cluster.deliver(process, MINUTE) == []
    await looks(cluster, process, STEADY)

    assert await cluster.deliver(process, MINUTE) == ["orphan"]


async def test_messages_that_the_broker_strands_are_replaced_within_hours(
    cluster: InMemoryCluster, process: Process
) -> None:
    """RabbitMQ keeps the messages of a consumer that was cancelled before its node went down."""
    await cluster.enqueue(process, "stranded", "delivered")
    cancelled = MemoryServers(cluster.world).broker(process.queue._engine.name)
    await anext(cancelled.consume(prefetch=1))

    assert await cluster.deliver(process, MINUTE) == ["delivered"]
    await looks(cluster, process, STEADY)
    assert await cluster.deliver(process, MINUTE) == []
    await looks(cluster, process, (OVERDUE + BEYOND_LEASES) // ROW_PASS_INTERVAL + STEADY)

    assert await cluster.deliver(process, MINUTE) == ["stranded"]
