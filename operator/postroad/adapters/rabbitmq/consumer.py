"""Consumes messages: a subscription is one consumer on a channel of its own, with its deliveries.

The subscription sends the acks of one pass of the event loop together, those without a gap as one
`multiple` ack. RabbitMQ closes a channel that holds a message longer than its consumer_timeout (30
minutes by default), and counts a failed delivery for each message on it: a handler that often needs
longer for a mail needs a higher consumer_timeout. Source: AMB-21."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pika
from pika import exceptions

from postroad.adapters.rabbitmq.connection import Channel, RabbitMQConnection
from postroad.errors import BrokerUnavailable, ServerError

SILENCE = timedelta(minutes=5)
"""After how long without a message a subscription is followed by another one."""


class RabbitMQDelivery:
    """One message leased to this consumer."""

    __slots__ = ("_arrived", "_properties", "_subscription", "body", "redelivered", "tag")

    def __init__(
        self,
        subscription: Subscription,
        tag: int,
        redelivered: bool,
        properties: pika.BasicProperties,
        body: bytes,
    ) -> None:
        self._subscription = subscription
        self._properties = properties
        self._arrived = subscription.now
        self.tag = tag
        self.redelivered = redelivered
        self.body = body

    @property
    def failed_deliveries(self) -> int:
        """The broker's count, which before RabbitMQ 4 includes messages that were given back."""
        return int((self._properties.headers or {}).get("x-delivery-count", 0))

    @property
    def waited(self) -> timedelta:
        return timedelta(seconds=self._subscription.now - self._arrived)

    @property
    def is_leased(self) -> bool:
        return self._subscription.is_leased(self.tag)

    async def ack(self) -> None:
        self._subscription.ack(self.tag)

    async def give_back(self) -> None:
        self._subscription.nack(self.tag, requeue=True)

    async def dead_letter(self) -> None:
        self._subscription.nack(self.tag, requeue=False)


class Subscription:
    """An async iterator of deliveries that ends when it is stopped or its channel is lost; when its
    channel is outdated, after those that have come."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._driver = channel.driver
        self._buffer: deque[RabbitMQDelivery] = deque()
        self._arrived = asyncio.Event()
        self._arrivals = 0
        self._leased: dict[int, bool] = {}  # tag → whether its ack waits to be sent, in tag order
        self._acks_waiting = 0
        self._loop = asyncio.get_running_loop()
        self._consumer_tag = ""
        self._stopped = False
        self._cancelled = self._consumes_no_more = False
        channel.when_lost.append(lambda _: self._arrived.set())
        channel.when_outdated.append(self._arrived.set)

    @classmethod
    async def start(cls, connection: RabbitMQConnection, queue: str, prefetch: int) -> Subscription:
        """Subscribe. Raises: ServerError."""
        channel = await connection.channel()
        subscription = cls(channel)
        driver = channel.driver
        driver.add_on_cancel_callback(subscription._on_cancelled)
        # Else the server could start the consumer after a timeout here, and lease it messages that
        # no code reads.
        async with channel.or_abandoned():
            await channel.call(driver.basic_qos, prefetch_count=prefetch)
            answer = await channel.call(driver.basic_consume, queue, subscription._on_message)
        subscription._consumer_tag = answer.consumer_tag
        return subscription

    @property
    def now(self) -> float:
        """The time of the event loop's clock, in seconds."""
        return self._loop.time()

    @property
    def lost(self) -> ServerError | None:
        """Why the channel was lost, None while it is open."""
        return self._channel.lost

    @property
    def broken(self) -> ServerError | None:
        """Why the server ended the subscription; None: it did not."""
        if self._cancelled:
            return self.lost or BrokerUnavailable("RabbitMQ cancelled the consumer")
        return self.lost

    @property
    def is_outdated(self) -> bool:
        """True if another subscription is to follow, on a channel of the connection of now."""
        return self._channel.is_outdated

    @property
    def holds(self) -> int:
        """Number of deliveries that were handed out and have not ended."""
        return len(self._leased) - self._acks_waiting - len(self._buffer)

    async def outdate_when_silent(
        self, pause: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        """Return once the subscription is outdated, because nothing came for `SILENCE` and nothing
        is in flight. RabbitMQ shows a consumer no difference between an empty queue and one that
        was deleted and declared anew in the same instant: it subscribes the channel to the new
        queue, leases messages to it and drops them there. Closing the channel frees them."""
        while True:
            before = self._arrivals
            await pause(SILENCE.total_seconds())
            if self._arrivals == before and not self._leased:
                self._channel.outdate()
                return

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> RabbitMQDelivery:
        while not self._buffer:
            if self._channel.is_outdated and not self._consumes_no_more:
                await self._end_consuming()
                continue  # what has come before the answer
            if self._stopped or self._consumes_no_more or self._channel.lost is not None:
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()
        if self._channel.lost is not None:
            raise StopAsyncIteration  # the broker redelivers what is left in the buffer
        return self._buffer.popleft()

    async def stop(self) -> None:
        """Stop consuming; give back what was not handed out. The other deliveries stay leased: the
        last of them to end closes the channel."""
        self._stopped = True
        self._arrived.set()
        try:
            await self._end_consuming()
        finally:
            while self._buffer and self._driver.is_open:
                self.nack(self._buffer.popleft().tag, requeue=True)
            self._close_when_empty()

    async def _end_consuming(self) -> None:
        if self._consumes_no_more:
            return
        self._consumes_no_more = True
        if self._channel.lost is not None or self._cancelled:
            return
        try:
            await self._channel.call(self._driver.basic_cancel, self._consumer_tag)
        except ServerError:
            pass  # the driver rejects what arrives before the server handles the cancel

    async def close(self) -> None:
        """Close the channel: RabbitMQ requeues every delivery that has not ended."""
        self._stopped = True
        self._arrived.set()
        self._send_acks()
        await self._channel.close()

    def is_leased(self, tag: int) -> bool:
        """Return whether the delivery has not ended and its channel is not known to be lost."""
        return self._channel.lost is None and not self._leased.get(tag, True)

    def ack(self, tag: int) -> None:
        """Send an ack, with others of this pass of the loop. Raises: BrokerUnavailable."""
        self._require_leased(tag)
        self._leased[tag] = True
        self._acks_waiting += 1
        if self._acks_waiting == 1:
            self._loop.call_soon(self._send_acks)

    def nack(self, tag: int, *, requeue: bool) -> None:
        """Requeue the delivery, or dead-letter it. Raises: BrokerUnavailable."""
        self._require_leased(tag)
        del self._leased[tag]
        try:
            self._driver.basic_nack(tag, requeue=requeue)
        except exceptions.AMQPError as error:
            raise BrokerUnavailable("the channel of this delivery is lost") from error
        self._close_when_empty()

    def _require_leased(self, tag: int) -> None:
        if not self.is_leased(tag):
            raise BrokerUnavailable(
                "the channel of this delivery is lost, or it has ended already"
            ) from self._channel.lost

    def _send_acks(self) -> None:
        """Acknowledge all deliveries before the first that has not ended with one `multiple` ack,
        which does not affect nacked ones in between, and later ones singly."""
        if not self._acks_waiting or self._channel.lost is not None:
            return
        self._acks_waiting = 0
        acked = []
        for tag, is_acked in self._leased.items():
            if not is_acked:
                break
            acked.append(tag)
        scattered = []
        if len(acked) < len(self._leased):
            scattered = [
                tag for tag, is_acked in self._leased.items() if is_acked and tag > _last(acked)
            ]
        try:
            if acked:
                self._driver.basic_ack(acked[-1], multiple=len(acked) > 1)
            for tag in scattered:
                self._driver.basic_ack(tag)
        except exceptions.AMQPError:
            return  # the channel closes; the broker redelivers these
        for tag in (*acked, *scattered):
            del self._leased[tag]
        self._close_when_empty()

    def _close_when_empty(self) -> None:
        if self._stopped and not self._leased:
            self._channel.abandon()

    def _on_message(
        self, _: object, method: Any, properties: pika.BasicProperties, body: bytes
    ) -> None:
        self._arrivals += 1
        self._leased[method.delivery_tag] = False
        self._buffer.append(
            RabbitMQDelivery(self, method.delivery_tag, method.redelivered, properties, body)
        )
        self._arrived.set()

    def _on_cancelled(self, _: object) -> None:
        """The queue was deleted, or its node left the cluster. `stop` must not cancel the consumer:
        the driver has dropped its tag, and would never answer."""
        self._cancelled = self._stopped = True
        self._arrived.set()


def _last(tags: list[int]) -> int:
    return tags[-1] if tags else 0
