"""A vhost of RabbitMQ: the connections of a process, and the delay queues of all mail queues."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

from postroad.adapters.rabbitmq import topology
from postroad.adapters.rabbitmq.access import Access
from postroad.adapters.rabbitmq.connection import Channel, RabbitMQConnection
from postroad.adapters.rabbitmq.kept_channels import KeptChannels
from postroad.adapters.rabbitmq.management import Management
from postroad.batching import Shared
from postroad.domain.servers.replicas import QuorumQueue, members_to_add
from postroad.errors import ServerError
from postroad.ports.servers import SAFE_COPIES, Guard
from postroad.telemetry.logs import logger

DECLARED = timedelta(minutes=1)
"""How long the shared delay queues are not declared again: it takes 51 requests, and a process may
declare a thousand mail queues."""

SURVEYED = timedelta(minutes=2)
"""How long a survey stands for questions about single queues. The checks of a QueueCluster make one
each minute, and an operator that starts declares all its queues."""

_LOG = logger("rabbitmq")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Survey:
    """The running nodes, and the quorum queues of the vhost by name, at a moment of the loop."""

    at: float
    running: Sequence[str]
    queues: Mapping[str, QuorumQueue]


class Vhost:
    """The connections that all queues of a process share: one to publish and administer, one to
    consume, because a server that blocks publishers must still read acks. `guard` is asked before
    anything is sent."""

    def __init__(self, access: Access, guard: Guard | None = None) -> None:
        self.name = access.vhost
        self.publishing = RabbitMQConnection(access, "publisher", guard)
        self.consuming = RabbitMQConnection(access, "consumer", guard)
        self._channels = KeptChannels(self.publishing)
        self.management = Management(access, guard) if access.management_url else None
        self._declared_at: float | None = None
        self._declaring: Shared[None] = Shared()
        self._last_survey: Survey | None = None

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
        """Run an action on a channel that no other one uses meanwhile (see `KeptChannels`)."""
        return await self._channels.lend(lambda channel: action(channel, wanted))

    async def survey(self, management: Management) -> Survey:
        """Ask for the nodes and all quorum queues, and keep the answer. Raises: ServerError."""
        running, queues = await management.nodes(), await management.quorum_queues()
        now = asyncio.get_running_loop().time()
        self._last_survey = Survey(now, running, {each.name: each for each in queues})
        return self._last_survey

    async def replicate(self, wanted: topology.Topology) -> None:
        """Add copies of queues on nodes that joined after they were declared. Best effort: the
        API of RabbitMQ 3 cannot, and a condition of the QueueCluster shows missing copies."""
        management = self.management
        if management is None:
            return
        known = self._fresh_survey()
        surveyed = {} if known is None else known.queues
        try:
            names = [each.name for each in wanted.queues]
            found = [surveyed.get(name) or await management.quorum_queue(name) for name in names]
            lacking = [each for each in found if each and len(each.members) < SAFE_COPIES]
            if not lacking:
                return
            running = await management.nodes() if known is None else known.running
            for queue in lacking:
                for node in members_to_add(queue, running, SAFE_COPIES):
                    self._last_survey = None
                    await management.add_member(queue.name, node)
                    _LOG.info("a copy of a queue was added", queue=queue.name, node=node)
        except ServerError as error:
            _LOG.debug("copies of queues could not be added", error=str(error))

    def _fresh_survey(self) -> Survey | None:
        """Return the last survey, unless it is old, or what it shows was changed."""
        known, now = self._last_survey, asyncio.get_running_loop().time()
        if known is None or now - known.at > SURVEYED.total_seconds():
            return None
        return known

    async def close(self) -> None:
        """Close the connections. Idempotent."""
        await asyncio.gather(self.publishing.close(), self.consuming.close())
        if self.management is not None:
            await self.management.close()
