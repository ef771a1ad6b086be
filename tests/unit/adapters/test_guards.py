"""A guard that refuses keeps every request in, at the last step before it leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from postroad.adapters.cassandra.connection import Access as CassandraAccess
from postroad.adapters.cassandra.session import Session
from postroad.adapters.kubernetes.api_server import ApiServer
from postroad.adapters.rabbitmq.broker import RabbitMQ
from postroad.adapters.rabbitmq.connection import Access as RabbitMQAccess
from postroad.adapters.rabbitmq.connection import CoalescingConnection
from postroad.adapters.rabbitmq.management import Management
from postroad.adapters.s3 import buckets
from postroad.adapters.s3.blobs import S3Blobs
from postroad.adapters.s3.clients import Access as S3Access
from postroad.adapters.s3.store import Store
from postroad.controller.kubernetes.api import MAIL_QUEUE
from postroad.errors import LeadershipLost
from support.access_to_kubernetes import access_to
from support.amqp import amqp_server
from support.api_over_http import api_over_http
from support.memory.clock import ManualClock
from support.memory.kubernetes.world import KubernetesWorld
from support.resources import mail_queue


class Gate:
    """A guard that lets so many requests out, and then none."""

    def __init__(self, opens: int = 0) -> None:
        self.left = opens

    def __call__(self) -> None:
        if self.left == 0:
            raise LeadershipLost("no Lease")
        self.left -= 1


@asynccontextmanager
async def answering(status: int = 200) -> AsyncIterator[tuple[str, list[str]]]:
    """Yield the URL of an HTTP server, and the requests that reach it."""
    requests: list[str] = []

    async def handle(request: web.BaseRequest) -> web.Response:
        requests.append(f"{request.method} {request.path}")
        return web.Response(status=status)

    runner = web.ServerRunner(web.Server(handle))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    try:
        yield f"http://127.0.0.1:{port}", requests
    finally:
        await runner.cleanup()


# Kubernetes


async def test_reads_of_kubernetes_leave_and_writes_do_not() -> None:
    async with api_over_http(KubernetesWorld(ManualClock())) as (url, server):
        allowed, api = ApiServer(access_to(url), "user"), ApiServer(access_to(url), "us", Gate())
        found = await allowed.create(MAIL_QUEUE, mail_queue("mail"))
        server.requests.clear()

        for write in (
            api.create(MAIL_QUEUE, mail_queue("mail", "second")),
            api.apply(MAIL_QUEUE, mail_queue("mail")),
            api.patch(MAIL_QUEUE, "mail", "outgoing", {"spec": {}}),
            api.replace_status(MAIL_QUEUE, found),
            api.delete(MAIL_QUEUE, found),
        ):
            with pytest.raises(LeadershipLost):
                await write
        assert server.requests == []

        assert await api.get(MAIL_QUEUE, "mail", "outgoing") == found
        await allowed.close()
        await api.close()


async def test_a_write_that_waited_for_its_token_does_not_leave(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The process may be suspended anywhere between the call and the sending."""
    gate = Gate(1)

    async def suspended() -> None:
        gate.left = 0

    async with api_over_http(KubernetesWorld(ManualClock())) as (url, server):
        access = access_to(url)
        monkeypatch.setattr(access, "authorization", suspended)
        api = ApiServer(access, "us", gate)
        with pytest.raises(LeadershipLost):
            await api.create(MAIL_QUEUE, mail_queue("mail"))
        assert server.requests == []
        await api.close()


# Cassandra


class Driver:
    """The driver's session; `sent` has what would leave."""

    def __init__(self) -> None:
        self.sent: list[object] = []

    def execute_async(self, query: object, **_: Any) -> Any:
        self.sent.append(query)
        raise ValueError("sent")


async def test_no_statement_leaves_for_cassandra() -> None:
    access = CassandraAccess(("127.0.0.1",), 9042, "dc1", "postroad")
    session, driver = Session(access, guard=Gate()), Driver()
    session._connection.driver = driver

    with pytest.raises(LeadershipLost):
        await session.run("CREATE TABLE {keyspace}.t (k int PRIMARY KEY)")

    assert driver.sent == []


# RabbitMQ


class Transport:
    """What pika writes to."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)


async def test_no_frame_leaves_for_rabbitmq_and_the_connection_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended: list[Exception] = []
    monkeypatch.setattr(CoalescingConnection, "_terminate_stream", lambda _, e: ended.append(e))
    connection = CoalescingConnection.__new__(CoalescingConnection)
    connection._frames, connection._loop = [], asyncio.get_running_loop()
    transport = connection._transport = Transport()
    connection.guard = Gate(1)

    connection._adapter_emit_data(b"one")
    await asyncio.sleep(0)
    connection._adapter_emit_data(b"two")
    await asyncio.sleep(0)

    assert transport.written == [b"one"]
    assert [type(each) for each in ended] == [LeadershipLost]


async def test_a_connection_that_may_send_nothing_more_can_be_closed() -> None:
    """As an operator's, whose Lease is given back before."""
    async with amqp_server() as server:
        gate = Gate(99)
        rabbitmq = RabbitMQ(
            RabbitMQAccess.from_uri(f"amqp://127.0.0.1:{server.port}/%2F"), guard=gate
        )
        channel = await rabbitmq.publishing.channel()
        (opened,) = rabbitmq.publishing._all
        gate.left = 0

        await channel.close()
        await rabbitmq.close()

        assert opened.gone.done()
        assert opened.driver.is_closed


async def test_the_management_api_is_read_and_not_written() -> None:
    async with answering() as (url, requests):
        access = RabbitMQAccess.from_uri("amqp://127.0.0.1:1/%2F", management_url=url)
        management = Management(access, Gate())
        with pytest.raises(LeadershipLost):
            await management.add_member("postroad.mail.outgoing.work", "rabbit@one")
        assert requests == []
        await management.close()


# S3


def store(url: str, gate: Gate) -> Store:
    return Store(S3Access(url, "us-east-1", "key", "secret"), gate)


@pytest.mark.parametrize("opens", [0, 1])
async def test_each_request_of_one_work_in_s3_asks(opens: int) -> None:
    """To create a bucket takes several requests in one thread."""
    async with answering() as (url, requests):
        s3 = store(url, Gate(opens))
        with pytest.raises(LeadershipLost):
            await buckets.create(s3, "mail", first=True)
        assert len(requests) == opens
        await s3.close()


async def test_a_repetition_in_s3_asks() -> None:
    async with answering(status=503) as (url, requests):
        s3 = store(url, Gate(1))
        with pytest.raises(LeadershipLost):
            await buckets.exists(s3, "mail")
        assert len(requests) == 1
        await s3.close()


async def test_no_write_of_an_object_leaves() -> None:
    async with answering() as (url, requests):
        s3 = store(url, Gate())
        blobs = S3Blobs(s3, "mail")
        for write in (
            blobs.put("key", b"bytes"),
            blobs.put_new("key", b"bytes"),
            blobs.delete("key"),
            blobs.delete_together(["one", "two"]),
        ):
            with pytest.raises(LeadershipLost):
                await write
        assert requests == []
        await s3.close()
