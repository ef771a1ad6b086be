"""Which confirm belongs to which message, and what its loss means."""

from __future__ import annotations

import asyncio
import gc
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from pika import exceptions, frame, spec

from postroad.adapters.rabbitmq import publisher
from postroad.adapters.rabbitmq.connection import Channel, RabbitMQConnection
from postroad.adapters.rabbitmq.publisher import (
    PublishedMessage,
    Publisher,
    Unconfirmed,
    _Confirming,
)
from postroad.errors import (
    BrokerRefused,
    BrokerUnavailable,
    ExchangeGone,
    NotPublished,
    Unroutable,
)


def message(number: int, key: str = "work", body: bytes = b"body") -> PublishedMessage:
    return PublishedMessage(key, UUID(int=number), body)


class Driver:
    """A channel of the driver, in confirm mode."""

    def __init__(self) -> None:
        self.published: list[tuple[object, ...]] = []
        self.properties: list[spec.BasicProperties] = []
        self.error: Exception | None = None

    def add_on_return_callback(self, callback: Any) -> None:
        self.returned = callback

    def confirm_delivery(self, callback: Any) -> None: ...

    def basic_publish(
        self, exchange: str, key: str, body: bytes, properties: Any, mandatory: bool
    ) -> None:
        if self.error is not None:
            raise self.error
        assert mandatory
        self.published.append((exchange, key, body))
        self.properties.append(properties)


class OneChannel:
    """Stands for `Channel`."""

    def __init__(self) -> None:
        self.driver = Driver()
        self.lost: BrokerUnavailable | None = None
        self.when_lost: list[Any] = []
        self.is_outdated = False
        self.when_outdated: list[Any] = []
        self.called: list[object] = []
        self.closed = self.abandoned = 0

    async def call(self, request: Any, on_confirm: Any) -> None:
        self.called.append(request.__name__)
        self.confirm = on_confirm

    def or_abandoned(self) -> Any:
        channel = self

        class Block:
            async def __aenter__(self) -> None: ...

            async def __aexit__(self, kind: object, *_: object) -> None:
                channel.abandoned += kind is not None

        return Block()

    async def close(self) -> None:
        self.closed += 1

    def outdate(self) -> None:
        self.is_outdated = True
        for each in self.when_outdated:
            each()

    def abandon(self) -> None:
        self.abandoned += 1

    def lose(self) -> None:
        self.lost = BrokerUnavailable("gone")
        for each in self.when_lost:
            each(self.lost)

    def ack(self, tag: int, *, multiple: bool = False) -> None:
        self.confirm(frame.Method(1, spec.Basic.Ack(tag, multiple)))

    def nack(self, tag: int, *, multiple: bool = False) -> None:
        self.confirm(frame.Method(1, spec.Basic.Nack(tag, multiple)))


@pytest.fixture
async def channel() -> OneChannel:
    made = OneChannel()
    made.confirm = _Confirming(cast("Channel", made)).on_confirm
    made.when_lost.clear()
    return made


@pytest.fixture
async def confirming(channel: OneChannel) -> _Confirming:
    made = _Confirming(cast("Channel", channel))
    channel.confirm = made.on_confirm
    return made


def states(*confirms: asyncio.Future[None]) -> list[object]:
    """What became of confirms: True, the type of an error, or None while they are pending."""
    return [
        None if not each.done() else type(each.exception()) if each.exception() else True
        for each in confirms
    ]


async def test_a_confirm_of_many_is_of_all_up_to_its_tag(
    channel: OneChannel, confirming: _Confirming
) -> None:
    confirms = [confirming.send("x", message(each)) for each in range(5)]

    channel.ack(2)
    assert states(*confirms) == [None, True, None, None, None]
    channel.ack(3, multiple=True)
    assert states(*confirms) == [True, True, True, None, None]
    channel.nack(5, multiple=True)
    channel.ack(9)

    assert states(*confirms) == [True, True, True, BrokerUnavailable, BrokerUnavailable]
    assert channel.driver.published[0] == ("x", "work", b"body")
    first = channel.driver.properties[0]
    assert (first.message_id, first.correlation_id) == (str(UUID(int=0)), "1")
    assert first.content_type == "application/json"


async def test_only_the_messages_that_came_back_are_unroutable(
    channel: OneChannel, confirming: _Confirming
) -> None:
    confirms = [confirming.send("x", message(each)) for each in range(4)]
    for number in (1, 3):
        channel.driver.returned(None, None, channel.driver.properties[number], None)

    channel.ack(3, multiple=True)
    assert states(*confirms) == [True, Unroutable, True, None]
    channel.ack(4)

    assert states(*confirms) == [True, Unroutable, True, Unroutable]


async def test_a_message_that_is_under_way_is_not_sent_again(
    channel: OneChannel, confirming: _Confirming
) -> None:
    first = confirming.send("x", message(1))

    assert confirming.send("x", message(1)) is first
    assert confirming.send("x", message(1, body=b"other")) is not first
    assert len(channel.driver.published) == 2
    channel.ack(2, multiple=True)
    assert confirming.send("x", message(1)) is not first


async def test_a_message_that_cannot_be_sent_takes_no_tag(
    channel: OneChannel, confirming: _Confirming
) -> None:
    channel.driver.error = exceptions.ChannelWrongStateError()
    with pytest.raises(BrokerUnavailable):
        confirming.send("x", message(1))
    channel.driver.error = None

    confirm = confirming.send("x", message(2))
    channel.ack(1)

    assert states(confirm) == [True]


async def test_a_queue_that_confirms_nothing_gets_no_more_than_its_limit(
    channel: OneChannel, confirming: _Confirming, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "MAX_UNCONFIRMED", 1)
    confirming.send("x", message(1))

    with pytest.raises(BrokerUnavailable, match="for work") as refused:
        confirming.send("x", message(2))

    assert "quorum_status" in refused.value.explain()
    assert len(channel.driver.published) == 1
    confirming.send("x", message(3, key="other"))
    channel.ack(1)
    confirming.send("x", message(2))
    assert len(channel.driver.published) == 3


async def test_a_confirm_that_no_publish_waits_for_is_lost_in_silence() -> None:
    unhandled: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, each: unhandled.append(each))
    waiting = Unconfirmed()
    waiting.add(1, message(1))

    waiting.lose(BrokerUnavailable("gone"))
    await asyncio.sleep(0)
    gc.collect()

    assert unhandled == []


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (BrokerUnavailable("gone"), BrokerUnavailable),
        (BrokerRefused("no"), BrokerUnavailable),
    ],
)
async def test_what_a_lost_channel_did_with_a_message_is_open(
    loss: BrokerUnavailable, expected: type[Exception]
) -> None:
    waiting = Unconfirmed()
    confirms = [waiting.add(each, message(each)) for each in (1, 2)]

    waiting.lose(loss)

    assert states(*confirms) == [expected, expected]
    assert waiting.confirm_of(message(1)) is None
    waiting.check_room("work")


async def test_a_missing_exchange_leaves_open_what_became_of_messages_before_the_last() -> None:
    """RabbitMQ closes the channel at the first message for the exchange, and drops those behind it.
    One that it stored before has no confirm yet: of another exchange, or of this one, until an
    administrator deleted it."""
    waiting = Unconfirmed()
    delayed = waiting.add(1, message(1, "8.mail.out"))
    confirms = [waiting.add(each, message(each)) for each in (2, 3, 4)]

    waiting.lose(Unroutable("no exchange"))

    assert states(delayed, *confirms) == [ExchangeGone, ExchangeGone, ExchangeGone, Unroutable]
    alone = waiting.add(1, message(5))
    waiting.lose(Unroutable("no exchange"))
    assert states(alone) == [Unroutable]


async def test_the_bytes_of_a_queue_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher, "MAX_BYTES", 20)
    waiting = Unconfirmed()
    for tag in (1, 2):
        waiting.check_room("work")
        waiting.add(tag, message(tag, body=bytes(10)))

    with pytest.raises(BrokerUnavailable, match=r"2 messages \(20 bytes\) for work"):
        waiting.check_room("work")
    waiting.check_room("other")
    waiting.resolve(1, None, multiple=False)
    waiting.check_room("work")


@pytest.mark.parametrize(
    ("opening", "is_sent"),
    [("refused", False), ("hangs", False), ("full", False), ("unconfirmed", True)],
)
async def test_an_error_shows_whether_the_message_can_have_been_sent(
    monkeypatch: pytest.MonkeyPatch, opening: str, is_sent: bool
) -> None:
    monkeypatch.setattr(publisher, "CONFIRM_DEADLINE", timedelta(milliseconds=20))
    monkeypatch.setattr(publisher, "MAX_UNCONFIRMED", 0 if opening == "full" else 1)
    made = OneChannel()

    async def channel() -> OneChannel:
        if opening == "refused":
            raise BrokerUnavailable("away")
        if opening == "hangs":
            await asyncio.Event().wait()
        return made

    over = Publisher(cast("RabbitMQConnection", SimpleNamespace(channel=channel)))

    with pytest.raises(BrokerUnavailable) as raised:
        await over.publish("x", "work", UUID(int=1), b"body")

    assert (raised.type is not NotPublished, len(made.driver.published)) == (is_sent, is_sent)


async def publisher_over(*channels: OneChannel) -> Publisher:
    left = list(channels)

    async def channel() -> OneChannel:
        return left.pop(0)

    return Publisher(cast("RabbitMQConnection", SimpleNamespace(channel=channel)))


async def published(over: Publisher, number: int) -> asyncio.Future[None]:
    publishing = asyncio.ensure_future(over.publish("x", "work", UUID(int=number), b"body"))
    for _ in range(9):
        await asyncio.sleep(0)
    return publishing


async def test_publishes_share_a_channel_until_it_is_lost() -> None:
    first, second = OneChannel(), OneChannel()
    over = await publisher_over(first, second)

    one, two = await published(over, 1), await published(over, 2)
    assert first.called == ["confirm_delivery"]
    first.ack(1)
    await one
    first.lose()
    with pytest.raises(BrokerUnavailable, match="lost before the confirm"):
        await two

    three = await published(over, 2)
    second.ack(1)
    await three
    await over.close()
    assert (first.closed, second.closed) == (0, 1)


async def test_a_publish_without_a_confirm_fails_and_its_repetition_waits_for_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    channel = OneChannel()
    over = await publisher_over(channel)
    monkeypatch.setattr(publisher, "CONFIRM_DEADLINE", timedelta(0))
    with pytest.raises(BrokerUnavailable, match="did not open a channel in time"):
        await over.publish("x", "work", UUID(int=1), b"body")
    assert channel.driver.published == []

    monkeypatch.setattr(publisher, "CONFIRM_DEADLINE", timedelta(milliseconds=20))
    for _ in range(2):
        with pytest.raises(BrokerUnavailable, match="did not confirm in time"):
            await over.publish("x", "work", UUID(int=1), b"body")
    assert len(channel.driver.published) == 1
    monkeypatch.setattr(publisher, "CONFIRM_DEADLINE", timedelta(seconds=10))
    again = await published(over, 1)
    channel.ack(1)
    await again

    assert len(channel.driver.published) == 1


async def test_a_channel_that_is_outdated_ends_with_its_last_confirm() -> None:
    first, second = OneChannel(), OneChannel()
    over = await publisher_over(first, second)
    one, two = await published(over, 1), await published(over, 2)
    first.ack(1)
    await one

    first.outdate()
    repeated, three = await published(over, 2), await published(over, 3)
    second.ack(1)
    await three
    assert (len(first.driver.published), len(second.driver.published)) == (2, 1)
    assert (first.abandoned, two.done(), repeated.done()) == (0, False, False)

    first.ack(2)
    await two
    await repeated
    assert first.abandoned == 1
    again = await published(over, 2)
    second.ack(2)
    await again


async def test_an_outdated_channel_without_messages_ends_at_once() -> None:
    first = OneChannel()
    over = await publisher_over(first)
    one = await published(over, 1)
    first.ack(1)
    await one

    first.outdate()

    assert first.abandoned == 1


async def test_a_channel_that_refuses_a_message_is_used_for_no_other() -> None:
    """A channel of RabbitMQ 3.10 that found a queue's leader gone refuses all that follows."""
    first, second = OneChannel(), OneChannel()
    over = await publisher_over(first, second)
    one, two = await published(over, 1), await published(over, 2)

    first.nack(2)
    with pytest.raises(BrokerUnavailable, match="could not store"):
        await two
    again = await published(over, 2)
    second.ack(1)
    await again
    assert (first.abandoned, one.done(), len(second.driver.published)) == (0, False, 1)

    first.ack(1)
    await one
    assert first.abandoned == 1


async def test_channels_that_followed_one_another_share_the_limit_of_a_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each refusal opens another channel, beside that of the messages without a confirm."""
    monkeypatch.setattr(publisher, "MAX_UNCONFIRMED", 2)
    first, second = OneChannel(), OneChannel()
    over = await publisher_over(first, second)
    waiting = [await published(over, number) for number in range(2)]
    refused = asyncio.ensure_future(over.publish("x", "dead", UUID(int=2), b"body"))
    await asyncio.sleep(0)
    first.nack(3)
    with pytest.raises(BrokerUnavailable):
        await refused

    with pytest.raises(NotPublished, match="2 messages"):
        await over.publish("x", "work", UUID(int=3), b"body")

    first.ack(2, multiple=True)
    await asyncio.gather(*waiting)
    last = await published(over, 3)
    second.ack(1)
    await last


async def test_a_publisher_that_is_closed_while_it_opens_leaves_no_channel() -> None:
    channel = OneChannel()
    over = await publisher_over(channel)
    await over.close()

    with pytest.raises(BrokerUnavailable, match="publisher was closed"):
        await over.publish("x", "work", UUID(int=1), b"body")

    assert channel.abandoned == 1
