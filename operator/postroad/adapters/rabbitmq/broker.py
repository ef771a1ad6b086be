"""`Broker` over RabbitMQ: publishing, consuming and the topology of one mail queue."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from uuid import UUID

from postroad.adapters.rabbitmq import topology
from postroad.adapters.rabbitmq.access import Access
from postroad.adapters.rabbitmq.connection import Channel, Connection
from postroad.adapters.rabbitmq.consumer import RabbitMQDelivery, Subscription
from postroad.adapters.rabbitmq.management import Management
from postroad.adapters.rabbitmq.publisher import Publisher
from postroad.domain.names import QueueName
from postroad.domain.replicas import members_to_add
from postroad.errors import BrokerUnavailable, ServerError, Unroutable
from postroad.ports.broker import DELAY_SECONDS, Depths
from postroad.ports.servers import SAFE_COPIES
from postroad.telemetry.logs import logger

LONGEST_WAIT = timedelta(seconds=15)
"""The longest wait before a lost consumer tries again."""

QUIET = timedelta(seconds=1)
"""How long the dead queue sends nothing before it counts as empty."""

_LOG = logger("rabbitmq")


class RabbitMQ:
    """The connections that all queues of a process share: one to publish and administer, one to
    consume, because a server that blocks publishers must still read acks."""

    def __init__(self, access: Access) -> None:
        self.vhost = access.vhost
        self.publishing = Connection(access, "publisher")
        self.consuming = Connection(access, "consumer")
        self.management = Management(access) if access.management_url else None

    def broker(self, queue: QueueName, *, delivery_limit: int = 20) -> RabbitMQBroker:
        """Return the broker of a queue. No I/O."""
        return RabbitMQBroker(self, queue, delivery_limit)

    async def check(self) -> str:
        """Return the server's version. Raises: ServerError."""
        return await self.publishing.version()

    async def close(self) -> None:
        """Close the connections. Idempotent."""
        await asyncio.gather(self.publishing.close(), self.consuming.close())
        if self.management is not None:
            await self.management.close()


class RabbitMQBroker:
    """The messages of one queue."""

    def __init__(self, server: RabbitMQ, queue: QueueName, delivery_limit: int) -> None:
        self._server = server
        self._queue = queue
        self._topology = topology.topology_of(queue, delivery_limit)
        self._publisher = Publisher(server.publishing, queue.exchange)
        self._subscriptions: set[Subscription] = set()
        self._closing = asyncio.Event()

    async def publish(self, message_id: UUID, body: bytes, delay_seconds: int = 0) -> None:
        if delay_seconds and delay_seconds not in DELAY_SECONDS:
            raise ValueError(f"{delay_seconds} s is no step of the delay queues")
        if self._closing.is_set():
            raise BrokerUnavailable("the broker was closed")
        key = topology.delay_key(delay_seconds) if delay_seconds else topology.WORK
        await self._publisher.publish(key, message_id, body)

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
            try:
                async for delivery in subscription:
                    yield delivery
            finally:
                await subscription.stop()
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
        ready = {}
        consumers = 0
        channel = await self._server.publishing.channel()
        try:
            for queue in self._topology.queues:
                found = await channel.call(
                    channel.driver.queue_declare, queue.name, passive=True, durable=True
                )
                ready[queue.name] = found.message_count
                consumers += found.consumer_count if queue.routing_key == topology.WORK else 0
        except Unroutable as error:
            raise BrokerUnavailable(str(error), hint=error.hint) from error
        finally:
            await channel.close()
        names = (self._queue.work_queue, self._queue.dead_queue)
        work, dead = (ready.pop(name) for name in names)
        management = self._server.management
        if management is not None:
            leased = [await management.unacknowledged(name) for name in names]
            work, dead = work + leased[0], dead + leased[1]
        return Depths(
            work=work,
            delayed=sum(ready.values()),
            dead=dead,
            consumers=consumers,
            leased_included=management is not None,
        )

    async def exists(self) -> bool:
        channel = await self._server.publishing.channel()
        try:
            for name in (self._queue.work_queue, self._queue.dead_queue):
                await channel.call(channel.driver.queue_declare, name, passive=True, durable=True)
        except Unroutable:
            return False
        finally:
            await channel.close()
        return True

    async def declare(self) -> None:
        await self._administer(topology.declare)
        await self._replicate()

    async def delete(self) -> None:
        await self._administer(topology.delete)

    async def close(self) -> None:
        self._closing.set()
        await asyncio.gather(*(each.close() for each in self._subscriptions))
        self._subscriptions.clear()
        await self._publisher.close()

    async def _subscribe(self, queue: str, prefetch: int) -> Subscription:
        subscription = await Subscription.start(self._server.consuming, queue, prefetch)
        self._subscriptions = {each for each in self._subscriptions if each.lost is None}
        self._subscriptions.add(subscription)
        return subscription

    async def _administer(
        self, action: Callable[[Channel, topology.Topology], Awaitable[None]]
    ) -> None:
        """Run an action on a channel of its own, because a refusal closes the channel."""
        channel = await self._server.publishing.channel()
        try:
            await action(channel, self._topology)
        finally:
            await channel.close()

    async def _replicate(self) -> None:
        """Add copies of the queues on nodes that joined after they were declared. Best effort: the
        API of RabbitMQ 3 cannot, and a condition of the QueueCluster shows missing copies."""
        management = self._server.management
        if management is None:
            return
        try:
            ours = {each.name for each in self._topology.queues}
            queues = [each for each in await management.quorum_queues() if each.name in ours]
            if all(len(each.members) >= SAFE_COPIES for each in queues):
                return
            running = await management.nodes()
            for queue in queues:
                for node in members_to_add(queue, running, SAFE_COPIES):
                    await management.add_member(queue.name, node)
                    _LOG.info("a copy of a queue was added", queue=queue.name, node=node)
        except ServerError as error:
            _LOG.debug("copies of queues could not be added", error=str(error))

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
    return min(LONGEST_WAIT.total_seconds(), 0.25 * 2.0 ** min(failures, 10))
