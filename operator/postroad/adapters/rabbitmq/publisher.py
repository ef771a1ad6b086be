"""Publishes messages with confirms.

Each publish waits for its own confirm. The server syncs many messages at once, so publishes in
flight at the same time share a sync. Source: 000 Decision; ADR 0011.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID

import pika
from pika import exceptions, spec

from postroad.adapters.rabbitmq.connection import Channel, RabbitMQConnection
from postroad.adapters.rabbitmq.translation import translated
from postroad.adapters.rabbitmq.unconfirmed import PublishedMessage, Unconfirmed
from postroad.batching import Shared
from postroad.errors import BrokerUnavailable, NotPublished, Unroutable

CONFIRM_DEADLINE = timedelta(seconds=10)
"""How long a publish may take, connecting included. A queue without a quorum never confirms."""

PERSISTENT = 2


class Publisher:
    """Publishes one mail queue's messages over a channel of its own, because a missing exchange
    closes the channel. Opens another one when it is lost, outdated, or had a message refused; an
    outdated one ends with its last confirm."""

    def __init__(self, connection: RabbitMQConnection) -> None:
        self._connection = connection
        self._opening: Shared[_Confirming] = Shared()
        self._current: _Confirming | None = None
        self._former: list[_Confirming] = []
        self._closed = False

    async def publish(self, exchange: str, routing_key: str, message_id: UUID, body: bytes) -> None:
        """Return when the message is confirmed. One that was sent before and has no confirm yet is
        not sent again; a routing key belongs to one exchange. Raises: ServerError, NotPublished
        among them."""
        message = PublishedMessage(routing_key, message_id, body)
        confirm = self._confirm_in_former(message)
        try:
            async with asyncio.timeout(CONFIRM_DEADLINE.total_seconds()):
                if confirm is None:
                    confirm = (await self._usable()).send(exchange, message)
                # Shielded: after a timeout here, a repetition waits for the same confirm.
                await asyncio.shield(confirm)
        except TimeoutError as error:
            if confirm is None:
                raise NotPublished("RabbitMQ did not open a channel in time") from error
            raise BrokerUnavailable("RabbitMQ did not confirm in time") from error

    async def close(self) -> None:
        """Close the channel. Idempotent."""
        self._closed = True
        if self._current is not None:
            await asyncio.gather(*(each.channel.close() for each in (self._current, *self._former)))

    async def _usable(self) -> _Confirming:
        """Return a channel, opened if need be. Raises: NotPublished, ServerError."""
        current = self._current
        if current is not None and current.channel.lost is None and not current.channel.is_outdated:
            return current
        try:
            return await self._opening.get(self._open)
        except BrokerUnavailable as error:
            raise NotPublished(str(error), hint=error.hint) from error

    def _confirm_in_former(self, message: PublishedMessage) -> asyncio.Future[None] | None:
        """Return the pending confirm of a message that was sent on an outdated channel."""
        former = self._former
        if self._current is not None and self._current.channel.is_outdated:
            former = [*former, self._current]
        found = (each.confirm_of(message) for each in former)
        return next((each for each in found if each is not None), None)

    async def _open(self) -> _Confirming:
        channel = await self._connection.channel()
        async with channel.or_abandoned():
            confirming = _Confirming(channel)
            await channel.call(channel.driver.confirm_delivery, confirming.on_confirm)
            if self._closed:
                raise BrokerUnavailable("the publisher was closed")
        known = self._former if self._current is None else [*self._former, self._current]
        self._former = [each for each in known if each.channel.lost is None]
        self._current = confirming
        return confirming


class _Confirming:
    """A channel in confirm mode, with the unconfirmed messages of this channel alone."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self._unconfirmed = Unconfirmed()
        self._returned: set[int] = set()
        self._last_tag = 0
        channel.when_lost.append(self._unconfirmed.lose)
        channel.driver.add_on_return_callback(self._on_return)
        channel.when_outdated.append(self._end_when_confirmed)

    def confirm_of(self, message: PublishedMessage) -> asyncio.Future[None] | None:
        """Return the pending confirm of a message; None: it does not wait for one."""
        return self._unconfirmed.confirm_of(message)

    def _end_when_confirmed(self) -> None:
        if not self._unconfirmed:
            self.channel.abandon()

    def send(self, exchange: str, message: PublishedMessage) -> asyncio.Future[None]:
        """Send the message, unless it waits for a confirm; return the pending confirm. There is no
        await between the count and the send, because the tag is the server's own count.
        Raises: ServerError."""
        under_way = self.confirm_of(message)
        if under_way is not None:
            return under_way
        self._unconfirmed.check_room(message.routing_key)
        tag = self._last_tag + 1
        properties = pika.BasicProperties(
            content_type="application/json",
            delivery_mode=PERSISTENT,
            message_id=str(message.message_id),
            correlation_id=str(tag),
        )
        try:
            self.channel.driver.basic_publish(
                exchange, message.routing_key, message.body, properties, mandatory=True
            )
        except exceptions.AMQPError as error:
            raise translated(error) from error
        self._last_tag = tag
        return self._unconfirmed.add(tag, message)

    def on_confirm(self, frame: Any) -> None:
        """Called by the driver for each ack or nack."""
        method = frame.method
        tag, error = method.delivery_tag, None
        if not isinstance(method, spec.Basic.Ack):
            error = BrokerUnavailable("RabbitMQ could not store the message")
        returned = {
            each for each in self._returned if each == tag or (method.multiple and each < tag)
        }
        self._returned -= returned
        for each in returned:
            self._unconfirmed.resolve(each, Unroutable(), multiple=False)
        self._unconfirmed.resolve(tag, error, multiple=method.multiple)
        if error is not None and not self.channel.is_outdated:
            # A channel that first publishes to a quorum queue while the node that led the queue is
            # gone refuses all later messages, too (RabbitMQ 3.10); a new channel finds the leader.
            self.channel.outdate()
        elif self.channel.is_outdated:
            self._end_when_confirmed()

    def _on_return(
        self, _: object, __: object, properties: pika.BasicProperties, ___: object
    ) -> None:
        """Called by the driver before the confirm of a message that no queue got."""
        self._returned.add(int(properties.correlation_id or 0))
