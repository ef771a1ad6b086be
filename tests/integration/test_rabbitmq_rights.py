"""The permissions at RabbitMQ that docs/operator/servers.md names suffice, and end at a queue."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import aiohttp
import pytest

import servers
from postroad.adapters.rabbitmq import topology
from postroad.adapters.rabbitmq.broker import RabbitMQ
from postroad.adapters.rabbitmq.connection import Access
from postroad.adapters.rabbitmq.event_queues import RabbitMQEventSpool
from postroad.adapters.rabbitmq.queue_users import permissions_of
from postroad.domain.queues.names import QueueName
from postroad.errors import ServerError, StreamRefused

pytestmark = pytest.mark.needs("rabbitmq")

DOCUMENT = Path(__file__).parents[2] / "docs" / "operator" / "servers.md"
SOON = 20


def documented(queue: QueueName) -> dict[str, str]:
    """Return the patterns of the column for pods, by right."""
    [row] = [each for each in DOCUMENT.read_text().splitlines() if each.startswith("| RabbitMQ |")]
    pods = re.split(r"(?<!\\) \| ?", row.rstrip("|"))[2].replace("\\|", "|")
    found = dict(re.findall(r"(configure|write|read|topic) `(\S+)`", pods))
    named = {"NAMESPACE": queue.namespace, "NAME": queue.name}
    return {
        right: re.sub("NAMESPACE|NAME", lambda match: named[match[0]], pattern)
        for right, pattern in found.items()
    }


class Users:
    """The users that a test makes at RabbitMQ."""

    def __init__(self, administrator: Access) -> None:
        self._access = administrator
        self._made: list[str] = []

    async def make(self, rights: dict[str, str]) -> Access:
        """Make a user with these rights and the tag `management`."""
        name, vhost = f"test-{servers.fresh()}", quote(self._access.vhost, safe="")
        self._made.append(name)
        await self._put(f"users/{name}", {"password": "secret", "tags": "management"})
        patterns = {"configure": "^$"} | {each: rights[each] for each in ("write", "read")}
        await self._put(f"permissions/{vhost}/{name}", patterns)
        topic = {"exchange": "postroad.delays", "write": rights["topic"], "read": "^$"}
        await self._put(f"topic-permissions/{vhost}/{name}", topic)
        return replace(self._access, username=name, password="secret")

    async def remove(self) -> None:
        for name in self._made:
            await self._ask("DELETE", f"users/{name}", None)

    async def _put(self, path: str, body: dict[str, str]) -> None:
        await self._ask("PUT", path, body)

    async def _ask(self, method: str, path: str, body: Any) -> None:
        base = f"http://{(self._access.management_url or '').rpartition('@')[2]}"
        login = aiohttp.encode_basic_auth(self._access.username, self._access.password)
        async with (
            aiohttp.ClientSession(headers={"Authorization": login}) as session,
            session.request(method, f"{base}/api/{path}", json=body) as answer,
        ):
            assert answer.status < 300, (path, await answer.text())


@pytest.fixture
async def users() -> AsyncIterator[Users]:
    found = Users(servers.rabbitmq())
    yield found
    await found.remove()


async def test_pods_use_streams_of_their_own_queue_and_declare_none(users: Users) -> None:
    ours, theirs = (QueueName("test", servers.fresh()) for _ in range(2))
    operator = RabbitMQ(servers.rabbitmq())
    for each in (ours, theirs):
        await operator.broker(each).declare()
    pod = RabbitMQ(await users.make(documented(ours)))
    event = ("crm", uuid4(), b"{}")
    bindings = (topology.Binding(ours.exchange, "events.mine"),)
    elsewhere = {
        "x-queue-type": "quorum",
        "x-dead-letter-exchange": topology.DELAYS,
        "x-dead-letter-routing-key": topology.delay_key(1, theirs),
    }

    await RabbitMQEventSpool(operator, ours).declare(["crm"])
    spool = RabbitMQEventSpool(pod, ours)
    await spool.append([event])
    async with asyncio.timeout(SOON), aclosing(spool.batches("crm")) as batches:
        (waiting,) = await anext(batches)
        await waiting.done()
    with pytest.raises(ServerError, match="ACCESS_REFUSED"):
        await RabbitMQEventSpool(pod, theirs).append([event])
    with pytest.raises(StreamRefused) as refused:
        await spool.append([event, ("other", uuid4(), b"{}")])
    assert refused.value.stream == "other"
    for arguments in (elsewhere, {"x-queue-type": "quorum"}):
        own = topology.DeclaredQueue(f"{ours.exchange}.events.mine", bindings, arguments)
        with pytest.raises(ServerError, match="ACCESS_REFUSED"):
            await pod.administer(topology.declare, topology.Topology((), (own,)))

    assert waiting.body == b"{}"
    await pod.close()
    for name in (ours, theirs):
        await operator.broker(name).delete()
    await operator.close()


def test_the_operator_gives_what_is_documented() -> None:
    queue = QueueName("test", "out")

    found = documented(queue)
    assert found.pop("topic")
    assert permissions_of(queue) == {"configure": "^$"} | {
        right: pattern.replace("test.out", r"test\.out") for right, pattern in found.items()
    }


async def test_pods_need_no_more_than_the_documented_rights_and_reach_no_neighbour(
    users: Users,
) -> None:
    ours, theirs = (QueueName("test", servers.fresh()) for _ in range(2))
    operator = RabbitMQ(servers.rabbitmq())
    for each in (ours, theirs):
        await operator.broker(each).declare()
    pod = RabbitMQ(await users.make(documented(ours)))
    broker, neighbours = pod.broker(ours), pod.broker(theirs)

    await broker.publish(uuid4(), b"now")
    await broker.publish(uuid4(), b"later", 1)
    deliveries = broker.consume(2)
    async with asyncio.timeout(SOON):
        taken = [await anext(deliveries) for _ in range(2)]
    await taken[0].ack()
    await taken[1].dead_letter()
    async with asyncio.timeout(SOON):
        while (await broker.depths()).dead != 1:
            await asyncio.sleep(0.1)
        dead = []
        async for message in broker.consume_dead(1):
            dead.append(message.body)
            await message.ack()
    for delay in (0, 1):
        with pytest.raises(ServerError, match="ACCESS_REFUSED"):
            await neighbours.publish(uuid4(), b"not theirs", delay)

    assert [each.body for each in taken] == [b"now", b"later"]
    assert dead == [b"later"]
    for one in (broker, neighbours):
        await one.close()
    await pod.close()
    for name in (ours, theirs):
        await operator.broker(name).delete()
    await operator.close()
