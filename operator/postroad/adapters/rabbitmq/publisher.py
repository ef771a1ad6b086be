"""Publishes messages with confirms.

Each publish waits for its own confirm. The server syncs many messages at once, so publishes in
flight at the same time share a sync. Source: 000 Decision; ADR 0011.

The messages of one channel that RabbitMQ has not confirmed.

RabbitMQ neither confirms nor refuses messages for a queue without a quorum: it keeps them, and
enqueues them when the quorum is back, though the publisher's timeout is over. So each message stays
here until its confirm or the loss of the channel; a repetition waits for the same confirm instead
of being sent; and beyond a limit, the publisher sends that queue no more.

Channels for requests that are awaited, kept for the next ones.

To open and close a channel takes two round trips, and RabbitMQ a process: as much as to declare an
exchange."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar
from uuid import UUID

import pika
from pika import exceptions, spec

from postroad.adapters.rabbitmq.connection import Channel, RabbitMQConnection
from postroad.adapters.rabbitmq.translation import translated
from postroad.batching import Shared
from postroad.errors import BrokerUnavailable, ExchangeGone, NotPublished, ServerError, Unroutable

MAX_UNCONFIRMED = 4096
"""Unconfirmed messages with one routing key: many times those in flight with a healthy queue, and a
few megabytes of the driver's memory."""

MAX_BYTES = 64 * 2**20
"""Bound on the size of their bodies: as many messages with the largest envelopes."""


@dataclass(frozen=True, slots=True)
class PublishedMessage:
    """A published message. Two equal ones are one, published twice."""

    routing_key: str
    message_id: UUID
    body: bytes


class Totals:
    """Numbers of unconfirmed messages and of their bytes, by routing key: of all channels of a
    publisher, since those that are outdated keep theirs while another one follows."""

    def __init__(self) -> None:
        self.count: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()


class Unconfirmed:
    """Unconfirmed messages of one channel, by delivery tag and by message."""

    def __init__(self, totals: Totals | None = None) -> None:
        totals = totals or Totals()
        self._messages: dict[int, PublishedMessage] = {}
        self._confirms: dict[PublishedMessage, asyncio.Future[None]] = {}
        self._count, self._bytes = totals.count, totals.bytes

    def __len__(self) -> int:
        return len(self._messages)

    def confirm_of(self, message: PublishedMessage) -> asyncio.Future[None] | None:
        """Return the pending confirm of a message; None: it is not among them."""
        return self._confirms.get(message)

    def check_room(self, routing_key: str) -> None:
        """Raises: NotPublished at the limits of a routing key."""
        count, size = self._count[routing_key], self._bytes[routing_key]
        if count >= MAX_UNCONFIRMED or size >= MAX_BYTES:
            raise NotPublished(
                f"RabbitMQ has not confirmed {count} messages ({size} bytes) for {routing_key}",
                hint="see whether a majority of the queue's nodes runs: rabbitmq-queues"
                " quorum_status QUEUE",
            )

    def add(self, tag: int, message: PublishedMessage) -> asyncio.Future[None]:
        """Note a message as sent; return its pending confirm."""
        confirm: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        confirm.add_done_callback(_seen)
        self._messages[tag] = message
        self._confirms[message] = confirm
        self._count[message.routing_key] += 1
        self._bytes[message.routing_key] += len(message.body)
        return confirm

    def resolve(self, tag: int, error: ServerError | None, *, multiple: bool) -> None:
        """Resolve the confirm of a message; `multiple`: of all up to this tag."""
        if multiple:
            tags = []
            for each in self._messages:  # in the order of tags
                if each > tag:
                    break
                tags.append(each)
        else:
            tags = [tag]
        for each in tags:
            self._resolve(each, error)

    def lose(self, error: ServerError) -> None:
        """Fail all confirms, because the channel is lost: whether the queues have the messages is
        unknown. Where an exchange is missing, they cannot have the last one: RabbitMQ closes the
        channel at the first message for the exchange."""
        for tag in list(self._messages):
            is_unsent = isinstance(error, Unroutable) and len(self) == 1
            self._resolve(tag, Unroutable(str(error)) if is_unsent else _unknown(error))

    def _resolve(self, tag: int, error: ServerError | None) -> None:
        message = self._messages.pop(tag, None)
        if message is None:
            return
        self._count[message.routing_key] -= 1
        self._bytes[message.routing_key] -= len(message.body)
        confirm = self._confirms.pop(message)
        if error is None:
            confirm.set_result(None)
        else:
            confirm.set_exception(error)


def _seen(confirm: asyncio.Future[None]) -> None:
    confirm.exception()  # read here, because asyncio logs an error that no publish reads


def _unknown(error: ServerError) -> ServerError:
    """Return an error that leaves open whether a queue has the message."""
    if isinstance(error, Unroutable):
        return ExchangeGone(str(error))
    return BrokerUnavailable(f"the channel was lost before the confirm: {error}")


CONFIRM_DEADLINE = timedelta(seconds=10)
"""Time that a publish may take, connecting included. A queue without a quorum never confirms."""

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
        self._totals = Totals()
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
            confirming = _Confirming(channel, self._totals)
            await channel.call(channel.driver.confirm_delivery, confirming.on_confirm)
            if self._closed:
                raise BrokerUnavailable("the publisher was closed")
        known = self._former if self._current is None else [*self._former, self._current]
        self._former = [each for each in known if each.channel.lost is None]
        self._current = confirming
        return confirming


class _Confirming:
    """A channel in confirm mode, with the unconfirmed messages of this channel alone."""

    def __init__(self, channel: Channel, totals: Totals | None = None) -> None:
        self.channel = channel
        self._unconfirmed = Unconfirmed(totals)
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


KEPT = 8
"""Channels that wait for their next use, at most."""

T = TypeVar("T")


class KeptChannels:
    """Lends channels of a connection. One that a request failed on is closed, since a refusal
    closes it anyway, and an answer that came too late would be taken for that of the next request.
    """

    def __init__(self, connection: RabbitMQConnection) -> None:
        self._connection = connection
        self._idle: list[Channel] = []

    async def lend(self, action: Callable[[Channel], Awaitable[T]]) -> T:
        """Run an action on a channel that no other one uses meanwhile. Raises: ServerError."""
        channel = self._idle.pop() if self._idle else await self._opened()
        is_done = False
        try:
            result = await action(channel)
            is_done = True
        finally:
            if is_done and self._may_keep(channel):
                self._idle.append(channel)
            else:
                await channel.close()
        return result

    def _may_keep(self, channel: Channel) -> bool:
        is_good = channel.lost is None and not channel.is_outdated
        return is_good and len(self._idle) < KEPT

    async def _opened(self) -> Channel:
        channel = await self._connection.channel()
        channel.when_lost.append(lambda _: self._forget(channel))
        channel.when_outdated.append(lambda: self._let_go(channel))
        return channel

    def _forget(self, channel: Channel) -> None:
        if channel in self._idle:
            self._idle.remove(channel)

    def _let_go(self, channel: Channel) -> None:
        """Close an idle channel whose connection is outdated, and ends with its last channel."""
        if channel in self._idle:
            self._idle.remove(channel)
            channel.abandon()
