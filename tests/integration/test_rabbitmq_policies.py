"""A policy that an administrator applies to our queues, as a real RabbitMQ shows it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from urllib.parse import quote, urlsplit

import aiohttp
import pytest

import servers
from postroad.adapters.rabbitmq.broker import RabbitMQ
from postroad.domain.queues.names import QueueName
from postroad.domain.queues.quorum_queues import dropping

pytestmark = [pytest.mark.needs("rabbitmq"), pytest.mark.timeout(60)]


@pytest.fixture
async def queue() -> AsyncIterator[QueueName]:
    """A declared queue with a policy that bounds it."""
    name, access = QueueName("test", servers.fresh()), servers.rabbitmq()
    server = RabbitMQ(access)
    broker = server.broker(name)
    await broker.declare()
    user = {"Authorization": aiohttp.encode_basic_auth(access.username, access.password)}
    api = urlsplit(access.management_url or "")
    vhost = quote(access.vhost, safe="")
    url = f"{api.scheme}://{api.hostname}:{api.port}/api/policies/{vhost}/{name}"
    pattern = f"^{name.exchange.replace('.', '[.]')}[.]"
    policy = {"pattern": pattern, "definition": {"max-length": 9}, "apply-to": "queues"}
    async with aiohttp.ClientSession(headers=user, raise_for_status=True) as session:
        await session.put(url, data=json.dumps(policy))
        yield name
        await session.delete(url)
    await broker.delete()
    await server.close()


async def test_a_policy_that_bounds_our_queues_is_shown(queue: QueueName) -> None:
    server = RabbitMQ(servers.rabbitmq())
    assert server.management is not None

    async with asyncio.timeout(30):  # RabbitMQ's numbers are some seconds old
        while not (found := dropping(await server.management.quorum_queues())):
            await asyncio.sleep(0.2)

    assert "max-length" in found[0]
    assert queue.exchange in found[0]
    await server.close()
