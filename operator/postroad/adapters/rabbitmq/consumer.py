"""Consuming: one subscription is one consumer on one channel, with what it was sent and holds.

Acks are gathered for one entry of the event loop and sent as one `multiple` ack as far as they are
without a gap. RabbitMQ closes a channel that holds a message longer than its consumer_timeout (30
minutes by default), and counts a failed delivery for everything that was held on it: a handler
that needs longer than that for a mail, time and again, needs a higher consumer_timeout.
Source: AMB-21.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import pika
from pika import exceptions

from postroad.adapters.rabbitmq.connection import Channel, Connection
from postroad.errors import BrokerUnavailable, ServerError


class RabbitMQDelivery:
    """One message leased to this consumer."""

    __slots__ = ("_properties", "_subscription", "body", "redelivered", "tag")

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
        self.tag = tag
        self.redelivered = redelivered
        self.body = body

    @property
    def failed_deliveries(self) -> int:
        """The broker's count: before RabbitMQ 4 what was given back counts, too."""
        return int((self._properties.headers or {}).get("x-delivery-count", 0))

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
    """An async iterator of deliveries that ends when its channel is gone or it is stopped."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._driver = channel.driver
        self._inbox: deque[RabbitMQDelivery] = deque()
        self._arrived = asyncio.Event()
        self._leased: dict[int, bool] = {}  # tag → whether its ack is to be sent, in order of tags
        self._acks_waiting = 0
        self._loop = asyncio.get_running_loop()
        self._consumer_tag = ""
        self._stopped = False
        self._cancelled = False
        channel.when_lost.append(lambda _: self._arrived.set())

    @classmethod
    async def start(cls, connection: Connection, queue: str, prefetch: int) -> Subscription:
        """Subscribe. Raises: ServerError."""
        channel = await connection.channel()
        subscription = cls(channel)
        driver = channel.driver
        driver.add_on_cancel_callback(subscription._on_cancelled)
        # A consumer that the server starts after we gave up would be sent messages for nobody.
        async with channel.or_abandoned():
            await channel.call(driver.basic_qos, prefetch_count=prefetch)
            answer = await channel.call(driver.basic_consume, queue, subscription._on_message)
        subscription._consumer_tag = answer.consumer_tag
        return subscription

    @property
    def lost(self) -> ServerError | None:
        """Why the channel is gone, once it is."""
        return self._channel.lost

    @property
    def broken(self) -> ServerError | None:
        """Why nothing comes any more though nobody here stopped it; None as long as it is well."""
        if self._cancelled:
            return self.lost or BrokerUnavailable("RabbitMQ cancelled the consumer")
        return self.lost

    @property
    def holds(self) -> int:
        """How many deliveries are handed out and not ended."""
        return len(self._leased) - self._acks_waiting - len(self._inbox)

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> RabbitMQDelivery:
        while not self._inbox:
            if self._stopped or self._channel.lost is not None:
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()
        if self._channel.lost is not None:
            raise StopAsyncIteration  # what is left here the broker gives to others
        return self._inbox.popleft()

    async def stop(self) -> None:
        """Take no more; give back what was not handed out. What was handed out stays leased: the
        channel is closed when the last of it has ended."""
        self._stopped = True
        self._arrived.set()
        try:
            if self._channel.lost is None and not self._cancelled:
                await self._channel.call(self._driver.basic_cancel, self._consumer_tag)
        except ServerError:
            pass  # the driver sends back what comes until the server has heard of it
        finally:
            while self._inbox and self._driver.is_open:
                self.nack(self._inbox.popleft().tag, requeue=True)
            self._close_when_empty()

    async def close(self) -> None:
        """Close the channel: everything that did not end goes back."""
        self._stopped = True
        self._arrived.set()
        self._send_acks()
        await self._channel.close()

    def is_leased(self, tag: int) -> bool:
        """Return whether it has not ended and the channel it came on is not known to be gone."""
        return self._channel.lost is None and not self._leased.get(tag, True)

    def ack(self, tag: int) -> None:
        """Send an ack with this entry of the loop's others. Raises: BrokerUnavailable."""
        self._require_leased(tag)
        self._leased[tag] = True
        self._acks_waiting += 1
        if self._acks_waiting == 1:
            self._loop.call_soon(self._send_acks)

    def nack(self, tag: int, *, requeue: bool) -> None:
        """Send it back or to the dead queue. Raises: BrokerUnavailable."""
        self._require_leased(tag)
        del self._leased[tag]
        try:
            self._driver.basic_nack(tag, requeue=requeue)
        except exceptions.AMQPError as error:
            raise BrokerUnavailable("the channel of this delivery is gone") from error
        self._close_when_empty()

    def _require_leased(self, tag: int) -> None:
        if not self.is_leased(tag):
            raise BrokerUnavailable(
                "the channel of this delivery is gone, or it has ended already"
            ) from self._channel.lost

    def _send_acks(self) -> None:
        """Everything up to the first delivery that has not ended goes in one `multiple` ack; what
        was nacked in between is settled and not meant by it."""
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
            return  # the channel is going; the broker delivers these again
        for tag in (*acked, *scattered):
            del self._leased[tag]
        self._close_when_empty()

    def _close_when_empty(self) -> None:
        if self._stopped and not self._leased:
            self._channel.abandon()

    def _on_message(
        self, _: object, method: Any, properties: pika.BasicProperties, body: bytes
    ) -> None:
        self._leased[method.delivery_tag] = False
        self._inbox.append(
            RabbitMQDelivery(self, method.delivery_tag, method.redelivered, properties, body)
        )
        self._arrived.set()

    def _on_cancelled(self, _: object) -> None:
        """The queue was deleted or its node left: this consumer gets nothing any more. The driver
        has forgotten its tag, and would never answer a request to cancel it."""
        self._cancelled = self._stopped = True
        self._arrived.set()


def _last(tags: list[int]) -> int:
    return tags[-1] if tags else 0
