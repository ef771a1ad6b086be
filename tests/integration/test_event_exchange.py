"""An exchange that gets events is the administrator's; an event waits until a queue gets it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

import servers
from postroad.adapters.rabbitmq import topology
from postroad.adapters.rabbitmq.broker import RabbitMQ
from postroad.adapters.rabbitmq.event_queues import RabbitMQEventSpool
from postroad.domain.queues.names import QueueName
from postroad.ports.events import SinkVerdict

pytestmark = pytest.mark.needs("rabbitmq")

BODY = json.dumps({"type": "Delivered", "data": {}}).encode()


@pytest.fixture
async def server() -> AsyncIterator[RabbitMQ]:
    found = RabbitMQ(servers.rabbitmq())
    yield found
    await found.close()


async def test_an_event_waits_until_there_are_an_exchange_and_a_queue(server: RabbitMQ) -> None:
    exchange, queue = f"postroad.events-{servers.fresh()}", QueueName("test", "out")
    sink = RabbitMQEventSpool(server, queue).exchange(exchange)
    bound = topology.DeclaredQueue(
        f"test.{exchange}",
        (topology.Binding(exchange, f"{queue}.Delivered"),),
        {"x-queue-type": "quorum"},
    )
    alone = topology.Topology((topology.DeclaredExchange(exchange, "topic", {}),), ())
    whole = topology.Topology(alone.exchanges, (bound,))
    found = []

    for declared in (None, alone, whole):
        if declared is not None:
            await server.administer(topology.declare, declared)
        found.append((await sink.send(str(uuid4()), BODY)).verdict)
    other = await sink.send(str(uuid4()), BODY.replace(b"Delivered", b"Failed"))
    await sink.close()
    (count,) = await server.administer(topology.count, topology.Topology((), (bound,)))
    await server.administer(topology.delete, whole)

    assert found == [SinkVerdict.LATER, SinkVerdict.LATER, SinkVerdict.TAKEN]
    assert other.verdict is SinkVerdict.LATER
    assert count.ready == 1
