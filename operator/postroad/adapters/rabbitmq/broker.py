"""`Broker` over RabbitMQ: publishing, consuming and the topology of one mail queue."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from datetime import timedelta
from uuid import UUID

from postroad.adapters.rabbitmq import topology
from postroad.adapters.rabbitmq.consumer import RabbitMQDelivery, Subscription
from postroad.adapters.rabbitmq.management import Vhost
from postroad.adapters.rabbitmq.publisher import Publisher
from postroad.domain.queues.names import QueueName
from postroad.errors import BrokerUnavailable, NotPublished, ServerError, Unroutable
from postroad.ports.broker import DELAY_SECONDS, Depths
from postroad.telemetry.logs import logger

MAX_WAIT = timedelta(seconds=15)
"""The longest wait before a lost consumer tries again."""

QUIET = timedelta(seconds=1)
"""Time that the dead queue sends nothing before it counts as empty."""

_LOG = logger("rabbitmq")


class RabbitMQ(Vhost):
    """A vhost that makes brokers."""

    def broker(self, queue: QueueName, *, delivery_limit: int = 20) -> RabbitMQBroker:
        """Return the broker of a queue. No I/O."""
        return RabbitMQBroker(self, queue, delivery_limit)


class RabbitMQBroker:
    """The messages of one queue."""

    def __init__(self, vhost: Vhost, queue: QueueName, delivery_limit: int) -> None:
        self._vhost = vhost
        self._queue = queue
        self._topology = topology.topology_of(queue, delivery_limit)
        self._publisher = Publisher(vhost.publishing)
        self._subscriptions: set[Subscription] = set()
        self._closing = asyncio.Event()

    async def publish(self, message_id: UUID, body: bytes, delay_seconds: int = 0) -> None:
        if delay_seconds and delay_seconds not in DELAY_SECONDS:
            raise ValueError(f"{delay_seconds} s is no step of the delay queues")
        if self._closing.is_set():
            raise NotPublished("the broker was closed")
        exchange, key = self._queue.exchange, topology.WORK
        if delay_seconds:
            exchange, key = topology.DELAYS, topology.delay_key(delay_seconds, self._queue)
        await self._publisher.publish(exchange, key, message_id, body)

    async def consume(self, prefetch: int) -> AsyncIterator[RabbitMQDelivery]:
        failures = 0
        while not self._closing.is_set():
            try:
                subscription = await self._subscribe(self._queue.work_queue, prefetch)
            except ServerError as error:
                say = _LOG.warning if failures == 0 else _LOG.debug
                say("cannot consume, trying again", queue=str(self._queue), error=str(error))
                failures += 1
                await self._wait(failures)
                continue
            failures = 0
            silence = asyncio.create_task(subscription.outdate_when_silent())
            try:
                async for delivery in subscription:
                    yield delivery
            finally:
                silence.cancel()
                await subscription.stop()
            if not subscription.is_outdated:
                await self._wait(1)

    async def consume_dead(self, prefetch: int) -> AsyncIterator[RabbitMQDelivery]:
        subscription = await self._subscribe(self._queue.dead_queue, prefetch)
        try:
            while True:
                try:
                    async with asyncio.timeout(QUIET.total_seconds()):
                        delivery = await anext(subscription)
                except TimeoutError:
                    if subscription.holds < prefetch:
                        return
                    continue
                except StopAsyncIteration:
                    if subscription.broken is not None and not self._closing.is_set():
                        raise BrokerUnavailable("lost the dead queue") from subscription.broken
                    return
                yield delivery
        finally:
            await subscription.stop()

    async def depths(self) -> Depths:
        dead, work = await self._counts(self._topology)
        delays = await self._counts(topology.SHARED)
        leased = [0, 0]
        management = self._vhost.management
        if management is not None:
            leased = [await management.unacknowledged(each.name) for each in self._topology.queues]
        return Depths(
            work=work.ready + leased[1],
            delayed=sum(each.ready for each in delays[1:]),
            dead=dead.ready + leased[0],
            consumers=work.consumers,
            leased=None if management is None else sum(leased),
        )

    async def ready(self) -> int:
        (work,) = await self._counts(topology.Topology((), self._topology.queues[1:]))
        return work.ready

    async def exists(self) -> bool:
        try:
            await self._vhost.administer(topology.count, self._topology)
        except Unroutable:
            return False
        return True

    async def _counts(self, wanted: topology.Topology) -> list[topology.Count]:
        """Count the queues of a topology, in its order. Raises: ServerError."""
        try:
            return await self._vhost.administer(topology.count, wanted)
        except Unroutable as error:
            raise BrokerUnavailable(str(error), hint=error.hint) from error

    async def declare(self, *, first: bool = False) -> None:
        await self._vhost.declare_delays()
        try:
            await self._vhost.administer(topology.declare, self._topology)
        except Unroutable:  # a RabbitMQ that lost its volume has no exchange of due messages
            self._vhost.forget_delays()
            await self._vhost.declare_delays()
            await self._vhost.administer(topology.declare, self._topology)
        if not first:
            await self._vhost.replicate(self._topology)

    async def delete(self) -> None:
        await self._vhost.administer(topology.delete, self._topology)

    async def close(self) -> None:
        self._closing.set()
        await asyncio.gather(*(each.close() for each in self._subscriptions))
        self._subscriptions.clear()
        await self._publisher.close()

    async def _subscribe(self, queue: str, prefetch: int) -> Subscription:
        subscription = await Subscription.start(self._vhost.consuming, queue, prefetch)
        self._subscriptions = {each for each in self._subscriptions if each.lost is None}
        self._subscriptions.add(subscription)
        return subscription

    async def _wait(self, failures: int) -> None:
        """Wait before the next attempt: longer each time, with jitter, and at most until the broker
        is closed."""
        try:
            async with asyncio.timeout(longest_wait(failures) * random.uniform(0.5, 1.0)):
                await self._closing.wait()
        except TimeoutError:
            pass


def longest_wait(failures: int) -> float:
    """Return how many seconds at most a consumer waits after so many failures in a row.

    >>> [longest_wait(failures) for failures in (0, 1, 3, 6, 10**6)]
    [0.25, 0.5, 2.0, 15.0, 15.0]
    """
    return min(MAX_WAIT.total_seconds(), 0.25 * 2.0 ** min(failures, 10))
