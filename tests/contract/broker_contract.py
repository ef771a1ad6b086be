"""What every `Broker` promises, whatever it is made of. Subclasses provide `process`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from uuid import UUID, uuid4

import pytest

from postroad.errors import BrokerRefused, BrokerUnavailable, NotPublished, Unroutable
from postroad.ports.broker import Broker, Delivery

Process = Callable[..., Broker]
"""Makes a broker of the test's queue as another process would: with connections of its own; with
`neighbour=True` that of another queue of the same servers."""

SOON = 20
"""Seconds within which what must happen has happened; passing it is a failure, not a measure."""


async def publish(broker: Broker, *bodies: bytes) -> None:
    for body in bodies:
        await broker.publish(uuid4(), body)


async def take(deliveries: AsyncIterator[Delivery], count: int = 1) -> list[Delivery]:
    async with asyncio.timeout(SOON):
        return [await anext(deliveries) for _ in range(count)]


async def drained(deliveries: AsyncIterator[Delivery]) -> list[bytes]:
    """Ack everything there is, until the iterator ends by itself."""
    found = []
    async with asyncio.timeout(SOON):
        async for delivery in deliveries:
            found.append(delivery.body)
            await delivery.ack()
    return found


async def counted(broker: Broker) -> tuple[int, int, int]:
    depths = await broker.depths()
    return depths.work, depths.dead, depths.consumers


async def settled(broker: Broker, *, work: int = 0, dead: int = 0, consumers: int = 0) -> None:
    """Assert that the broker comes to count this of the queue's own; some numbers come late."""
    wanted, found = (work, dead, consumers), (-1, -1, -1)
    try:
        async with asyncio.timeout(SOON):
            while (found := await counted(broker)) != wanted:
                await asyncio.sleep(0.1)
    except TimeoutError:
        pass
    assert found == wanted, found


class BrokerContract:
    """The suite."""

    @pytest.fixture
    async def broker(self, process: Process) -> Broker:
        broker = process()
        await broker.declare()
        return broker

    async def test_a_message_is_delivered_as_it_was_published(self, broker: Broker) -> None:
        await publish(broker, b'{"a": "\xc3\xbc"}\x00')
        deliveries = broker.consume(10)

        [delivery] = await take(deliveries)

        assert delivery.body == b'{"a": "\xc3\xbc"}\x00'
        assert not delivery.redelivered
        assert delivery.failed_deliveries == 0
        assert delivery.is_leased
        await delivery.ack()
        await deliveries.aclose()  # type: ignore[attr-defined]

    async def test_ready_messages_are_those_that_no_consumer_has(
        self, process: Process, broker: Broker
    ) -> None:
        neighbour = process(neighbour=True)
        await neighbour.declare()
        await publish(neighbour, b"theirs")
        assert await broker.ready() == 0
        await publish(broker, b"a", b"b", b"c")
        await broker.publish(uuid4(), b"later", 4096)
        assert await broker.ready() == 3

        deliveries = broker.consume(2)
        await take(deliveries, 2)
        assert await broker.ready() == 1

    async def test_messages_come_oldest_first(self, broker: Broker) -> None:
        bodies = [b"%d" % number for number in range(50)]
        await publish(broker, *bodies)

        found = await take(broker.consume(50), 50)

        assert [each.body for each in found] == bodies

    async def test_many_publishes_at_once_are_all_delivered(self, broker: Broker) -> None:
        ids = [uuid4() for _ in range(1000)]
        await asyncio.gather(*(broker.publish(each, each.bytes) for each in ids))

        found = await take(broker.consume(1000), 1000)

        assert {UUID(bytes=each.body) for each in found} == set(ids)

    async def test_publishing_without_a_queue_is_unroutable(self, process: Process) -> None:
        with pytest.raises(Unroutable):
            await publish(process(), b"a")

    async def test_publishing_goes_on_once_the_queue_is_declared(self, process: Process) -> None:
        broker = process()
        with pytest.raises(Unroutable):
            await publish(broker, b"a")

        await broker.declare()
        await publish(broker, b"b")

        [delivery] = await take(broker.consume(1))
        assert delivery.body == b"b"

    async def test_declaring_again_keeps_what_is_there(self, broker: Broker) -> None:
        await publish(broker, b"a")

        await broker.declare()

        [delivery] = await take(broker.consume(1))
        assert delivery.body == b"a"

    async def test_a_consumer_holds_at_most_its_prefetch(self, broker: Broker) -> None:
        await publish(broker, b"a", b"b", b"c")
        deliveries = broker.consume(2)
        first, second = await take(deliveries, 2)

        third = asyncio.ensure_future(anext(deliveries))
        await asyncio.wait([third], timeout=0.3)
        assert not third.done()
        await second.ack()

        async with asyncio.timeout(SOON):
            assert (await third).body == b"c"
        assert first.body == b"a"

    async def test_what_was_acked_never_comes_again(self, process: Process, broker: Broker) -> None:
        await publish(broker, *(b"%d" % number for number in range(20)))
        found = await take(broker.consume(20), 20)

        for delivery in found[::2]:
            await delivery.ack()
        await broker.close()

        rest = await take(process().consume(20), 10)
        assert {each.body for each in rest} == {each.body for each in found[1::2]}

    async def test_what_is_given_back_comes_again(self, broker: Broker) -> None:
        await publish(broker, b"a")
        deliveries = broker.consume(5)
        [first] = await take(deliveries)

        await first.give_back()

        [again] = await take(deliveries)
        assert again.body == b"a"
        assert again.redelivered

    async def test_what_is_dead_lettered_is_in_the_dead_queue_only(self, broker: Broker) -> None:
        await publish(broker, b"a", b"b")
        deliveries = broker.consume(5)
        first, second = await take(deliveries, 2)

        await first.dead_letter()
        await second.ack()

        await settled(broker, dead=1, consumers=1)
        assert await drained(broker.consume_dead(5)) == [b"a"]
        assert await drained(broker.consume_dead(5)) == []

    async def test_the_dead_queue_is_consumed_within_the_prefetch(self, broker: Broker) -> None:
        await publish(broker, *(b"%d" % number for number in range(7)))
        deliveries = broker.consume(7)
        for delivery in await take(deliveries, 7):
            await delivery.dead_letter()
        await settled(broker, dead=7, consumers=1)

        assert len(await drained(broker.consume_dead(2))) == 7

    async def test_an_ending_ends_once(self, broker: Broker) -> None:
        await publish(broker, b"a")
        [delivery] = await take(broker.consume(5))
        await delivery.ack()

        assert not delivery.is_leased
        with pytest.raises(BrokerUnavailable):
            await delivery.give_back()

    async def test_what_did_not_end_comes_again_when_the_broker_is_closed(
        self, process: Process, broker: Broker
    ) -> None:
        await publish(broker, b"a")
        [delivery] = await take(broker.consume(5))

        await broker.close()
        await broker.close()

        assert not delivery.is_leased
        with pytest.raises(BrokerUnavailable):
            await delivery.ack()
        [again] = await take(process().consume(5))
        assert again.body == b"a"
        assert again.redelivered

    async def test_leaving_the_loop_gives_back_what_was_not_handed_out(
        self, process: Process, broker: Broker
    ) -> None:
        await publish(broker, *(b"%d" % number for number in range(6)))
        deliveries = broker.consume(6)
        first, second = await take(deliveries, 2)

        await deliveries.aclose()  # type: ignore[attr-defined]

        remaining = process().consume(6)
        other = await take(remaining, 4)
        assert sorted(each.body for each in other) == [b"2", b"3", b"4", b"5"]
        await first.ack()
        await second.ack()
        for delivery in other:
            await delivery.ack()
        await settled(broker, consumers=1)

    async def test_consumers_share_the_work(self, process: Process, broker: Broker) -> None:
        await publish(broker, *(b"%d" % number for number in range(20)))

        found = [
            delivery.body
            for each in (broker, process())
            for delivery in await take(each.consume(10), 10)
        ]

        assert sorted(found) == sorted(b"%d" % number for number in range(20))

    async def test_neighbouring_messages_go_to_different_consumers_that_have_room(
        self, process: Process, broker: Broker
    ) -> None:
        first, second = broker.consume(10), process().consume(10)
        takes = [asyncio.ensure_future(take(each, 2)) for each in (first, second)]
        await settled(broker, consumers=2)

        await publish(broker, b"0", b"1", b"2", b"3")

        taken = [{each.body for each in await one} for one in takes]
        assert sorted(taken, key=min) == [{b"0", b"2"}, {b"1", b"3"}]

    async def test_a_queue_that_was_declared_otherwise_is_refused_by_its_difference(
        self, process: Process
    ) -> None:
        await process(delivery_limit=2).declare()

        with pytest.raises(BrokerRefused, match="has x-delivery-limit 2, wanted is 3"):
            await process(delivery_limit=3).declare()

        await process(delivery_limit=2).declare()

    async def test_a_message_past_its_delivery_limit_is_dead_lettered(
        self, process: Process
    ) -> None:
        await process(delivery_limit=2).declare()
        await publish(process(delivery_limit=2), b"poison")

        for failed in range(3):
            victim = process(delivery_limit=2)
            [delivery] = await take(victim.consume(5))
            assert delivery.failed_deliveries == failed
            await victim.close()

        survivor = process(delivery_limit=2)
        await settled(survivor, dead=1)
        assert await drained(survivor.consume_dead(5)) == [b"poison"]

    async def test_a_delayed_message_comes_by_itself_after_the_others(self, broker: Broker) -> None:
        await broker.publish(uuid4(), b"later", 1)
        await publish(broker, b"now")
        await settled(broker, work=1)
        deliveries = broker.consume(5)

        found = await take(deliveries, 2)

        assert [each.body for each in found] == [b"now", b"later"]

    async def test_delayed_messages_of_all_queues_are_counted_together(
        self, process: Process, broker: Broker
    ) -> None:
        neighbour = process(neighbour=True)
        await neighbour.declare()

        for each in (broker, neighbour):
            await each.publish(uuid4(), b"later", 16)

        assert (await broker.depths()).delayed >= 2
        await settled(broker, work=0)

    async def test_a_delayed_message_comes_back_to_its_own_queue(
        self, process: Process, broker: Broker
    ) -> None:
        neighbour = process(neighbour=True)
        await neighbour.declare()
        await broker.publish(uuid4(), b"ours", 1)
        await neighbour.publish(uuid4(), b"theirs", 1)

        [ours] = await take(broker.consume(5))
        [theirs] = await take(neighbour.consume(5))

        assert (ours.body, theirs.body) == (b"ours", b"theirs")

    async def test_delayed_messages_of_a_deleted_queue_delay_no_other(
        self, process: Process, broker: Broker
    ) -> None:
        neighbour = process(neighbour=True)
        await neighbour.declare()
        for number in range(100):
            await neighbour.publish(uuid4(), b"%d" % number, 1)
        await neighbour.delete()
        await broker.publish(uuid4(), b"ours", 1)

        [delivery] = await take(broker.consume(200))

        assert delivery.body == b"ours"
        await neighbour.declare()
        await settled(neighbour, work=0)

    @pytest.mark.parametrize("seconds", [3, -1, 32768])
    async def test_a_delay_is_that_of_a_delay_queue(self, broker: Broker, seconds: int) -> None:
        with pytest.raises(ValueError, match="delay queues"):
            await broker.publish(uuid4(), b"a", seconds)

    async def test_leased_messages_are_counted_until_they_end(self, broker: Broker) -> None:
        await publish(broker, b"a", b"b", b"c")
        deliveries = broker.consume(3)
        found = await take(deliveries, 3)

        assert all(each.is_leased for each in found)
        await settled(broker, work=3, consumers=1)
        await found[1].ack()
        await settled(broker, work=2, consumers=1)

    async def test_deleting_takes_everything_and_may_be_repeated(self, broker: Broker) -> None:
        await publish(broker, b"a")
        assert await broker.exists()

        await broker.delete()
        await broker.delete()

        assert not await broker.exists()
        with pytest.raises(Unroutable):
            await publish(broker, b"b")
        await broker.declare()
        assert await broker.exists()
        await settled(broker)

    async def test_a_consumer_goes_on_when_its_queue_was_deleted_and_is_declared_again(
        self, process: Process, broker: Broker
    ) -> None:
        await publish(broker, b"a")
        deliveries = broker.consume(2)
        [held] = await take(deliveries)
        waiting = asyncio.ensure_future(anext(deliveries))

        other = process()
        await other.delete()
        # Of a queue that is declared while RabbitMQ still cancels the consumers of the deleted one,
        # it may deliver nothing to them: the consumer subscribes again after five minutes.
        await asyncio.sleep(0.2)
        await other.declare()
        await publish(other, b"c")

        async with asyncio.timeout(SOON):
            assert (await waiting).body == b"c"
        assert held.body == b"a"

    async def test_a_closed_broker_publishes_nothing(self, broker: Broker) -> None:
        await broker.close()

        with pytest.raises(NotPublished):
            await publish(broker, b"a")
