"""Publishes that RabbitMQ neither confirms nor refuses, such as those to a queue without a
quorum."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from uuid import UUID, uuid4

import pytest
from pika import spec

from postroad.adapters.rabbitmq import publisher
from postroad.adapters.rabbitmq.broker import RabbitMQ, RabbitMQBroker
from postroad.adapters.rabbitmq.connection import Access
from postroad.domain.queues.names import QueueName
from postroad.errors import BrokerUnavailable
from support.amqp import AmqpServer, amqp_server

PUBLISH = spec.Basic.Publish


@pytest.fixture
async def server() -> AsyncIterator[AmqpServer]:
    async with amqp_server() as running:
        yield running


@pytest.fixture
async def broker(
    server: AmqpServer, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[RabbitMQBroker]:
    """A broker with a short CONFIRM_DEADLINE, over a connection that a test can silence."""
    monkeypatch.setattr(publisher, "CONFIRM_DEADLINE", timedelta(milliseconds=300))
    rabbitmq = RabbitMQ(Access("127.0.0.1", server.port, "/", "guest", "guest"))
    made = rabbitmq.broker(QueueName("test", "unconfirmed"))
    await made.publish(uuid4(), b"connected")
    server.methods.clear()
    yield made
    server.answer_all()
    await rabbitmq.close()


async def unconfirmed_publish(
    broker: RabbitMQBroker, message_id: UUID, body: bytes = b"a", step: int = 0
) -> None:
    with pytest.raises(BrokerUnavailable):
        await broker.publish(message_id, body, step)


async def published(broker: RabbitMQBroker, message_id: UUID) -> None:
    """Publish until it succeeds, because the broker may not have read yet what the server sent."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await broker.publish(message_id, b"a")
            except BrokerUnavailable:
                await asyncio.sleep(0.01)


async def test_publish_that_is_repeated_before_its_confirm_is_sent_once(
    server: AmqpServer, broker: RabbitMQBroker
) -> None:
    server.silent = {PUBLISH}
    message_id = uuid4()
    for _ in range(3):
        await unconfirmed_publish(broker, message_id)
    assert server.saw(PUBLISH) == 1

    repeated = asyncio.ensure_future(broker.publish(message_id, b"a"))
    await asyncio.sleep(0)
    server.answer_all()

    await repeated
    await broker.publish(message_id, b"a")
    assert server.saw(PUBLISH) == 2, "after its confirm it is a new message"


async def test_publishes_that_differ_are_all_sent(
    server: AmqpServer, broker: RabbitMQBroker
) -> None:
    server.silent = {PUBLISH}
    message_id = uuid4()

    await unconfirmed_publish(broker, message_id)
    await unconfirmed_publish(broker, message_id, b"b")
    await unconfirmed_publish(broker, message_id, step=8)
    await unconfirmed_publish(broker, uuid4())

    assert server.saw(PUBLISH) == 4


@pytest.mark.parametrize(("bound", "value"), [("MAX_UNCONFIRMED", 3), ("MAX_BYTES", 3000)])
async def test_unconfirmed_publishes_are_bounded(
    server: AmqpServer,
    broker: RabbitMQBroker,
    monkeypatch: pytest.MonkeyPatch,
    bound: str,
    value: int,
) -> None:
    monkeypatch.setattr(publisher, bound, value)
    server.silent = {PUBLISH}
    for _ in range(3):
        await unconfirmed_publish(broker, uuid4(), bytes(1000))

    with pytest.raises(BrokerUnavailable, match="has not confirmed 3 messages"):
        await broker.publish(uuid4(), b"one more")
    assert server.saw(PUBLISH) == 3
    await unconfirmed_publish(broker, uuid4(), step=8)
    assert server.saw(PUBLISH) == 4, "another queue has its own bound"

    server.answer_all()
    await published(broker, uuid4())
    assert server.saw(PUBLISH) == 5, "after the confirms the first queue takes messages again"


async def test_lost_connection_ends_what_was_unconfirmed(
    server: AmqpServer, broker: RabbitMQBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "MAX_UNCONFIRMED", 1)
    server.silent = {PUBLISH}
    message_id = uuid4()
    await unconfirmed_publish(broker, message_id)

    server.drop()
    server.silent.clear()
    await server.until(lambda: server.left)

    await published(broker, message_id)
    assert server.saw(PUBLISH) == 2, "the unconfirmed message was sent again"
