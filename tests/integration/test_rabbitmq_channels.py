"""Unused channels are closed, and a cancelled consumer consumes again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from uuid import uuid4

import pytest
from pika import spec

from postroad.adapters.rabbitmq import connection
from postroad.adapters.rabbitmq.broker import RabbitMQ, RabbitMQBroker
from postroad.adapters.rabbitmq.connection import Access
from postroad.adapters.rabbitmq.consumer import Subscription
from postroad.domain.queues.names import QueueName
from postroad.errors import BrokerUnavailable
from support.amqp import AmqpServer, Method, amqp_server


@pytest.fixture
async def server() -> AsyncIterator[AmqpServer]:
    async with amqp_server() as running:
        yield running


@pytest.fixture
async def rabbitmq(server: AmqpServer) -> AsyncIterator[RabbitMQ]:
    made = RabbitMQ(Access("127.0.0.1", server.port, "/", "guest", "guest"))
    yield made
    server.answer_all()
    await made.close()


@pytest.fixture
def broker(rabbitmq: RabbitMQ) -> RabbitMQBroker:
    return rabbitmq.broker(QueueName("test", "channels"))


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "ANSWER_TIMEOUT", timedelta(milliseconds=50))


UNANSWERED = pytest.mark.parametrize(
    "method", [spec.Channel.Open, spec.Basic.Qos, spec.Basic.Consume]
)


@UNANSWERED
async def test_a_subscription_that_was_answered_too_late_leaves_no_channel(
    server: AmqpServer, rabbitmq: RabbitMQ, impatient: None, method: type[Method]
) -> None:
    server.silent = {method}
    with pytest.raises(BrokerUnavailable):
        await Subscription.start(rabbitmq.consuming, "work", 10)

    server.answer_all()

    await server.until(lambda: server.saw(spec.Channel.Close))
    assert server.channels == set()


@UNANSWERED
async def test_a_subscription_that_was_cancelled_leaves_no_channel(
    server: AmqpServer, rabbitmq: RabbitMQ, method: type[Method]
) -> None:
    server.silent = {method}
    starting = asyncio.ensure_future(Subscription.start(rabbitmq.consuming, "work", 10))
    await server.until(lambda: server.saw(method))
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting

    server.answer_all()

    await server.until(lambda: server.saw(spec.Channel.Close))
    assert server.channels == set()


async def test_stopping_that_is_not_answered_gives_back_and_leaves_no_channel(
    server: AmqpServer, rabbitmq: RabbitMQ, impatient: None
) -> None:
    subscription = await Subscription.start(rabbitmq.consuming, "work", 10)
    [tag] = server.consumers
    for body in (b"handed out", b"waiting"):
        server.deliver(tag, body)
    held = await anext(subscription)
    server.silent = {spec.Basic.Cancel}

    await subscription.stop()
    await held.ack()
    server.answer_all()

    await server.until(lambda: server.saw(spec.Channel.Close) and not server.channels)
    assert (server.saw(spec.Basic.Nack), server.saw(spec.Basic.Ack)) == (1, 1)


async def test_a_publisher_that_was_answered_too_late_leaves_no_channel_and_no_error_behind(
    server: AmqpServer, broker: RabbitMQBroker, impatient: None
) -> None:
    server.silent = {spec.Confirm.Select}
    with pytest.raises(BrokerUnavailable):
        await broker.publish(uuid4(), b"a")
    server.silent = {spec.Basic.Publish}
    publishing = asyncio.ensure_future(broker.publish(uuid4(), b"b"))
    await server.until(lambda: server.saw(spec.Basic.Publish))
    assert len(server.channels) == 2

    server.answer_all()  # the first channel becomes ready, and is closed

    await publishing
    await server.until(lambda: len(server.channels) == 1)


async def test_a_consumer_that_the_server_cancelled_consumes_again(
    server: AmqpServer, broker: RabbitMQBroker
) -> None:
    deliveries = broker.consume(10)
    first = asyncio.ensure_future(anext(deliveries))
    await server.until(lambda: server.consumers)
    [tag] = server.consumers
    server.deliver(tag, b"before")
    held = await first
    following = asyncio.ensure_future(anext(deliveries))

    server.cancel(tag)
    await server.until(lambda: server.consumers, connection.ANSWER_TIMEOUT.total_seconds() / 2)
    [again] = server.consumers
    server.deliver(again, b"after")

    assert (await following).body == b"after"
    await held.ack()  # its channel was kept for it, and is closed with it
    await server.until(lambda: len(server.channels) == 1)
    assert server.saw(spec.Basic.Ack) == 1
    await deliveries.aclose()  # type: ignore[attr-defined]


async def test_a_dead_queue_whose_consumer_was_cancelled_is_not_taken_for_empty(
    server: AmqpServer, broker: RabbitMQBroker
) -> None:
    following = asyncio.ensure_future(anext(broker.consume_dead(10)))
    await server.until(lambda: server.consumers)

    server.cancel(next(iter(server.consumers)))

    with pytest.raises(BrokerUnavailable):
        await following


HANDSHAKE = pytest.mark.parametrize("method", [spec.Connection.StartOk, spec.Connection.Open])


@HANDSHAKE
async def test_a_connection_that_is_closed_while_it_opens_is_left(
    server: AmqpServer, rabbitmq: RabbitMQ, method: type[Method]
) -> None:
    server.silent = {method}
    opening = asyncio.ensure_future(rabbitmq.consuming.channel())
    await server.until(lambda: server.saw(method))

    await rabbitmq.close()

    with pytest.raises(BrokerUnavailable):
        await opening
    await server.until(lambda: server.left)


async def test_a_server_that_says_no_goodbye_is_left(
    server: AmqpServer, rabbitmq: RabbitMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "CLOSE_TIMEOUT", timedelta(milliseconds=200))
    await rabbitmq.consuming.channel()
    server.silent = {spec.Connection.Close, spec.Channel.Close}

    await rabbitmq.close()

    await server.until(lambda: server.left)
    assert (server.saw(spec.Channel.Close), server.left) == (1, 1), "it was bidden goodbye first"
    with pytest.raises(BrokerUnavailable, match="closed"):
        await rabbitmq.consuming.channel()
