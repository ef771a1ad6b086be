"""A channel's requests are answered, refused or late; what is left is closed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pika import exceptions
from pika.adapters.asyncio_connection import AsyncioConnection

from postroad.adapters.rabbitmq import connection
from postroad.adapters.rabbitmq.connection import Access, Channel, RabbitMQConnection
from postroad.errors import BrokerUnavailable, Unroutable

GONE = exceptions.ChannelClosedByBroker(404, "no queue")


class Driver:
    """A channel of the driver, whose answers a test gives."""

    def __init__(self) -> None:
        self.is_open = True
        self.is_closing = self.is_closed = False
        self.closed = 0
        self.on_close: Callable[[object, BaseException], None]

    def add_on_close_callback(self, callback: Callable[[object, BaseException], None]) -> None:
        self.on_close = callback

    def close(self) -> None:
        self.closed += 1

    def lose(self, reason: BaseException = GONE) -> None:
        self.is_open, self.is_closed = False, True
        self.on_close(self, reason)


@pytest.fixture
def driver() -> Driver:
    return Driver()


@pytest.fixture
async def channel(driver: Driver) -> Channel:
    made = Channel()

    def open_one(on_open_callback: Callable[[object], None]) -> Driver:
        asyncio.get_running_loop().call_soon(on_open_callback, driver)
        return driver

    await made.open(cast("AsyncioConnection", SimpleNamespace(channel=open_one)))
    return made


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "ANSWER_TIMEOUT", timedelta(milliseconds=20))


async def test_a_request_returns_the_answers_method(channel: Channel) -> None:
    asked: list[tuple[object, ...]] = []

    def declare(name: str, callback: Callable[[Any], None], durable: bool) -> None:
        asked.append((name, durable))
        callback(SimpleNamespace(method="declared"))
        callback(SimpleNamespace(method="again"))

    assert await channel.call(declare, "work", durable=True) == "declared"
    assert asked == [("work", True)]
    assert channel._answers == set()


async def test_a_request_is_refused_with_the_channels_loss(
    channel: Channel, driver: Driver
) -> None:
    asking = asyncio.ensure_future(channel.call(lambda callback: None))
    heard: list[object] = []
    channel.when_lost.append(heard.append)
    await asyncio.sleep(0)

    driver.lose()

    with pytest.raises(Unroutable):
        await asking
    with pytest.raises(Unroutable):
        await channel.call(lambda callback: None)
    assert heard == [channel.lost]


async def test_a_request_that_the_driver_cannot_send_fails_and_leaves_nothing(
    channel: Channel,
) -> None:
    def broken(callback: object) -> None:
        raise exceptions.ChannelWrongStateError

    with pytest.raises(BrokerUnavailable):
        await channel.call(broken)

    assert channel._answers == set()


async def test_a_request_that_is_only_sent_awaits_nothing(channel: Channel, driver: Driver) -> None:
    asked: list[tuple[object, ...]] = []

    await channel.send(lambda name, durable: asked.append((name, durable)), "work", durable=True)

    assert asked == [("work", True)]
    assert channel._answers == set()
    driver.lose()
    with pytest.raises(Unroutable):
        await channel.send(lambda: asked.append(()))
    assert len(asked) == 1


async def test_a_request_that_is_only_sent_fails_where_the_driver_cannot_send_it(
    channel: Channel,
) -> None:
    def broken() -> None:
        raise exceptions.ChannelWrongStateError

    with pytest.raises(BrokerUnavailable):
        await channel.send(broken)


@pytest.mark.usefixtures("impatient")
async def test_a_request_without_an_answer_names_itself(channel: Channel) -> None:
    def queue_declare(callback: object) -> None: ...

    with pytest.raises(BrokerUnavailable, match=r"in time \(queue_declare\)"):
        await channel.call(queue_declare)

    assert channel._answers == set()


async def test_a_connection_that_opens_no_channel_is_an_error() -> None:
    def closed(on_open_callback: object) -> None:
        raise exceptions.ConnectionWrongStateError

    made = Channel()

    with pytest.raises(BrokerUnavailable):
        await made.open(cast("AsyncioConnection", SimpleNamespace(channel=closed)))
    assert made._answers == set()


@pytest.mark.usefixtures("impatient")
async def test_a_channel_that_is_not_opened_in_time_is_abandoned(driver: Driver) -> None:
    made = Channel()

    with pytest.raises(BrokerUnavailable, match="opening a channel"):
        await made.open(cast("AsyncioConnection", SimpleNamespace(channel=lambda **_: driver)))

    assert driver.closed == 1


async def test_closing_waits_for_the_loss_and_is_done_once(
    channel: Channel, driver: Driver
) -> None:
    closing = asyncio.ensure_future(channel.close())
    await asyncio.sleep(0)
    assert (driver.closed, closing.done()) == (1, False)

    driver.lose(exceptions.ChannelClosedByClient(200, ""))
    await closing
    await channel.close()

    assert driver.closed == 1


@pytest.mark.usefixtures("impatient")
async def test_closing_without_an_answer_ends(channel: Channel, driver: Driver) -> None:
    await channel.close()

    assert driver.closed == 1


@pytest.mark.parametrize("state", ["is_closed", "is_closing", "lost"])
async def test_a_channel_that_ends_by_itself_is_not_abandoned(
    channel: Channel, driver: Driver, state: str
) -> None:
    if state == "lost":
        driver.lose()
        driver.is_closed = False
    else:
        setattr(driver, state, True)

    channel.abandon()

    assert driver.closed == 0


async def test_abandoning_closes_without_waiting_and_meets_no_error(
    channel: Channel, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel.abandon()
    assert driver.closed == 1

    def gone() -> None:
        raise exceptions.ChannelWrongStateError

    monkeypatch.setattr(driver, "close", gone)
    channel.abandon()


class OfConnection:
    """A connection of the driver that opens, fails or is lost as a test wants."""

    def __init__(self, _: object, on_open: Any, on_error: Any, on_close: Any, __: object) -> None:
        self.heard = (on_open, on_error, on_close)
        self.is_open = self.is_closing = self.is_closed = False
        self.ended: list[str] = []
        self.server_properties: dict[str, str] | None = {"version": "3.10"}
        OPENED.append(self)

    def open(self) -> None:
        self.is_open = True
        self.heard[0](self)

    def lose(self) -> None:
        self.is_open, self.is_closed = False, True
        self.heard[2](self, exceptions.ConnectionClosedByBroker(320, "shutdown"))

    def close(self) -> None:
        self.ended.append("close")

    def _terminate_stream(self, _: object) -> None:
        self.ended.append("terminate")


OPENED: list[OfConnection] = []


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> RabbitMQConnection:
    OPENED.clear()
    monkeypatch.setattr(connection, "CoalescingConnection", OfConnection)
    monkeypatch.setattr(connection, "CLOSE_TIMEOUT", timedelta(milliseconds=20))
    return RabbitMQConnection(Access.from_uri("amqp://broker"), "publisher")


async def opened(shared: RabbitMQConnection) -> OfConnection:
    opening = asyncio.ensure_future(shared._opened())
    while not OPENED or OPENED[-1].is_closed:
        await asyncio.sleep(0)
    OPENED[-1].open()
    assert cast("OfConnection", (await opening).driver) is OPENED[-1]
    return OPENED[-1]


async def test_a_connection_is_shared_until_it_is_lost(shared: RabbitMQConnection) -> None:
    first = await opened(shared)
    assert (await shared._opened()).driver is first

    first.lose()

    assert await opened(shared) is not first
    assert len(OPENED) == 2


async def test_a_connection_that_fails_is_an_error_and_tried_again(
    shared: RabbitMQConnection,
) -> None:
    opening = asyncio.ensure_future(shared._opened())
    while not OPENED:
        await asyncio.sleep(0)
    OPENED[0].is_closed = True
    OPENED[0].heard[1](OPENED[0], exceptions.AMQPConnectionError("no"))

    with pytest.raises(BrokerUnavailable):
        await opening
    assert await opened(shared)


async def test_a_closed_connection_is_not_opened_again(shared: RabbitMQConnection) -> None:
    await shared.close()

    with pytest.raises(BrokerUnavailable, match="was closed"):
        await shared.channel()
    assert OPENED == []


async def test_closing_waits_for_the_server(shared: RabbitMQConnection) -> None:
    driver = await opened(shared)
    closing = asyncio.ensure_future(shared.close())
    await asyncio.sleep(0)

    driver.lose()
    await closing
    await shared.close()

    assert driver.ended == ["close"]


async def test_a_server_that_hangs_is_left(shared: RabbitMQConnection) -> None:
    driver = await opened(shared)

    await shared.close()

    assert driver.ended == ["close", "terminate"]


@pytest.mark.parametrize("state", ["is_closing", "is_closed"])
async def test_a_connection_that_closes_already_is_not_closed_again(
    shared: RabbitMQConnection, state: str
) -> None:
    driver = await opened(shared)
    setattr(driver, state, True)

    await shared.close()

    assert "close" not in driver.ended
    assert ("terminate" in driver.ended) == (state == "is_closing")


async def test_the_version_is_the_servers_after_it_answered(
    shared: RabbitMQConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = await opened(shared)
    answered: list[str] = []

    class Answering:
        def __init__(self) -> None:
            self.when_lost: list[object] = []

        async def open(self, _: object) -> None:
            answered.append("open")

        async def close(self) -> None:
            answered.append("close")

    monkeypatch.setattr(connection, "Channel", Answering)

    assert await shared.version() == "3.10"
    assert answered == ["open", "close"]
    driver.server_properties = None
    assert await shared.version() == "unknown"
