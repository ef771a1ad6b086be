"""A node of the broker dies while a handler has a mail of it in flight."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from datetime import timedelta

import pytest

from integration.cluster.load import DRAIN_SECONDS, mail_of, patiently, variables_of
from postroad import open_queue
from postroad.ports.mail_queue import Item, MailQueue
from postroad.settings import from_environment
from servers import fresh
from stack import probes
from stack.clusters import Cluster
from stack.rabbitmq import USER

NAMES = ("done", "retried", "rejected", "late")


def asked(cluster: Cluster, node: str, path: str) -> list[dict[str, object]]:
    """Return a list of a node's management API."""
    there = cluster.rabbitmq(node)
    login = probes.basic(USER, there.record.secrets["password"])
    found = probes.http_json(f"{there.management_url(there.record)}/api/{path}", login)
    assert isinstance(found, list)
    return found


async def node_of(cluster: Cluster, role: str, work_queue: str) -> str:
    """Return the node that leads a queue, or the one that its consumer is connected to."""
    while True:
        if role == "leader":
            listed = await asyncio.to_thread(
                asked, cluster, "rabbitmq-1", "queues?columns=name,leader"
            )
            names = [each["leader"] for each in listed if each["name"] == work_queue]
        else:
            listed = await asyncio.to_thread(asked, cluster, "rabbitmq-1", "consumers")
            names = [
                each["channel_details"]["node"]  # type: ignore[index]
                for each in listed
                if each["queue"]["name"] == work_queue  # type: ignore[index]
            ]
        for name in cluster.nodes:
            if name.startswith("rabbitmq") and cluster.rabbitmq(name).node_name in names:
                return name
        await asyncio.sleep(0.5)  # the API's numbers are a second old


async def in_flight(consumer: MailQueue, handed_out: Counter[str], held: dict[str, Item]) -> None:
    """Deliver all mail that comes, until cancelled, and end what was not in flight before."""
    async for item in consumer.dequeue(prefetch=20):
        name = str(item.mail.name)
        handed_out[name] += 1
        if name in held:
            await item.done()
        else:
            held[name] = item


@pytest.mark.parametrize("role", ["leader", "connection"])
async def test_mail_in_flight_is_not_lost_when_its_broker_node_dies(
    cluster: Cluster, role: str
) -> None:
    settings = from_environment(variables_of(cluster))
    name = fresh()
    url = f"distributed://test.{name}"
    handed_out, held = Counter[str](), dict[str, Item]()
    async with (
        open_queue(url, create=True, settings=settings) as queue,
        open_queue(url, settings=settings) as consumer,
    ):
        for each in NAMES:
            await queue.enqueue(mail_of(each))
        taking = asyncio.create_task(in_flight(consumer, handed_out, held))
        async with asyncio.timeout(DRAIN_SECONDS):
            while len(held) < len(NAMES):
                await asyncio.sleep(0.1)
        node = await node_of(cluster, role, f"postroad.test.{name}.work")

        await asyncio.to_thread(cluster.kill, node)
        await patiently(held["done"].done)
        await patiently(lambda: held["retried"].retry(timedelta(0)))
        await patiently(lambda: held["rejected"].reject("the test wants it"))
        await asyncio.to_thread(cluster.start, node)
        await patiently(held["late"].done)

        deadline = time.monotonic() + DRAIN_SECONDS
        while (await queue.size()).size and time.monotonic() < deadline:
            await asyncio.sleep(0.5)
        sizes = await queue.size()
        taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)
    print(f"{role} {node}: handed out {dict(handed_out)}, {sizes}")

    assert (sizes.size, sizes.dead_letters) == (0, 1)
    assert handed_out == {"done": 1, "retried": 2, "rejected": 1, "late": 1}


@contextlib.asynccontextmanager
async def connected_elsewhere(
    cluster: Cluster,
    work_queue: str,
    opened: Callable[[], AbstractAsyncContextManager[MailQueue]],
) -> AsyncIterator[tuple[MailQueue, str]]:
    """Yield a queue whose consumers are connected to another node than the one that leads the
    queue, and the name of that node. Each handle that is opened is connected to the next node."""
    for _ in range(9):
        async with opened() as queue:
            taking = asyncio.create_task(in_flight(queue, Counter(), {}))
            leader = await node_of(cluster, "leader", work_queue)
            node = await node_of(cluster, "connection", work_queue)
            taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)
            if node != leader:
                yield queue, node
                return
    pytest.fail("each connection went to the node that leads the queue")


async def test_mail_that_rabbitmq_strands_is_delivered_once_it_is_republished(
    cluster: Cluster,
) -> None:
    """A consumer is cancelled with mail in flight, as in a worker that shuts down, and its node
    goes down: RabbitMQ keeps its messages leased until the queue has another leader."""
    settings = from_environment(variables_of(cluster))
    name = fresh()
    url, work = f"distributed://test.{name}", f"postroad.test.{name}.work"
    held: dict[str, Item] = {}
    again = Counter[str]()
    async with open_queue(url, create=True, settings=settings) as queue:
        async with connected_elsewhere(
            cluster, work, lambda: open_queue(url, settings=settings)
        ) as (consumer, node):
            taking = asyncio.create_task(in_flight(consumer, Counter(), held))
            for each in NAMES:
                await queue.enqueue(mail_of(each))
            async with asyncio.timeout(DRAIN_SECONDS):
                while len(held) < len(NAMES):
                    await asyncio.sleep(0.1)
            taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)
            await asyncio.to_thread(cluster.kill, node)
        await asyncio.to_thread(cluster.start, node)

        async def deliver() -> None:
            async for item in queue.dequeue(prefetch=20):
                again[str(item.mail.name)] += 1
                await item.done()

        delivering = asyncio.create_task(deliver())
        await asyncio.sleep(30)
        print(f"{sum(again.values())} of {len(NAMES)} came before republish")
        await patiently(lambda: queue.republish(timedelta(0)))
        deadline = time.monotonic() + DRAIN_SECONDS
        while (await queue.size()).size and time.monotonic() < deadline:
            await asyncio.sleep(0.5)
        sizes = await queue.size()
        delivering.cancel()
        await asyncio.gather(delivering, return_exceptions=True)

    assert (sizes.size, sizes.dead_letters) == (0, 0)
    assert again == dict.fromkeys(NAMES, 1)
