"""What a broker publishes where, counts and declares, and when it consumes again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from postroad.adapters.rabbitmq import broker as module
from postroad.adapters.rabbitmq import topology
from postroad.adapters.rabbitmq.broker import RabbitMQ, RabbitMQBroker
from postroad.adapters.rabbitmq.connection import Channel
from postroad.adapters.rabbitmq.consumer import Subscription
from postroad.adapters.rabbitmq.management import Management
from postroad.adapters.rabbitmq.topology import Binding, Count, Topology
from postroad.batching import Shared
from postroad.domain.queues.names import QueueName
from postroad.errors import BrokerUnavailable, Unroutable
from postroad.ports.broker import Depths

QUEUE = QueueName("mail", "outgoing")
ID = UUID(int=1)


class Vhost(RabbitMQ):
    """A vhost without a server: notes what is administered, and counts as a test sets."""

    def __init__(self) -> None:
        self.management = None
        self.done: list[tuple[str, Topology]] = []
        self.counts = [Count(1, 0), Count(20, 2)]
        self.lacks: list[Topology] = []
        self._declared_at = None
        self._declaring = Shared()
        self.publishing = self.consuming = cast("Any", None)

    async def administer(self, action: Any, wanted: Topology) -> Any:
        self.done.append((action.__name__, wanted))
        if wanted in self.lacks:
            self.lacks.remove(wanted)
            raise Unroutable("no such queue", hint="declare it")
        return SHARED if wanted == topology.SHARED else self.counts

    async def replicate(self, wanted: Topology) -> None:
        self.done.append(("replicate", wanted))


@pytest.fixture
async def rabbitmq() -> Vhost:
    return Vhost()


@pytest.fixture
async def broker(rabbitmq: Vhost, monkeypatch: pytest.MonkeyPatch) -> RabbitMQBroker:
    return rabbitmq.broker(QUEUE, delivery_limit=7)


async def test_messages_go_to_the_work_queue_or_through_the_delay_queues(
    broker: RabbitMQBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[object, ...]] = []

    async def publish(*values: object) -> None:
        sent.append(values)

    monkeypatch.setattr(broker._publisher, "publish", publish)

    await broker.publish(ID, b"now")
    await broker.publish(ID, b"later", 8)

    assert sent == [
        ("postroad.mail.outgoing", "work", ID, b"now"),
        ("postroad.delays", "8.mail.outgoing", ID, b"later"),
    ]
    with pytest.raises(ValueError, match="no step"):
        await broker.publish(ID, b"odd", 7)
    await broker.close()
    with pytest.raises(BrokerUnavailable, match="was closed"):
        await broker.publish(ID, b"late")
    assert len(sent) == 2


SHARED = [Count(1000, 0), Count(3, 0), Count(4, 0)]
OWN = topology.topology_of(QUEUE, 7)


async def test_depths_are_of_the_queues_and_of_all_delays(broker: RabbitMQBroker) -> None:
    assert await broker.depths() == Depths(work=20, delayed=7, dead=1, consumers=2, leased=None)


async def test_depths_have_what_is_leased_where_the_management_api_is_known(
    rabbitmq: Vhost, broker: RabbitMQBroker
) -> None:
    leased = {QUEUE.dead_queue: 5, QUEUE.work_queue: 60}

    async def unacknowledged(queue: str) -> int:
        return leased[queue]

    rabbitmq.management = cast("Management", SimpleNamespace(unacknowledged=unacknowledged))

    assert await broker.depths() == Depths(work=80, delayed=7, dead=6, consumers=2, leased=65)


async def test_missing_queues_are_no_depths_and_an_absence(
    rabbitmq: Vhost, broker: RabbitMQBroker
) -> None:
    rabbitmq.lacks = [OWN, OWN]

    with pytest.raises(BrokerUnavailable, match="no such queue") as refused:
        await broker.depths()
    assert refused.value.hint == "declare it"
    assert not await broker.exists()
    assert await broker.exists()


async def test_declaring_makes_the_delays_first_and_once(
    rabbitmq: Vhost, broker: RabbitMQBroker
) -> None:
    await broker.declare()
    await broker.declare()

    own = [("declare", OWN), ("replicate", OWN)]
    shared = [("declare", topology.SHARED), ("replicate", topology.SHARED)]
    assert rabbitmq.done == [*shared, *own, *own]


async def test_no_copies_are_looked_for_of_new_queues(
    rabbitmq: Vhost, broker: RabbitMQBroker
) -> None:
    await broker.declare(first=True)

    assert ("declare", OWN) in rabbitmq.done
    assert ("replicate", OWN) not in rabbitmq.done


async def test_delays_that_are_gone_are_declared_again(
    rabbitmq: Vhost, broker: RabbitMQBroker
) -> None:
    await broker.declare()
    rabbitmq.done.clear()
    rabbitmq.lacks = [OWN]

    await broker.declare()

    shared = [("declare", topology.SHARED), ("replicate", topology.SHARED)]
    assert rabbitmq.done == [("declare", OWN), *shared, ("declare", OWN), ("replicate", OWN)]


async def test_delays_are_declared_again_after_a_minute(
    rabbitmq: Vhost, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rabbitmq.declare_delays()
    assert rabbitmq._declared_at is not None
    monkeypatch.setattr(rabbitmq, "_declared_at", rabbitmq._declared_at - 59)
    await rabbitmq.declare_delays()
    assert len(rabbitmq.done) == 2

    monkeypatch.setattr(rabbitmq, "_declared_at", rabbitmq._declared_at - 61)
    await rabbitmq.declare_delays()

    assert len(rabbitmq.done) == 4


class Played:
    """A subscription with these deliveries, then an end."""

    def __init__(self, *deliveries: object, broken: BrokerUnavailable | None = None) -> None:
        self._left = list(deliveries)
        self.broken = broken
        self.lost = broken
        self.is_outdated = self.watched = False
        self.holds = 0
        self.stopped = self.closed = 0

    def __aiter__(self) -> Played:
        return self

    async def __anext__(self) -> object:
        if not self._left:
            raise StopAsyncIteration
        found = self._left.pop(0)
        if found is None:
            await asyncio.Event().wait()
        return found

    async def outdate_when_silent(self) -> None:
        self.watched = True
        try:
            await asyncio.Event().wait()
        finally:
            self.watched = False

    async def stop(self) -> None:
        self.stopped += 1

    async def close(self) -> None:
        self.closed += 1


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What subscribing gives, in order: a subscription, or an error."""
    planned: list[Any] = []

    async def start(_: object, queue: str, prefetch: int) -> Any:
        STARTED.append((queue, prefetch))
        found = planned.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    STARTED.clear()
    monkeypatch.setattr(Subscription, "start", start)
    WAITED.clear()

    def no_wait(failures: int) -> float:
        WAITED.append(failures)
        return 0.0

    monkeypatch.setattr(module, "longest_wait", no_wait)
    return planned


STARTED: list[tuple[str, int]] = []
WAITED: list[int] = []


async def taken(deliveries: AsyncIterator[Any], count: int) -> list[Any]:
    return [await anext(deliveries) for _ in range(count)]


async def test_a_consumer_goes_on_after_losses_and_waits_longer_after_failures(
    broker: RabbitMQBroker, played: list[Any]
) -> None:
    away = BrokerUnavailable("away")
    first, second = Played("a", "b"), Played("c", None)
    played += [away, away, first, away, second]
    deliveries = cast("Any", broker.consume(5))

    assert await taken(deliveries, 3) == ["a", "b", "c"]
    await asyncio.sleep(0)
    assert (first.watched, second.watched) == (False, True)
    await deliveries.aclose()
    await asyncio.sleep(0)
    assert not second.watched

    assert STARTED == [("postroad.mail.outgoing.work", 5)] * 5
    assert WAITED == [1, 2, 1, 1]
    assert (first.stopped, second.stopped) == (1, 1)


async def test_an_outdated_subscription_is_followed_without_a_wait(
    broker: RabbitMQBroker, played: list[Any]
) -> None:
    first, second = Played("a"), Played("b")
    first.is_outdated = True
    played += [first, second]

    assert await taken(broker.consume(5), 2) == ["a", "b"]
    assert WAITED == []


async def test_a_closed_broker_consumes_no_more(broker: RabbitMQBroker, played: list[Any]) -> None:
    subscription = Played("a")
    played.append(subscription)
    deliveries = broker.consume(5)
    await anext(deliveries)

    await broker.close()

    assert subscription.closed == 1
    with pytest.raises(StopAsyncIteration):
        await anext(deliveries)
    assert len(STARTED) == 1


async def test_the_dead_queue_is_read_until_it_is_quiet_or_a_place_is_missing(
    broker: RabbitMQBroker, played: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "QUIET", timedelta(milliseconds=5))
    subscription = Played("a", None, "b", None, None)
    subscription.holds = 2
    played.append(subscription)
    deliveries = broker.consume_dead(2)

    assert await taken(deliveries, 2) == ["a", "b"]
    subscription.holds = 1
    with pytest.raises(StopAsyncIteration):
        await anext(deliveries)

    assert STARTED == [("postroad.mail.outgoing.dead", 2)]
    assert subscription.stopped == 1


@pytest.mark.parametrize(("closes", "fails"), [(False, True), (True, False)])
async def test_a_dead_queue_that_is_lost_is_not_empty(
    broker: RabbitMQBroker, played: list[Any], closes: bool, fails: bool
) -> None:
    played.append(Played("a", broken=BrokerUnavailable("lost")))
    deliveries = broker.consume_dead(2)
    await anext(deliveries)
    if closes:
        await broker.close()

    with pytest.raises(BrokerUnavailable if fails else StopAsyncIteration):
        await anext(deliveries)


async def test_subscriptions_that_were_lost_are_forgotten(
    broker: RabbitMQBroker, played: list[Any]
) -> None:
    gone, there = Played("a", broken=BrokerUnavailable("lost")), Played("b")
    played += [gone, there]
    await taken(broker.consume(5), 2)

    await broker.close()

    assert (gone.closed, there.closed) == (0, 1)


class Recording:
    """A channel that notes requests, and counts as many messages as the name has letters."""

    driver = SimpleNamespace(
        exchange_declare="exchange_declare",
        exchange_delete="exchange_delete",
        queue_declare="queue_declare",
        queue_bind="queue_bind",
        queue_delete="queue_delete",
    )

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.named: list[dict[str, Any]] = []
        self.answered: list[int] = []
        """The numbers of the requests whose answer was awaited."""

    async def send(self, *values: object, **named: Any) -> None:
        self.calls.append(values)
        self.named.append(named)

    async def call(self, *values: object, **named: Any) -> Any:
        self.answered.append(len(self.calls))
        await self.send(*values, **named)
        return SimpleNamespace(message_count=len(str(values[1])), consumer_count=2)


@pytest.fixture
def channel() -> Recording:
    return Recording()


async def test_a_topology_is_declared_in_order_with_its_arguments(channel: Recording) -> None:
    await topology.declare(cast("Channel", channel), OWN)

    dead, work, exchange = QUEUE.dead_queue, QUEUE.work_queue, QUEUE.exchange
    assert channel.calls == [
        ("exchange_declare", exchange),
        ("queue_declare", dead),
        ("queue_bind", dead, exchange, "dead"),
        ("queue_declare", work),
        *(("queue_bind", work, e.exchange, e.routing_key) for e in OWN.queues[1].bindings),
    ]
    assert channel.named[0] == {"exchange_type": "direct", "durable": True, "arguments": {}}
    assert channel.named[3] == {"durable": True, "arguments": dict(OWN.queues[1].arguments)}
    assert OWN.queues[1].arguments["x-delivery-limit"] == 7
    assert OWN.queues[1].arguments["x-dead-letter-routing-key"] == "dead"
    assert channel.answered == [2, 5], "to the last request about each queue"


async def test_an_exchange_without_queues_is_answered_for(channel: Recording) -> None:
    await topology.declare(cast("Channel", channel), Topology(OWN.exchanges, ()))

    assert channel.answered == [0]


async def test_every_declared_queue_has_a_binding_to_be_answered_for() -> None:
    assert all(each.bindings for each in (*OWN.queues, *topology.SHARED.queues))


async def test_queues_are_counted_without_being_made(channel: Recording) -> None:
    found = await topology.count(cast("Channel", channel), OWN)

    assert found == [Count(len(each.name), 2) for each in OWN.queues]
    assert channel.named == [{"passive": True, "durable": True}] * 2


async def test_exchanges_are_deleted_before_the_queues(channel: Recording) -> None:
    await topology.delete(cast("Channel", channel), OWN)

    assert channel.calls == [
        ("exchange_delete", QUEUE.exchange),
        ("queue_delete", QUEUE.dead_queue),
        ("queue_delete", QUEUE.work_queue),
    ]


def test_a_message_stays_in_a_delay_queue_for_its_step_and_unrouted_for_a_day() -> None:
    unrouted, *delays = topology.SHARED.queues

    assert unrouted.arguments["x-message-ttl"] == 86_400_000
    assert unrouted.arguments["x-max-length"] == 100_000
    assert [each.arguments["x-message-ttl"] for each in delays] == [
        1000 * 2**step for step in range(15)
    ]
    assert [each.bindings for each in delays[:2]] == [
        (Binding("postroad.delays", "1.#"),),
        (Binding("postroad.delays", "2.#"),),
    ]
    kinds = {each.name: each.kind for each in topology.SHARED.exchanges}
    assert kinds == {
        "postroad.unrouted": "fanout",
        "postroad.due": "topic",
        "postroad.delays": "topic",
    }
