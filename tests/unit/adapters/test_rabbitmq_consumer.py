"""Which acks a subscription sends, what it gives back, and when its channel is closed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pika
import pytest
from pika import exceptions

from postroad.adapters.rabbitmq.connection import Channel, RabbitMQConnection
from postroad.adapters.rabbitmq.consumer import RabbitMQDelivery, Subscription
from postroad.errors import BrokerUnavailable


class Driver:
    """A channel of the driver that notes what is sent."""

    is_open = True

    def __init__(self) -> None:
        self.sent: list[tuple[object, ...]] = []
        self.broken = False

    def basic_ack(self, tag: int, multiple: bool = False) -> None:
        self._send("ack", tag, multiple)

    def basic_nack(self, tag: int, requeue: bool) -> None:
        self._send("nack", tag, requeue)

    def basic_cancel(self) -> None: ...

    def _send(self, *what: object) -> None:
        if self.broken:
            raise exceptions.ChannelWrongStateError
        self.sent.append(what)


class Played:
    """Stands for `Channel`."""

    def __init__(self) -> None:
        self.driver = Driver()
        self.when_lost: list[Any] = []
        self.when_outdated: list[Any] = []
        self.is_outdated = False
        self.lost: BrokerUnavailable | None = None
        self.abandoned = False
        self.called: list[object] = []

    def lose(self) -> None:
        self.lost, self.driver.is_open = BrokerUnavailable("gone"), False
        for each in self.when_lost:
            each(self.lost)

    def outdate(self) -> None:
        self.is_outdated = True
        for each in self.when_outdated:
            each()

    async def call(self, request: Any, *_: object) -> None:
        self.called.append(request.__name__)
        if self.driver.broken:
            raise BrokerUnavailable("did not answer")

    def abandon(self) -> None:
        self.abandoned = True

    async def close(self) -> None:
        self.driver._send("close")


@pytest.fixture
async def channel() -> Played:
    return Played()


@pytest.fixture
async def subscription(channel: Played) -> Subscription:
    return Subscription(cast("Channel", channel))


async def handed_out(subscription: Subscription, *tags: int) -> list[RabbitMQDelivery]:
    arrive(subscription, *tags)
    return [await anext(subscription) for _ in tags]


def arrive(subscription: Subscription, *tags: int) -> None:
    for tag in tags:
        method = SimpleNamespace(delivery_tag=tag, redelivered=tag == 9)
        subscription._on_message(None, method, pika.BasicProperties(), b"%d" % tag)


async def acked(*deliveries: RabbitMQDelivery) -> None:
    for each in deliveries:
        await each.ack()
    await asyncio.sleep(0)


async def test_acks_without_a_gap_go_as_one_and_the_others_singly(
    channel: Played, subscription: Subscription
) -> None:
    one, two, three, four, five = await handed_out(subscription, 1, 2, 3, 4, 5)

    await acked(two, one, four)
    assert channel.driver.sent == [("ack", 2, True), ("ack", 4, False)]

    await acked(five)
    await acked(three)
    assert channel.driver.sent[2:] == [("ack", 5, False), ("ack", 3, False)]
    assert subscription.holds == 0


async def test_an_ack_never_affects_a_delivery_that_is_still_leased(
    channel: Played, subscription: Subscription
) -> None:
    _, two = await handed_out(subscription, 1, 2)

    await acked(two)

    assert channel.driver.sent == [("ack", 2, False)]
    assert subscription.is_leased(1)


@pytest.mark.parametrize(("ending", "requeue"), [("give_back", True), ("dead_letter", False)])
async def test_a_delivery_that_is_refused_is_requeued_or_dead_lettered_at_once(
    channel: Played, subscription: Subscription, ending: str, requeue: bool
) -> None:
    [one] = await handed_out(subscription, 1)

    await getattr(one, ending)()

    assert channel.driver.sent == [("nack", 1, requeue)]
    assert not one.is_leased or subscription.holds == 0


async def test_a_delivery_ends_once(subscription: Subscription) -> None:
    one, two = await handed_out(subscription, 1, 2)
    await one.ack()
    await two.give_back()

    assert not one.is_leased
    for again in (one.ack, one.give_back):
        with pytest.raises(BrokerUnavailable, match="ended already"):
            await again()


async def test_a_delivery_of_a_lost_channel_cannot_end(
    channel: Played, subscription: Subscription
) -> None:
    one, two = await handed_out(subscription, 1, 2)
    await one.ack()

    channel.lose()
    await asyncio.sleep(0)

    assert channel.driver.sent == []
    with pytest.raises(BrokerUnavailable) as refused:
        await two.ack()
    assert refused.value.__cause__ is channel.lost


async def test_a_channel_that_breaks_while_acks_are_sent_keeps_them_for_the_broker(
    channel: Played, subscription: Subscription
) -> None:
    one, two = await handed_out(subscription, 1, 2)
    channel.driver.broken = True

    await acked(one)

    with pytest.raises(BrokerUnavailable, match="is lost"):
        await two.give_back()
    assert not channel.abandoned


async def test_holds_counts_what_was_handed_out_and_has_not_ended(
    subscription: Subscription,
) -> None:
    arrive(subscription, 1, 2, 3)
    assert subscription.holds == 0

    one, _ = [await anext(subscription) for _ in range(2)]
    assert subscription.holds == 2

    await one.ack()
    assert subscription.holds == 1
    await asyncio.sleep(0)
    assert subscription.holds == 1


async def test_stopping_gives_back_what_was_not_handed_out_and_waits_for_the_rest(
    channel: Played, subscription: Subscription
) -> None:
    [one] = await handed_out(subscription, 1)
    arrive(subscription, 2, 3)

    await subscription.stop()

    assert channel.called == ["basic_cancel"]
    assert channel.driver.sent == [("nack", 2, True), ("nack", 3, True)]
    assert not channel.abandoned
    with pytest.raises(StopAsyncIteration):
        await anext(subscription)
    await acked(one)
    assert channel.abandoned


async def test_stopping_without_an_answer_gives_back_too(
    channel: Played, subscription: Subscription
) -> None:
    arrive(subscription, 1)

    async def unanswered(*_: object) -> None:
        raise BrokerUnavailable("did not answer")

    channel.call = unanswered  # type: ignore[assignment]
    await subscription.stop()

    assert channel.driver.sent == [("nack", 1, True)]
    assert channel.abandoned


async def test_a_subscription_that_the_server_cancelled_is_broken_and_not_cancelled_again(
    channel: Played, subscription: Subscription
) -> None:
    before = subscription.broken
    subscription._on_cancelled(None)
    await subscription.stop()

    assert before is None
    assert channel.called == []
    assert isinstance(subscription.broken, BrokerUnavailable)
    with pytest.raises(StopAsyncIteration):
        await anext(subscription)


async def test_what_is_left_in_the_buffer_of_a_lost_channel_is_not_handed_out(
    channel: Played, subscription: Subscription
) -> None:
    arrive(subscription, 1)

    channel.lose()

    with pytest.raises(StopAsyncIteration):
        await anext(subscription)
    assert subscription.broken is subscription.lost is channel.lost
    await subscription.stop()
    assert channel.called == []


async def test_a_waiting_reader_ends_with_the_channel(
    channel: Played, subscription: Subscription
) -> None:
    waiting = asyncio.ensure_future(anext(subscription))
    await asyncio.sleep(0)

    channel.lose()

    with pytest.raises(StopAsyncIteration):
        await asyncio.wait_for(waiting, 60)


async def test_an_outdated_subscription_hands_out_what_has_come_and_ends(
    channel: Played, subscription: Subscription
) -> None:
    waiting = asyncio.ensure_future(anext(subscription))
    await asyncio.sleep(0)

    async def answered(request: Any, *_: object) -> None:
        channel.called.append(request.__name__)
        arrive(subscription, 1, 2)  # before the server handled the cancel

    channel.call = answered  # type: ignore[method-assign]
    channel.outdate()

    one, two = await waiting, await anext(subscription)
    with pytest.raises(StopAsyncIteration):
        await anext(subscription)
    await subscription.stop()
    assert (one.tag, two.tag, channel.called) == (1, 2, ["basic_cancel"])
    assert channel.driver.sent == []
    assert not channel.abandoned

    await acked(one, two)
    assert channel.abandoned


async def test_an_outdated_subscription_of_a_lost_channel_ends(
    channel: Played, subscription: Subscription
) -> None:
    channel.outdate()
    channel.lose()

    with pytest.raises(StopAsyncIteration):
        await anext(subscription)
    assert channel.called == []


async def test_closing_sends_acks_that_wait_and_ends_readers(
    channel: Played, subscription: Subscription
) -> None:
    one, _ = await handed_out(subscription, 1, 2)
    waiting = asyncio.ensure_future(anext(subscription))
    await asyncio.sleep(0)
    await one.ack()

    await subscription.close()

    assert channel.driver.sent == [("ack", 1, False), ("close",)]
    with pytest.raises(StopAsyncIteration):
        await asyncio.wait_for(waiting, 60)


async def test_a_delivery_has_the_brokers_count_of_failed_ones(subscription: Subscription) -> None:
    counted = pika.BasicProperties(headers={"x-delivery-count": 3})
    for properties in (counted, pika.BasicProperties()):
        method = SimpleNamespace(delivery_tag=9, redelivered=True)
        subscription._on_message(None, method, properties, b"body")

    first, second = [await anext(subscription) for _ in range(2)]

    assert (first.failed_deliveries, second.failed_deliveries) == (3, 0)
    assert (first.redelivered, first.body) == (True, b"body")


async def test_a_delivery_waits_from_when_its_message_came(
    subscription: Subscription, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's consumer_timeout runs while it lies here without a reader."""
    now = 100.0
    monkeypatch.setattr(Subscription, "now", property(lambda _: now))
    arrive(subscription, 1)
    now = 1300.0

    delivery = await anext(subscription)

    assert delivery.waited == timedelta(minutes=20)


class Starting(Played):
    """A channel on which a subscription starts; requests named in `silent` get no answer."""

    def __init__(self, *silent: str) -> None:
        super().__init__()
        self.silent = silent
        self.asked: list[tuple[object, ...]] = []
        driver: Any = self.driver
        driver.basic_qos = driver.basic_consume = None
        driver.add_on_cancel_callback = self._note_callback

    def _note_callback(self, callback: Any) -> None:
        self.on_cancelled = callback

    async def call(self, request: Any, *values: object, **named: object) -> Any:
        name = ["basic_qos", "basic_consume", "basic_cancel"][len(self.asked)]
        self.asked.append((name, *values, named))
        if name in self.silent:
            raise BrokerUnavailable("did not answer")
        return SimpleNamespace(consumer_tag="ctag1")

    @asynccontextmanager
    async def or_abandoned(self) -> AsyncIterator[None]:
        try:
            yield
        except BaseException:
            self.abandon()
            raise


def connection_of(channel: Starting) -> RabbitMQConnection:
    async def open_channel() -> Starting:
        return channel

    return cast("RabbitMQConnection", SimpleNamespace(channel=open_channel))


async def test_a_subscription_limits_its_deliveries_before_it_starts() -> None:
    channel = Starting()

    subscription = await Subscription.start(connection_of(channel), "work", 7)
    await subscription.stop()

    [qos, consume, cancel] = channel.asked
    assert qos == ("basic_qos", {"prefetch_count": 7})
    assert consume == ("basic_consume", "work", subscription._on_message, {})
    assert cancel == ("basic_cancel", "ctag1", {})
    assert channel.abandoned


async def test_a_subscription_hears_that_the_server_cancelled_it() -> None:
    channel = Starting()
    subscription = await Subscription.start(connection_of(channel), "work", 7)

    channel.on_cancelled(None)

    with pytest.raises(StopAsyncIteration):
        await anext(subscription)
    assert subscription.broken is not None


@pytest.mark.parametrize("silent", ["basic_qos", "basic_consume"])
async def test_a_subscription_that_does_not_start_leaves_no_channel(silent: str) -> None:
    """Else the server could lease it messages that no code reads."""
    channel = Starting(silent)

    with pytest.raises(BrokerUnavailable):
        await Subscription.start(connection_of(channel), "work", 7)

    assert channel.abandoned
    assert channel.asked[-1][0] == silent


async def test_a_subscription_that_gets_nothing_is_followed_by_another_one(
    channel: Played, subscription: Subscription
) -> None:
    """Unless a delivery comes, or is in flight: the next subscription would take more than its
    prefetch beside it."""
    pauses: list[float] = []
    held: list[RabbitMQDelivery] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        assert not channel.is_outdated
        match len(pauses):
            case 1:
                held.extend(await handed_out(subscription, 1))
            case 3:
                await acked(*held)

    await subscription.outdate_when_silent(pause)

    assert pauses == [300] * 3
    assert channel.is_outdated
    with pytest.raises(StopAsyncIteration):
        await anext(subscription)
    assert channel.called == ["basic_cancel"]
