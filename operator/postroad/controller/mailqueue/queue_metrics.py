"""The operator's engines, with which it begins a queue and counts its mail; when it counts, and
when a difference is worth a write.

An engine is made for each use, because a thousand of them would have 10 MB: of a queue is kept what
it last read of the configuration, and its counts. Engines share the connections of their cluster,
and consume no mail. A status is not written for the age of its metrics alone, so that queues at
rest cost no writes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from postroad.configuration import LeasedConfiguration
from postroad.controller.cluster.plans import QueuePlace, ViewPlan
from postroad.controller.kubernetes.api import Key
from postroad.controller.mailqueue.autoscaling import Autoscalers
from postroad.controller.status.conditions import count_error, instant
from postroad.distributed.engine.engine import Engine, Parts
from postroad.distributed.mail_queue import begin
from postroad.distributed.reading.size import KeptCounts, SizeCache
from postroad.domain.queues.documents import Sizes
from postroad.errors import PostroadError
from postroad.ports.clock import Clock, Randomness
from postroad.ports.servers import Servers
from postroad.ports.view import Limits
from postroad.telemetry.metrics import Sample

MEASURING_SECONDS = 20.0
"""For all metrics of one queue together."""

SAME_RECONCILE = timedelta(seconds=2)
"""A reconcile that has begun a queue counts it by the configuration that it has just read."""


@dataclass(frozen=True, slots=True)
class _KnownQueue:
    servers: Servers
    configuration: LeasedConfiguration
    counts: KeptCounts = field(default_factory=KeptCounts)


@dataclass(frozen=True, slots=True)
class Counted:
    """A count of a queue. `attempted`: attempts of workers that ended since this process began, as
    far as its counts saw it."""

    sizes: Sizes
    limits: Limits
    attempted: int

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of the status."""
        return {
            "size": self.sizes.size,
            "delayed": self.sizes.delayed,
            "held": self.sizes.held,
            "deadLetters": self.sizes.dead_letters,
            "sizeAtLeast": True if self.sizes.at_least else None,
            "browseStart": instant(self.limits.browse_start),
            "contentStart": instant(self.limits.content_start),
        }


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

    async def count(self, place: QueuePlace) -> Counted:
        """Count the mails of a queue. Raises: ViewError, ConfigurationError, QueueNotFound,
        TimeoutError."""
        known = self._of(place)
        engine = self._engine(known, place)
        async with asyncio.timeout(MEASURING_SECONDS):
            await known.configuration.refresh_unless(SAME_RECONCILE)
            sizes = await SizeCache(engine, known.counts).get()
            limits = await engine.limits_cache.limits()  # those of the sizes
        return Counted(sizes, limits, known.counts.attempted)

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


TURNS_A_SECOND = 2.0
"""Turns of the MailQueues of one QueueCluster together: a turn asks Cassandra for the partitions in
which mail waits."""

SMALL_CHANGE = 0.01
"""Part of a number of mails by which it changes before that is written at once."""

LATER = timedelta(minutes=5)
"""After so long any change of a number is written."""

STEP = timedelta(hours=1)
"""By which the limits of a view move before that is written. After so long a metric that the status
lacks is written."""

NUMBERS = ("size", "delayed", "held", "deadLetters")
FLAGS = ("sizeAtLeast",)
INSTANTS = ("browseStart", "contentStart")


class QueueMetrics:
    """Asks for the metrics of MailQueues, each in its turn."""

    def __init__(
        self, engines: Engines, schedule: MetricsSchedule, autoscalers: Autoscalers, clock: Clock
    ) -> None:
        self._engines = engines
        self._schedule = schedule
        self._autoscalers = autoscalers
        self._clock = clock
        self._oldest: dict[Key, datetime | None] = {}
        """Since when a mail of each MailQueue is due; None: none is."""

    async def fields(self, plan: ViewPlan) -> dict[str, Any]:
        """Return the fields of the status for new metrics; none before their turn, and while
        `ViewReady` is why there are none."""
        is_due = self._schedule.is_due(plan.queue.key, self._clock.elapsed())
        if plan.keyspace.away is not None or not (is_due or "metricsAt" not in plan.status):
            return {}
        try:
            counted = await self._engines.count(plan.place)
        except (PostroadError, TimeoutError) as error:
            count_error("cassandra", error)
            slow = isinstance(error, TimeoutError)
            return {"metricsError": "TooSlow" if slow else type(error).__name__}
        self._oldest.pop(plan.queue.key, None)
        if counted.sizes.oldest_due is not None or counted.sizes.due == 0:
            self._oldest[plan.queue.key] = counted.sizes.oldest_due
        browse_start = counted.limits.browse_start
        self._autoscalers.observe(plan, counted.sizes, browse_start, counted.attempted)
        return reported_metrics(plan.status, counted.fields, self._clock.now())

    def oldest_seconds(self) -> Iterator[Sample]:
        """Yield for each MailQueue how long a mail has been due."""
        now = self._clock.now()
        for key, since in self._oldest.items():
            age = 0.0 if since is None else max(0.0, (now - since).total_seconds())
            yield (key.namespace, key.name), age

    def forget(self, key: Key) -> None:
        """Forget a resource that is gone. Idempotent."""
        self._oldest.pop(key, None)
        self._schedule.forget(key)


class MetricsSchedule:
    """Gives each MailQueue a turn after some time, and those of one QueueCluster one after the
    other. A turn that waits is kept, whatever happens to the MailQueue meanwhile."""

    def __init__(self) -> None:
        self._due: dict[Key, timedelta] = {}
        self._last: dict[Key, timedelta] = {}

    def is_due(self, queue: Key, now: timedelta) -> bool:
        """True if it is the turn of a MailQueue; also of one that had none yet."""
        return self._due.get(queue, now) <= now

    def wait(self, queue: Key, cluster: Key, now: timedelta, at_least: timedelta) -> timedelta:
        """Return how long the MailQueue waits for its next turn."""
        if self.is_due(queue, now):
            after_others = self._last.get(cluster, now) + timedelta(seconds=1 / TURNS_A_SECOND)
            due = self._due[queue] = self._last[cluster] = max(now + at_least, after_others)
            return due - now
        return self._due[queue] - now

    def forget(self, key: Key) -> None:
        """Forget a resource that is gone. Idempotent."""
        self._due.pop(key, None)
        self._last.pop(key, None)


def reported_metrics(
    before: Mapping[str, Any], metrics: Mapping[str, Any], now: datetime
) -> dict[str, Any]:
    """Return the fields of the status for new metrics; none while they differ too little."""
    if not is_worth_a_write(before, metrics, now):
        return {}
    return {**metrics, "metricsAt": instant(now), "metricsError": None}


def is_worth_a_write(before: Mapping[str, Any], metrics: Mapping[str, Any], now: datetime) -> bool:
    """True if metrics differ enough from those of a status. One that the status lacks may be one
    that an older CRD drops."""
    if "metricsAt" not in before or "metricsError" in before:
        return True
    age = now - datetime.fromisoformat(before["metricsAt"])
    pairs = {each: (before.get(each), metrics.get(each)) for each in (*NUMBERS, *FLAGS, *INSTANTS)}
    return any(
        _differs(each, was, is_now, age) for each, (was, is_now) in pairs.items() if was != is_now
    )


def _differs(field: str, was: Any, is_now: Any, age: timedelta) -> bool:
    if was is None or is_now is None:
        return age >= STEP
    if field in INSTANTS:
        return datetime.fromisoformat(is_now) - datetime.fromisoformat(was) >= STEP
    return age >= LATER or abs(is_now - was) > SMALL_CHANGE * was
