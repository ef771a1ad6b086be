"""Publishing with confirms that many publishes share.

Each publish waits for its own confirm, but the server confirms what it synced together, so that
publishes in flight at the same time cost one sync. Source: 000 Decision; ADR 0011.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID

import pika
from pika import exceptions, spec

from postroad.adapters.rabbitmq.connection import Channel, Connection, Shared
from postroad.adapters.rabbitmq.translation import translated
from postroad.errors import BrokerUnavailable, ServerError, Unroutable

CONFIRM_DEADLINE = timedelta(seconds=10)
"""How long a publish may take, connecting included. A quorum that is not there never answers."""

PERSISTENT = 2


class Publisher:
    """Publishes to one exchange, over one channel, which is opened again when it was lost. An
    exchange that does not exist closes the channel, so exchanges do not share one."""

    def __init__(self, connection: Connection, exchange: str) -> None:
        self._connection = connection
        self._exchange = exchange
        self._opening: Shared[_Confirming] = Shared()
        self._current: _Confirming | None = None
        self._closed = False

    async def publish(self, routing_key: str, message_id: UUID, body: bytes) -> None:
        """Return when the message is confirmed. Raises: ServerError."""
        try:
            async with asyncio.timeout(CONFIRM_DEADLINE.total_seconds()):
                current = self._current
                if current is None or current.channel.lost is not None:
                    current = await self._opening.get(self._open)
                await current.send(self._exchange, routing_key, message_id, body)
        except TimeoutError as error:
            raise BrokerUnavailable("RabbitMQ did not confirm in time") from error

    async def close(self) -> None:
        """Close the channel. Idempotent."""
        self._closed = True
        if self._current is not None:
            await self._current.channel.close()

    async def _open(self) -> _Confirming:
        channel = await self._connection.channel()
        async with channel.or_abandoned():
            confirming = _Confirming(channel)
            await channel.call(channel.driver.confirm_delivery, confirming.on_confirm)
            if self._closed:
                raise BrokerUnavailable("the publisher was closed")
        self._current = confirming
        return confirming


class _Confirming:
    """A channel in confirm mode, and the publishes on it that wait for their confirms. Whatever
    becomes of an earlier channel of the publisher is nothing to this one's."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self._confirms: dict[int, asyncio.Future[None]] = {}
        self._returned: set[int] = set()
        self._last_tag = 0
        channel.when_lost.append(self._on_lost)
        channel.driver.add_on_return_callback(self._on_return)

    def send(
        self, exchange: str, routing_key: str, message_id: UUID, body: bytes
    ) -> asyncio.Future[None]:
        """Send and return the confirm to come. No await between counting and sending: the tag is
        the server's own count."""
        tag = self._last_tag + 1
        properties = pika.BasicProperties(
            content_type="application/json",
            delivery_mode=PERSISTENT,
            message_id=str(message_id),
            correlation_id=str(tag),
        )
        try:
            self.channel.driver.basic_publish(
                exchange, routing_key, body, properties, mandatory=True
            )
        except exceptions.AMQPError as error:
            raise translated(error) from error
        self._last_tag = tag
        confirm: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._confirms[tag] = confirm
        return confirm

    def on_confirm(self, frame: Any) -> None:
        """Called by the driver for each ack or nack."""
        method = frame.method
        is_ack = isinstance(method, spec.Basic.Ack)
        if not method.multiple:
            self._settle(method.delivery_tag, is_ack)
            return
        confirmed = []
        for tag in self._confirms:  # in the order of tags
            if tag > method.delivery_tag:
                break
            confirmed.append(tag)
        for tag in confirmed:
            self._settle(tag, is_ack)

    def _on_return(
        self, _: object, __: object, properties: pika.BasicProperties, ___: object
    ) -> None:
        """What cannot be routed comes back before it is confirmed."""
        self._returned.add(int(properties.correlation_id or 0))

    def _settle(self, tag: int, is_ack: bool) -> None:
        confirm = self._confirms.pop(tag, None)
        was_returned = tag in self._returned
        self._returned.discard(tag)
        if confirm is None or confirm.done():
            return  # its publisher gave up
        if was_returned:
            confirm.set_exception(Unroutable())
        elif is_ack:
            confirm.set_result(None)
        else:
            confirm.set_exception(BrokerUnavailable("RabbitMQ could not take the message"))

    def _on_lost(self, error: ServerError) -> None:
        """Whether these messages exist is unknown."""
        confirms, self._confirms = self._confirms, {}
        for confirm in confirms.values():
            if not confirm.done():
                confirm.set_exception(_unconfirmed(error))


def _unconfirmed(error: ServerError) -> ServerError:
    """A missing exchange is as good as unroutable; otherwise whoever closed the channel for what
    somebody else sent has left open what became of this message."""
    if isinstance(error, Unroutable):
        return Unroutable(str(error))
    return BrokerUnavailable(f"the channel was lost before the confirm: {error}")
