"""The broker's contract, over memory and RabbitMQ."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

import servers
from contract.broker_contract import BrokerContract, Process
from postroad.adapters.memory.servers import MemoryServers, MemoryWorld
from postroad.adapters.rabbitmq.broker import RabbitMQ
from postroad.domain.queues.names import QueueName
from postroad.ports.broker import Broker
from support.memory.clock import ManualClock


class PassingClock(ManualClock):
    """Time passes when the broker waits for it, and at once."""

    async def sleep(self, duration: timedelta) -> None:
        await asyncio.sleep(0)
        self.jump(max(duration, timedelta(0)))


class TestMemoryBroker(BrokerContract):
    """Over memory."""

    @pytest.fixture
    def process(self) -> Process:
        world = MemoryWorld(PassingClock())
        names = [QueueName("test", servers.fresh()) for _ in range(2)]
        return lambda delivery_limit=20, neighbour=False: MemoryServers(world).broker(
            names[neighbour], delivery_limit=delivery_limit
        )


@pytest.mark.needs("rabbitmq")
class TestRabbitMQBroker(BrokerContract):
    """Over a real RabbitMQ."""

    @pytest.fixture
    async def process(self) -> AsyncIterator[Process]:
        names = [QueueName("test", servers.fresh()) for _ in range(2)]
        started: list[tuple[RabbitMQ, Broker]] = []

        def start(delivery_limit: int = 20, neighbour: bool = False) -> Broker:
            server = RabbitMQ(servers.rabbitmq())
            broker = server.broker(names[neighbour], delivery_limit=delivery_limit)
            started.append((server, broker))
            return broker

        yield start
        await start().delete()
        await start(neighbour=True).delete()
        for server, broker in started:
            await broker.close()
            await server.close()
