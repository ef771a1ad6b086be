"""A server stands still, or is killed: every call ends with an error of postroad's, and when the
server is back, the same objects work again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

import servers as names
from integration.faults.conftest import SERVERS, Victims, bounded, recovered
from postroad.bootstrap.cluster import connect
from postroad.domain.queues.names import QueueName
from postroad.errors import (
    BlobsUnavailable,
    BrokerUnavailable,
    ServerError,
    Unroutable,
    ViewUnavailable,
)
from postroad.ports.broker import Broker, Delivery
from postroad.ports.servers import Servers
from postroad.ports.view import TableOptions

pytestmark = [pytest.mark.needs("rabbitmq", "cassandra", "s3"), pytest.mark.timeout(600)]

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
OPTIONS = TableOptions(
    {"class": "SimpleStrategy", "replication_factor": "1"},
    timedelta(days=14),
    timedelta(hours=12),
    timedelta(hours=3),
)

Use = Callable[[], Coroutine[Any, Any, object]]


async def use_of(server: str, connected: Servers) -> Use:
    """A harmless call that needs the server, prepared while the server works."""
    if server == "cassandra":
        await connected.views().create(OPTIONS)
        view = connected.views().view(f"test.{names.fresh()}")
        return lambda: view.advance(browse_start=NOON)
    if server == "rabbitmq":
        broker = connected.broker(QueueName("test", names.fresh()))
        await broker.declare()
        return lambda: broker.publish(uuid4(), b"a")
    blobs = connected.blobs(f"faults-{names.fresh()}")
    await blobs.create()
    return lambda: blobs.put("a/b", b"bytes")


async def well(connected: Servers) -> None:
    """Raise the error by which any of the servers fails."""
    for each in (await connected.check()).values():
        if each.error is not None:
            raise each.error


ERRORS: dict[str, type[ServerError]] = {
    "cassandra": ViewUnavailable,
    "rabbitmq": BrokerUnavailable,
    "s3": BlobsUnavailable,
}


async def of_each_server(
    scene: Callable[[str, type[ServerError]], Coroutine[Any, Any, None]],
) -> None:
    """Play a scene for each server, side by side: most of it waits for timeouts."""
    async with asyncio.TaskGroup() as scenes:
        for server, error in ERRORS.items():
            scenes.create_task(scene(server, error), name=server)


async def test_a_server_that_stands_still_is_an_error_and_is_used_again_when_it_goes_on(
    victims: Victims, connected: Servers
) -> None:
    async def scene(server: str, error: type[ServerError]) -> None:
        use = await use_of(server, connected)
        await use()

        await victims.pause(server)
        for _ in range(2):
            with pytest.raises(error) as raised:
                await bounded(use())
            assert raised.value.transient
        await victims.resume(server)

        await recovered(use)

    await of_each_server(scene)


async def test_a_server_that_was_killed_is_an_error_and_is_used_again_when_it_is_back(
    victims: Victims, connected: Servers
) -> None:
    """By those that used it before, and by one that meets it away from the start."""
    later = connect(victims.settings)

    async def scene(server: str, error: type[ServerError]) -> None:
        use = await use_of(server, connected)
        await use()

        await victims.kill(server)
        for _ in range(2):
            with pytest.raises(error):
                await bounded(use())
        found = await bounded(later.check())
        assert isinstance(found[server].error, error)
        await victims.up(server)

        await recovered(use)

    await of_each_server(scene)
    await recovered(lambda: well(later))
    await bounded(later.close())


async def test_many_requests_at_a_server_that_stands_still_all_end(
    victims: Victims, connected: Servers
) -> None:
    async def scene(server: str, error: type[ServerError]) -> None:
        use = await use_of(server, connected)
        await use()

        await victims.pause(server)
        ended = await bounded(asyncio.gather(*(use() for _ in range(64)), return_exceptions=True))
        await victims.resume(server)

        assert {type(each) for each in ended} == {error}
        await recovered(use)

    await of_each_server(scene)


@pytest.mark.parametrize(("server", "error"), ERRORS.items(), ids=ERRORS)
@pytest.mark.parametrize("brief", [False, True])
async def test_a_check_names_the_server_that_stands_still(
    victims: Victims, connected: Servers, server: str, error: type[ServerError], brief: bool
) -> None:
    await recovered(lambda: well(connected))

    await victims.pause(server)
    found = await bounded(connected.check(brief=brief))
    await victims.resume(server)

    assert type(found[server].error) is error
    assert {name for name, each in found.items() if each.error is not None} == {server}


async def _all(broker: Broker, count: int, until: asyncio.Event) -> set[bytes]:
    """Consume until so many different messages were acked; never make a new consumer."""
    acked: set[bytes] = set()

    async def end(delivery: Delivery) -> None:
        try:
            await delivery.ack()
            acked.add(delivery.body)
        except BrokerUnavailable:
            pass  # it comes again

    deliveries = broker.consume(10)
    async for delivery in deliveries:
        await until.wait()
        await end(delivery)
        if len(acked) == count:
            break
    return acked


@pytest.mark.parametrize("kill", [False, True], ids=["stood still", "was killed"])
async def test_a_consumer_goes_on_and_what_was_confirmed_is_delivered(
    victims: Victims, connected: Servers, kill: bool
) -> None:
    broker = connected.broker(QueueName("test", names.fresh()))
    await broker.declare()
    bodies = {b"%d" % number for number in range(50)}
    await asyncio.gather(*(broker.publish(uuid4(), body) for body in bodies))
    going_on = asyncio.Event()
    consuming = asyncio.create_task(_all(broker, len(bodies), going_on))
    await asyncio.sleep(0.5)  # the consumer has its whole prefetch now

    await (victims.kill if kill else victims.pause)("rabbitmq")
    with pytest.raises((BrokerUnavailable, Unroutable)):
        await bounded(broker.publish(uuid4(), b"unknown"))
    await (victims.up if kill else victims.resume)("rabbitmq")
    going_on.set()

    async with asyncio.timeout(120):
        found = await consuming
    assert bodies <= found | {b"unknown"}


async def test_closing_does_not_wait_for_servers_that_stand_still(
    victims: Victims, connected: Servers
) -> None:
    uses = {server: await use_of(server, connected) for server in SERVERS}
    for use in uses.values():
        await recovered(use)
    for server in SERVERS:
        await victims.pause(server)

    await bounded(connected.close())

    for server, error in (("rabbitmq", BrokerUnavailable), ("cassandra", ViewUnavailable)):
        with pytest.raises(error, match="closed"):
            await bounded(uses[server]())
