"""The distributed engine over the running servers, with a clock, a timing and slices of the
test's own: what an operator or `open_queue` would otherwise settle."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from postroad.adapters.clocks import MachineClock, SystemRandomness
from postroad.adapters.memory.servers import FixedConfiguration
from postroad.bootstrap.cluster import connect
from postroad.distributed.engine.engine import Parts
from postroad.distributed.engine.timing import Timing
from postroad.distributed.mail_queue import DistributedQueue
from postroad.domain.configuration.rules import ViewConfiguration
from postroad.domain.queues.names import QueueName
from postroad.ports.broker import Broker
from postroad.ports.servers import Servers
from postroad.ports.view import View
from postroad.settings import Settings, from_environment


class SkewedClock(MachineClock):
    """A machine's clock whose date is wrong."""

    def __init__(self, skew: timedelta = timedelta(0)) -> None:
        self._skew = skew

    def now(self) -> datetime:
        return super().now() + self._skew


@dataclass(frozen=True)
class RealQueue:
    """One queue of the running servers. Every handle has connections of its own, as processes
    have. `keyspace` has the tables."""

    name: QueueName
    keyspace: str
    window: timedelta
    timing: Timing
    buckets: int = 2

    async def open(
        self, skew: timedelta = timedelta(0), *, create: bool = False
    ) -> DistributedQueue:
        """Return a new handle, in a process whose clock is wrong by `skew`."""
        servers = self.servers()
        parts = Parts(
            name=self.name,
            broker=servers.broker(self.name),
            view=self.view(servers),
            blobs=servers.blobs(self.bucket),
            configuration=FixedConfiguration(
                ViewConfiguration(self.window, self.buckets, update_browse_start_pace=10**9)
            ),
            clock=SkewedClock(skew),
            randomness=SystemRandomness(),
            timing=self.timing,
            owned=(servers,),
        )
        return await DistributedQueue.open(parts, create_missing=create)

    @property
    def bucket(self) -> str:
        return self.name.bucket("postroad-")

    def servers(self) -> Servers:
        """Return new connections to the servers."""
        given: Settings = from_environment()
        cassandra = given.cassandra.model_copy(update={"keyspace": self.keyspace})
        return connect(given.model_copy(update={"cassandra": cassandra}))

    def view(self, servers: Servers) -> View:
        return servers.views().view(str(self.name))

    def broker(self, servers: Servers) -> Broker:
        return servers.broker(self.name)

    async def delete(self) -> None:
        """Remove what the servers have of it; the keyspace is its owner's."""
        servers = self.servers()
        await self.broker(servers).delete()
        await servers.blobs(self.bucket).drop()
        await servers.close()
