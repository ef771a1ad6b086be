"""Moves messages from one queue to another in one transaction, for queues that another system's
consumers read too.

RabbitMQ carries a commit out as a whole: a client that is killed before leaves each message in its
first queue, one that is killed afterwards in the second. A broker that ends amid a commit may do
one half, so the caller needs another record of the messages. Source: RabbitMQ, Broker Semantics."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pika

from postroad.adapters.rabbitmq.connection import Access, Channel, RabbitMQConnection, resolve
from postroad.errors import ServerError, Unroutable


@dataclass(frozen=True, slots=True)
class HeldMessage:
    """A message that this process holds: acked, it is gone with the next commit."""

    tag: int
    properties: pika.BasicProperties
    body: bytes


class QueueDepth(NamedTuple):
    """Messages that are ready, and consumers."""

    messages: int
    consumers: int


class Transfers:
    """Messages on one channel with transactions."""

    def __init__(self, access: Access) -> None:
        self._connection = RabbitMQConnection(access, "transfers")
        self._channel: Channel | None = None
        self._getting: asyncio.Future[HeldMessage | None] | None = None

    async def declare(self, queue: str, *, passive: bool = False) -> QueueDepth | None:
        """Declare a durable queue, or only look at one; return what it has, None: there is none.
        Idempotent. Raises: ServerError."""
        channel = await self._connection.channel()
        declare = channel.driver.queue_declare
        try:
            found = await channel.call(declare, queue, durable=not passive, passive=passive)
        except Unroutable:
            return None
        await channel.close()
        return QueueDepth(found.message_count, found.consumer_count)

    async def get(self, queue: str, limit: int) -> list[HeldMessage]:
        """Hold messages, as many as are ready and up to a limit. Raises: ServerError."""
        channel = await self._opened()
        messages: list[HeldMessage] = []
        while len(messages) < limit:
            self._getting = answer = asyncio.get_running_loop().create_future()
            await channel.send(channel.driver.basic_get, queue, self._on_message)
            message = await answer
            if message is None:
                break
            messages.append(message)
        return messages

    async def move(self, messages: Sequence[HeldMessage], queue: str) -> None:
        """Put messages that are held into another queue, and ack them, in one transaction. Raises:
        ServerError."""
        channel = await self._opened()
        for each in messages:
            await channel.send(channel.driver.basic_publish, "", queue, each.body, each.properties)
        await self.ack(messages)

    async def ack(self, messages: Sequence[HeldMessage]) -> None:
        """Ack messages that are held. Durable when it returns. Raises: ServerError."""
        channel = await self._opened()
        for each in messages:
            await channel.send(channel.driver.basic_ack, each.tag)
        await channel.call(channel.driver.tx_commit)

    async def close(self) -> None:
        """Give back what is held. Idempotent."""
        await self._connection.close()

    async def _opened(self) -> Channel:
        """Open the channel once: messages that it holds go back when it is lost, so another one
        could not ack them."""
        if self._channel is None:
            self._channel = channel = await self._connection.channel()
            channel.when_lost.append(self._on_lost)
            channel.driver.add_callback(self._on_empty, [pika.spec.Basic.GetEmpty], one_shot=False)
            await channel.call(channel.driver.tx_select)
        if self._channel.lost is not None:
            raise self._channel.lost
        return self._channel

    def _on_message(self, _: object, method: Any, properties: Any, body: bytes) -> None:
        if self._getting is not None and not self._getting.done():
            self._getting.set_result(HeldMessage(method.delivery_tag, properties, body))

    def _on_empty(self, _: object) -> None:
        if self._getting is not None:
            resolve(self._getting)

    def _on_lost(self, error: ServerError) -> None:
        if self._getting is not None:
            resolve(self._getting, error)
