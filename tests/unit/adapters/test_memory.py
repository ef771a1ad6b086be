"""The servers in memory make the difficulties that the real ones make."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from uuid import UUID

import pytest

from postroad.adapters.memory.broker import MemoryBroker, MemoryDelivery
from postroad.adapters.memory.servers import MemoryServers, MemoryWorld
from postroad.domain.queues.names import QueueName
from postroad.errors import BlobsUnavailable, BrokerUnavailable, NotPublished, ViewUnavailable
from postroad.ports.broker import Depths
from support.memory.clock import ManualClock
from support.memory.fault_injection import Fault, FaultInjector, Stopped, at, away, faults_of

QUEUE = QueueName("mail", "outgoing")
SECOND = timedelta(seconds=1)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def world(clock: ManualClock) -> MemoryWorld:
    world = MemoryWorld(clock)
    world.queues(str(QUEUE)).declared = True
    return world


def broker(world: MemoryWorld, limit: int = 20) -> MemoryBroker:
    return MemoryServers(world, FaultInjector()).broker(QUEUE, delivery_limit=limit)


async def take(messages: AsyncIterator[MemoryDelivery]) -> MemoryDelivery:
    return await asyncio.wait_for(anext(messages), timeout=60)


async def test_manual_clock_wakes_sleepers_in_order_at_their_own_times(clock: ManualClock) -> None:
    woken: list[timedelta] = []

    async def sleeper(duration: timedelta) -> None:
        await clock.sleep(duration)
        woken.append(clock.elapsed())

    tasks = [asyncio.ensure_future(sleeper(each * SECOND)) for each in (3, 1, 5)]
    await clock.advance(4 * SECOND)

    assert woken == [SECOND, 3 * SECOND]
    assert clock.elapsed() == 4 * SECOND
    tasks[2].cancel()


async def test_broker_holds_a_delayed_message_until_its_step_is_over(
    world: MemoryWorld, clock: ManualClock
) -> None:
    ours = broker(world)
    await ours.publish(UUID(int=1), b"later", 4)
    await ours.publish(UUID(int=2), b"now")
    messages = ours.consume(10)

    assert (await take(messages)).body == b"now"
    assert await ours.depths() == Depths(work=1, delayed=1, dead=0, consumers=1, leased=1)
    waiting = asyncio.ensure_future(anext(messages))
    await clock.advance(3 * SECOND)
    assert not waiting.done()
    await clock.advance(SECOND)
    assert (await waiting).body == b"later"


async def test_broker_gives_no_more_than_the_prefetch(world: MemoryWorld) -> None:
    ours = broker(world)
    for number in range(3):
        await ours.publish(UUID(int=number), b"%d" % number)
    messages = ours.consume(2)

    first, second = await take(messages), await take(messages)
    third = asyncio.ensure_future(anext(messages))
    await asyncio.sleep(0)
    assert not third.done()
    await first.ack()

    assert (await third).body == b"2"
    await second.ack()


async def test_broker_redelivers_in_order_what_a_dead_process_held(world: MemoryWorld) -> None:
    theirs, ours = broker(world), broker(world)
    for number in range(2):
        await theirs.publish(UUID(int=number), b"%d" % number)
    messages = theirs.consume(10)
    held = [await take(messages), await take(messages)]

    faults_of(theirs).stop()
    mine = ours.consume(10)
    again = [await take(mine), await take(mine)]

    assert [each.body for each in again] == [b"0", b"1"]
    assert all(each.redelivered and each.failed_deliveries == 1 for each in again)
    with pytest.raises(Stopped):
        await held[0].ack()


async def test_broker_dead_letters_what_was_handed_out_too_often(world: MemoryWorld) -> None:
    await broker(world).publish(UUID(int=1), b"poison")
    for _ in range(3):
        victim = broker(world, limit=2)
        await take(victim.consume(1))
        faults_of(victim).stop()

    ours = broker(world)

    assert (await ours.depths()).dead == 1
    assert [each.body async for each in ours.consume_dead(5)] == [b"poison"]


async def test_delivery_of_a_broken_connection_cannot_be_ended(world: MemoryWorld) -> None:
    ours = broker(world)
    await ours.publish(UUID(int=1), b"x")
    delivery = await take(ours.consume(1))

    ours.disconnect()

    with pytest.raises(BrokerUnavailable):
        await delivery.ack()


@pytest.mark.parametrize(
    ("fault", "error", "published"),
    [
        (Fault.AWAY, NotPublished, 0),
        (Fault.LOST, BrokerUnavailable, 0),
        (Fault.ANSWER_LOST, BrokerUnavailable, 1),
        (Fault.STOP_BEFORE, Stopped, 0),
        (Fault.STOP_AFTER, Stopped, 1),
    ],
)
async def test_a_step_goes_wrong_as_planned(
    world: MemoryWorld, fault: Fault, error: type[BaseException], published: int
) -> None:
    servers = MemoryServers(world, FaultInjector(at(0, fault)))

    with pytest.raises(error) as raised:
        await servers.broker(QUEUE).publish(UUID(int=1), b"x")

    assert raised.type is error
    assert (await broker(world).depths()).work == published


@pytest.mark.parametrize(
    ("fault", "error"), [(Fault.STOP_AFTER, Stopped), (Fault.ANSWER_LOST, BlobsUnavailable)]
)
async def test_a_fault_behind_a_step_that_is_refused_has_the_planned_error(
    world: MemoryWorld, fault: Fault, error: type[BaseException]
) -> None:
    servers = MemoryServers(world, FaultInjector(at(0, fault)))

    with pytest.raises(error) as raised:
        await servers.blobs("mail").get("missing")

    assert raised.type is error


async def test_a_server_that_is_away_does_not_answer_while_others_do(world: MemoryWorld) -> None:
    servers = MemoryServers(world, FaultInjector(away("view")))

    with pytest.raises(ViewUnavailable):
        await servers.views().view(str(QUEUE)).limits()
    await servers.broker(QUEUE).publish(UUID(int=1), b"x")
