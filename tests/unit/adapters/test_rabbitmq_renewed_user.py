"""A program moves to a renewed user of RabbitMQ by itself, before the former user ends: nothing
that is in flight or unconfirmed is lost or sent again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest
from pika import spec

from postroad.adapters.rabbitmq import connection
from postroad.adapters.rabbitmq.broker import RabbitMQ, RabbitMQBroker
from postroad.adapters.rabbitmq.connection import Access
from postroad.domain.queues.names import QueueName
from postroad.logins import LoginFolder
from support.amqp import AmqpServer
from support.mounted_secret import MountedSecret

ONE, TWO, THREE = ({"username": f"u{n}", "password": f"p{n}"} for n in (1, 2, 3))
SHORT = timedelta(milliseconds=20)
SECONDS = 20


class Renewals:
    """A broker whose user is in a folder. Each connection has a server of its own, in the order of
    their opening; `refused`: names of users whom the server does not let in."""

    def __init__(self, broker: RabbitMQBroker, mounted: MountedSecret) -> None:
        self.broker = broker
        self.mounted = mounted
        self.servers: list[AmqpServer] = []
        self.refused: set[str] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server = AmqpServer()
        server.silent.add(spec.Connection.StartOk)
        serving = asyncio.create_task(server.serve(reader, writer))
        await server.until(lambda: server.saw(spec.Connection.StartOk))
        if user_of(server) in self.refused:
            writer.close()
        else:
            self.servers.append(server)
            server.answer_all()
        await serving

    async def of(self, *users: str) -> list[AmqpServer]:
        """Wait until connections of these users have been opened; return their servers."""
        await until(lambda: [user_of(each) for each in self.servers] == list(users))
        return self.servers


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while not holds():
            await asyncio.sleep(0.01)


def user_of(server: AmqpServer) -> str:
    (answer,) = (each for _, each in server.methods if isinstance(each, spec.Connection.StartOk))
    return str(answer.response.split(b"\0")[1].decode())


@asynccontextmanager
async def renewals(folder: Path) -> AsyncIterator[Renewals]:
    mounted = MountedSecret(folder / "login", ONE)
    holder: list[Renewals] = []
    listening = await asyncio.start_server(lambda r, w: holder[0].serve(r, w), "127.0.0.1", 0)
    uri = f"amqp://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    vhost = RabbitMQ(Access.from_uri(uri, login_folder=LoginFolder(mounted.folder)))
    holder.append(Renewals(vhost.broker(QueueName("mail", "outgoing")), mounted))
    try:
        yield holder[0]
        await holder[0].broker.close()
        await vhost.close()
    finally:
        listening.close()


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Renewals]:
    monkeypatch.setattr(connection, "LOGIN_INTERVAL", SHORT)
    async with renewals(tmp_path) as made:
        yield made


async def consuming(server: AmqpServer) -> str:
    """Return the tag of the consumer of a server."""
    await server.until(lambda: server.consumers)
    (tag,) = server.consumers
    return tag


async def test_a_consumer_moves_and_ends_what_it_has_in_flight_where_it_got_it(
    world: Renewals,
) -> None:
    deliveries = world.broker.consume(10)
    reading = asyncio.ensure_future(anext(deliveries))
    (first,) = await world.of("u1")
    first.deliver(await consuming(first), b"one")
    one = await reading

    world.mounted.renew(TWO)
    reading = asyncio.ensure_future(anext(deliveries))
    _, second = await world.of("u1", "u2")
    second.deliver(await consuming(second), b"two")
    two = await reading

    assert (one.body, two.body) == (b"one", b"two")
    assert (first.consumers, first.left, one.is_leased) == ({}, 0, True)
    await one.ack()
    await first.until(lambda: first.left == 1)
    assert (first.saw(spec.Basic.Ack), first.saw(spec.Basic.Nack)) == (1, 0)
    assert two.is_leased
    await deliveries.aclose()  # type: ignore[attr-defined]


async def test_a_publisher_moves_and_sends_nothing_twice(
    world: Renewals, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    await world.broker.publish(UUID(int=1), b"one")
    (first,) = await world.of("u1")
    first.silent.add(spec.Basic.Publish)
    waiting = asyncio.ensure_future(world.broker.publish(UUID(int=2), b"two"))
    await first.until(lambda: first.saw(spec.Basic.Publish) == 2)

    world.mounted.renew(TWO)
    _, second = await world.of("u1", "u2")
    await until(lambda: "connected as a renewed user" in caplog.text)  # the server opens it first
    repeated = asyncio.ensure_future(world.broker.publish(UUID(int=2), b"two"))
    await world.broker.publish(UUID(int=3), b"three")
    assert (second.saw(spec.Basic.Publish), first.left, waiting.done()) == (1, 0, False)

    first.answer_all()
    await waiting
    await repeated
    await first.until(lambda: first.left == 1)
    assert (first.saw(spec.Basic.Publish), second.saw(spec.Basic.Publish)) == (2, 1)


async def test_an_idle_connection_ends_with_the_renewal(world: Renewals) -> None:
    await world.broker.publish(UUID(int=1), b"one")
    (first,) = await world.of("u1")

    world.mounted.renew(TWO)
    await first.until(lambda: first.left == 1)

    await world.broker.publish(UUID(int=2), b"two")
    assert [user_of(each) for each in world.servers] == ["u1", "u2"]


async def test_a_renewed_user_that_is_refused_ends_no_connection(world: Renewals) -> None:
    await world.broker.publish(UUID(int=1), b"one")
    (first,) = await world.of("u1")

    world.refused.add("u2")
    world.mounted.renew(TWO)
    await asyncio.sleep(10 * SHORT.total_seconds())
    await world.broker.publish(UUID(int=2), b"two")
    assert (first.saw(spec.Basic.Publish), first.left) == (2, 0)

    world.mounted.renew(THREE)
    await world.of("u1", "u3")
    await first.until(lambda: first.left == 1)


async def test_files_that_cannot_be_read_end_no_connection(world: Renewals) -> None:
    await world.broker.publish(UUID(int=1), b"one")
    (first,) = await world.of("u1")

    world.mounted.renew({"username": "u2"})
    await asyncio.sleep(5 * SHORT.total_seconds())
    await world.broker.publish(UUID(int=2), b"two")
    assert (first.saw(spec.Basic.Publish), first.left) == (2, 0)

    world.mounted.renew(TWO)
    await world.of("u1", "u2")
