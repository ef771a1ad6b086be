"""A vhost of RabbitMQ: the connections of a process, and the delay queues of all mail queues."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeVar

from postroad.adapters.rabbitmq import topology
from postroad.adapters.rabbitmq.access import Access
from postroad.adapters.rabbitmq.connection import Channel, RabbitMQConnection
from postroad.adapters.rabbitmq.management import Management
from postroad.batching import Shared
from postroad.domain.replicas import members_to_add
from postroad.errors import ServerError
from postroad.ports.servers import SAFE_COPIES, Guard
from postroad.telemetry.logs import logger

DECLARED = timedelta(minutes=1)
"""How long the shared delay queues are not declared again: it takes 51 requests, and a process may
declare a thousand mail queues."""

_LOG = logger("rabbitmq")
T = TypeVar("T")


class Vhost:
    """The connections that all queues of a process share: one to publish and administer, one to
    consume, because a server that blocks publishers must still read acks. `guard` is asked before
    anything is sent."""

    def __init__(self, access: Access, guard: Guard | None = None) -> None:
        self.name = access.vhost
        self.publishing = RabbitMQConnection(access, "publisher", guard)
        self.consuming = RabbitMQConnection(access, "consumer", guard)
        self.management = Management(access, guard) if access.management_url else None
        self._declared_at: float | None = None
        self._declaring: Shared[None] = Shared()

    async def check(self) -> str:
        """Return the server's version. Raises: ServerError."""
        return await self.publishing.version()

    async def declare_delays(self) -> None:
        """Create what is missing of the shared delay queues, unless this process did so within
        `DECLARED`. Concurrent callers share one attempt. Raises: ServerError."""
        now = asyncio.get_running_loop().time()
        if self._declared_at is None or now - self._declared_at > DECLARED.total_seconds():
            await self._declaring.get(self._declare_delays)

    def forget_delays(self) -> None:
        """Declare the shared delay queues again the next time."""
        self._declared_at = None

    async def _declare_delays(self) -> None:
        await self.administer(topology.declare, topology.SHARED)
        await self.replicate(topology.SHARED)
        self._declared_at = asyncio.get_running_loop().time()

    async def administer(
        self,
        action: Callable[[Channel, topology.Topology], Awaitable[T]],
        wanted: topology.Topology,
    ) -> T:
        """Run an action on a channel of its own, because a refusal closes the channel."""
        channel = await self.publishing.channel()
        try:
            return await action(channel, wanted)
        finally:
            await channel.close()

    async def replicate(self, wanted: topology.Topology) -> None:
        """Add copies of queues on nodes that joined after they were declared. Best effort: the
        API of RabbitMQ 3 cannot, and a condition of the QueueCluster shows missing copies."""
        if self.management is None:
            return
        try:
            names = [each.name for each in wanted.queues]
            queues = [each for name in names if (each := await self.management.quorum_queue(name))]
            if all(len(each.members) >= SAFE_COPIES for each in queues):
                return
            running = await self.management.nodes()
            for queue in queues:
                for node in members_to_add(queue, running, SAFE_COPIES):
                    await self.management.add_member(queue.name, node)
                    _LOG.info("a copy of a queue was added", queue=queue.name, node=node)
        except ServerError as error:
            _LOG.debug("copies of queues could not be added", error=str(error))

    async def close(self) -> None:
        """Close the connections. Idempotent."""
        await asyncio.gather(self.publishing.close(), self.consuming.close())
        if self.management is not None:
            await self.management.close()
