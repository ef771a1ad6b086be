"""The operator's engine of each queue, with which it begins a queue and counts its mail.

Engines share the connections of their cluster. They consume no mail, and read the configuration
only when the operator needs it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from postroad.configuration.leased import LeasedConfiguration
from postroad.controller.queue_resource import Queue
from postroad.controller.status import instant
from postroad.distributed.engine import Engine, Parts
from postroad.distributed.opening import begin
from postroad.distributed.size import SizeCache
from postroad.ports.clock import Clock, Randomness
from postroad.ports.servers import Servers

MEASURING_SECONDS = 20.0
"""For all figures of one queue together."""

SAME_RECONCILE = timedelta(seconds=2)
"""A reconcile that has begun a queue counts it by the configuration that it has just read."""


@dataclass(frozen=True, slots=True)
class _KeptEngine:
    servers: Servers
    configuration: LeasedConfiguration
    engine: Engine
    sizes: SizeCache


class Engines:
    """Creates and caches engines."""

    def __init__(self, clock: Clock, randomness: Randomness) -> None:
        self._clock = clock
        self._randomness = randomness
        self._kept: dict[str, _KeptEngine] = {}

    async def begin(self, servers: Servers, queue: Queue, bucket: str) -> None:
        """Set the limits of a queue that has an accepted configuration. Idempotent.
        Raises: ViewError, ConfigurationError, QueueNotFound."""
        kept = self._of(servers, queue, bucket)
        await kept.configuration.refresh()
        await begin(kept.engine)

    async def figures(self, servers: Servers, queue: Queue, bucket: str) -> dict[str, Any]:
        """Return the figures of a queue as fields of its status. Raises: ViewError,
        ConfigurationError, QueueNotFound, TimeoutError."""
        kept = self._of(servers, queue, bucket)
        async with asyncio.timeout(MEASURING_SECONDS):
            await kept.configuration.refresh_unless(SAME_RECONCILE)
            sizes = await kept.sizes.get()
            limits = await kept.engine.limits_cache.limits()  # those of the sizes
        return {
            "size": sizes.size,
            "delayed": sizes.delayed,
            "held": sizes.held,
            "deadLetters": sizes.dead_letters,
            "browseStart": instant(limits.browse_start),
            "contentStart": instant(limits.content_start),
        }

    def forget(self, uid: str) -> None:
        """Drop the engine of a queue. Idempotent."""
        self._kept.pop(uid, None)

    def _of(self, servers: Servers, queue: Queue, bucket: str) -> _KeptEngine:
        kept = self._kept.get(queue.uid)
        if kept is None or kept.servers is not servers:
            kept = self._kept[queue.uid] = self._made(servers, queue, bucket)
        return kept

    def _made(self, servers: Servers, queue: Queue, bucket: str) -> _KeptEngine:
        configuration = LeasedConfiguration(
            servers.history(queue.name), self._clock, self._randomness
        )
        limit = queue.spec.broker.delivery_limit
        parts = Parts(
            name=queue.name,
            broker=servers.broker(queue.name, delivery_limit=limit),
            view=servers.views().view(str(queue.name)),
            blobs=servers.blobs(bucket),
            configuration=configuration,
            clock=self._clock,
            randomness=self._randomness,
            delivery_limit=limit,
        )
        engine = Engine(parts)
        return _KeptEngine(servers, configuration, engine, SizeCache(engine))
