"""The operator's engines, with which it begins a queue and counts its mail.

An engine is made for each use, because a thousand of them would have 10 MB: of a queue is kept what
it last read of the configuration, and its counts. Engines share the connections of their cluster,
and consume no mail.
"""

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from postroad.configuration import LeasedConfiguration
from postroad.controller.cluster.plans import QueuePlace
from postroad.controller.status.status import instant
from postroad.distributed.engine.engine import Engine, Parts
from postroad.distributed.opening import begin
from postroad.distributed.reading.size import KeptCounts, SizeCache
from postroad.ports.clock import Clock, Randomness
from postroad.ports.servers import Servers

MEASURING_SECONDS = 20.0
"""For all metrics of one queue together."""

SAME_RECONCILE = timedelta(seconds=2)
"""A reconcile that has begun a queue counts it by the configuration that it has just read."""


@dataclass(frozen=True, slots=True)
class _KnownQueue:
    servers: Servers
    configuration: LeasedConfiguration
    counts: KeptCounts = field(default_factory=KeptCounts)


class Engines:
    """Begins and counts queues, and keeps what is known of them."""

    def __init__(self, clock: Clock, randomness: Randomness) -> None:
        self._clock = clock
        self._randomness = randomness
        self._known: dict[str, _KnownQueue] = {}

    async def begin(self, place: QueuePlace) -> None:
        """Set the limits of a queue that has an accepted configuration. Idempotent.
        Raises: ViewError, ConfigurationError, ClockSkew."""
        known = self._of(place)
        await known.configuration.refresh()
        await begin(self._engine(known, place))

    async def metrics(self, place: QueuePlace) -> dict[str, Any]:
        """Return the metrics of a queue as fields of its status. Raises: ViewError,
        ConfigurationError, QueueNotFound, TimeoutError."""
        known = self._of(place)
        engine = self._engine(known, place)
        async with asyncio.timeout(MEASURING_SECONDS):
            await known.configuration.refresh_unless(SAME_RECONCILE)
            sizes = await SizeCache(engine, known.counts).get()
            limits = await engine.limits_cache.limits()  # those of the sizes
        return {
            "size": sizes.size,
            "delayed": sizes.delayed,
            "held": sizes.held,
            "deadLetters": sizes.dead_letters,
            "sizeAtLeast": True if sizes.at_least else None,
            "browseStart": instant(limits.browse_start),
            "contentStart": instant(limits.content_start),
        }

    def forget(self, uid: str) -> None:
        """Drop what is known of a queue. Idempotent."""
        self._known.pop(uid, None)

    def _of(self, place: QueuePlace) -> _KnownQueue:
        known = self._known.get(place.uid)
        if known is None or known.servers is not place.servers:
            configuration = LeasedConfiguration(place.history(), self._clock, self._randomness)
            known = self._known[place.uid] = _KnownQueue(place.servers, configuration)
        return known

    def _engine(self, known: _KnownQueue, place: QueuePlace) -> Engine:
        parts = Parts(
            name=place.name,
            broker=place.broker(),
            view=place.view(),
            blobs=place.blobs(),
            configuration=known.configuration,
            clock=self._clock,
            randomness=self._randomness,
            delivery_limit=place.delivery_limit,
            row_lifetime=place.servers.views().row_lifetime,
        )
        return Engine(parts)
