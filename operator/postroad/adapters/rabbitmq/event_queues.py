"""Events that wait in a queue of RabbitMQ for each stream, which the operator declares; without an
operator, the first process.

The queue has a single active consumer, so that events of a mail are sent in their order, and other
workers take over from one that is gone. It goes after so long without a consumer: with a stream
that is no longer declared, or with its mail queue. Source: ADR 0089."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterable, Sequence
from datetime import timedelta
from uuid import UUID

from postroad.adapters.rabbitmq import topology
from postroad.adapters.rabbitmq.consumer import RabbitMQDelivery, Subscription
from postroad.adapters.rabbitmq.management import Vhost
from postroad.adapters.rabbitmq.publisher import Publisher
from postroad.domain.delivery.events import StreamEvent
from postroad.domain.queues.names import QueueName
from postroad.errors import BrokerRefused, ServerError, StreamRefused, Unroutable
from postroad.ports.events import MAX_BATCH, SinkReply, SinkVerdict, WaitingEvent

UNUSED = timedelta(days=14)
MAX_QUEUE_BYTES = 512 * 2**20
"""A bound for the broker's disk where no worker runs that could count what it drops."""

MOMENT_SECONDS = 0.02
"""Time that a batch waits for more events."""


class RabbitMQEventSpool:
    """`ports.events.EventSpool` of one mail queue."""

    def __init__(self, vhost: Vhost, queue: QueueName) -> None:
        self._vhost, self._queue = vhost, queue
        self._publisher = Publisher(vhost.publishing)
        self._declared: set[str] = set()

    async def declare(self, streams: Iterable[str]) -> None:
        """Declare the queues of streams. Raises: ServerError."""
        for each in streams:
            await self._vhost.administer(topology.declare, self._topology(each))

    async def _find(self, stream: str) -> None:
        """Bind the queue of a stream; declare it where it is missing, which users of one mail queue
        may not. Raises: StreamRefused, ServerError."""
        try:
            try:
                await self._vhost.administer(topology.bind, self._topology(stream))
            except Unroutable:
                await self.declare([stream])
        except BrokerRefused as error:
            await self._vhost.administer(topology.bind, topology.NOTHING)  # it may refuse us all
            raise StreamRefused(stream, str(error)) from error

    async def append(self, events: Sequence[StreamEvent]) -> None:
        for stream in {each for each, _, _ in events} - self._declared:
            await self._find(stream)
            self._declared.add(stream)
        publishing = (self._publish(*each) for each in events)  # sent in this order
        for result in await asyncio.gather(*publishing, return_exceptions=True):
            if isinstance(result, Unroutable):  # the queue was unused for too long
                self._declared.clear()
            if isinstance(result, BaseException):
                raise result

    async def _publish(self, stream: str, event_id: UUID, body: bytes) -> None:
        await self._publisher.publish(self._queue.exchange, _key(stream), event_id, body)

    async def batches(self, stream: str) -> AsyncGenerator[Sequence[WaitingEvent], None]:
        await self._find(stream)
        (queue,) = self._topology(stream).queues
        subscription = await Subscription.start(self._vhost.consuming, queue.name, MAX_BATCH)
        try:
            while batch := await _next(subscription):
                yield [WaitingEvent(each.body, each.ack) for each in batch]
        finally:
            await subscription.close()

    def exchange(self, name: str) -> EventExchange:
        return EventExchange(Publisher(self._vhost.publishing), name, self._queue)

    async def is_beyond(self, stream: str, most: int) -> bool:
        try:
            (found,) = await self._vhost.administer(topology.count, self._topology(stream))
        except Unroutable:  # its first event declares it
            return False
        return found.ready > most

    def _topology(self, stream: str) -> topology.Topology:
        queue = topology.DeclaredQueue(
            f"{self._queue.exchange}.{_key(stream)}",
            (topology.Binding(self._queue.exchange, _key(stream)),),
            {
                "x-queue-type": "quorum",
                "x-single-active-consumer": True,
                "x-delivery-limit": topology.NEVER,
                "x-max-length-bytes": MAX_QUEUE_BYTES,
                "x-expires": round(UNUSED.total_seconds() * 1000),
            },
        )
        return topology.Topology((), (queue,))


class EventExchange:
    """`ports.events.EventSink`: an exchange of the vhost, with routing keys NAMESPACE.NAME.TYPE. It
    is the administrator's, and so are the queues behind it: an event that none gets waits."""

    def __init__(self, publisher: Publisher, exchange: str, queue: QueueName) -> None:
        self._publisher, self._exchange, self._queue = publisher, exchange, queue

    async def send(self, event_id: str, body: bytes) -> SinkReply:
        key = f"{self._queue}.{json.loads(body)['type']}"
        try:
            await self._publisher.publish(self._exchange, key, UUID(event_id), body)
        except ServerError as error:
            return SinkReply(SinkVerdict.LATER, type(error).__name__)
        return SinkReply(SinkVerdict.TAKEN)

    async def close(self) -> None:
        await self._publisher.close()


def _key(stream: str) -> str:
    return f"events.{stream}"


async def _next(subscription: Subscription) -> list[RabbitMQDelivery]:
    """Return what there is, at least one; nothing where the subscription has ended."""
    found: list[RabbitMQDelivery] = []
    try:
        found.append(await anext(subscription))
        async with asyncio.timeout(MOMENT_SECONDS):
            while len(found) < MAX_BATCH:
                found.append(await anext(subscription))
    except (StopAsyncIteration, TimeoutError):
        pass
    return found
