"""One level-based loop for all resources: what to look at, how thoroughly, and when again.

Events of the watches only say *look*; what is to be done is read from the API server each time.
Three looks of a MailQueue, from dear to cheap: thorough (servers, configuration, children),
children only (somebody changed a child), figures only (the periodic refresh of sizes).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from postroad.controller.api import FINALIZER, MAIL_QUEUE, QUEUE_CLUSTER, Key, Kind
from postroad.controller.api_server import ApiServer, Object
from postroad.controller.cluster_health import ClusterHealth
from postroad.controller.clusters import Clusters
from postroad.controller.connections import Connect, Connections
from postroad.controller.deletion import DELETION_TIMEOUT, Deletion
from postroad.controller.engines import Engines
from postroad.controller.queues import Queues
from postroad.controller.reporting import Reporter
from postroad.controller.status import Status, servers_are_good, wants_retry
from postroad.controller.workqueue import Workqueue
from postroad.errors import KubernetesConflict
from postroad.ports.clock import Clock, Randomness
from postroad.telemetry import metrics


@dataclass(frozen=True, slots=True)
class Intervals:
    """How often is looked, when nothing happens. All are spread by a fifth, so that looks do not
    come in waves."""

    figures: timedelta = timedelta(seconds=30)
    """Sizes and limits in the status."""

    thorough: timedelta = timedelta(minutes=5)
    """Everything about a queue: repairs what no watch told."""

    clusters: timedelta = timedelta(minutes=1)
    """Servers, and changed Secrets."""

    first_retry: timedelta = timedelta(seconds=5)
    """After a look that found a trouble; doubled up to `clusters`."""


@dataclass(slots=True)
class _Seen:
    """What the last look at a MailQueue left behind."""

    generation: int
    status: Status
    looked_at: timedelta
    troubled: int = 0


class Controller:
    """Looks at MailQueues and QueueClusters."""

    def __init__(
        self,
        api: ApiServer,
        *,
        connect: Connect,
        clock: Clock,
        randomness: Randomness,
        image: str,
        namespaces: Sequence[str] = (),
        intervals: Intervals | None = None,
        deletion_timeout: timedelta = DELETION_TIMEOUT,
    ) -> None:
        self._api = api
        self._clock = clock
        self._randomness = randomness
        self._engines = Engines(clock, randomness)
        self._intervals = intervals or Intervals()
        self._connections = Connections(connect)
        self._clusters = Clusters(api, self._connections, namespaces)
        reporter = Reporter(api, clock)
        self._queues = Queues(api, self._clusters, reporter, clock, self._engines, image)
        self._deletion = Deletion(api, self._clusters, reporter, clock, deletion_timeout)
        self._health = ClusterHealth(api, self._clusters, reporter, clock)
        self._work: Workqueue[Key] = Workqueue(self.look, randomness)
        self._seen: dict[Key, _Seen] = {}
        self._children_changed: set[Key] = set()
        self._surroundings_changed: set[Key] = set()
        self._marks: dict[Key, object] = {}

    async def run(self, tasks: int) -> None:
        """Look at what is to be looked at, until cancelled."""
        await self._work.run(tasks)

    async def close(self) -> None:
        """Close the connections to all servers. Idempotent."""
        await self._connections.close()

    # What the watches say

    async def see(self, kind: Kind, body: Object, *, gone: bool, routine: bool) -> None:
        """A MailQueue or a QueueCluster was added, changed or deleted. `routine`: it was there
        when the watch began."""
        key = key_of(kind, body)
        mark = None if gone else _mark(body)
        if self._marks.get(key) == mark and not gone:
            return  # only what we write ourselves has changed: the status
        self._marks[key] = mark
        if gone:
            self._marks.pop(key)
        self._work.add(key, urgent=not routine)
        if kind is MAIL_QUEUE:
            reference = body["spec"].get("clusterRef") or {}
            namespace = reference.get("namespace") or key.namespace
            cluster = Key(QUEUE_CLUSTER.name, namespace, reference.get("name", ""))
            self._work.add(cluster, urgent=False)
        else:
            await self._look_at_queues_of(key)

    def see_child(self, body: Object) -> None:
        """A child was changed or deleted, by us or by others."""
        for owner in body["metadata"].get("ownerReferences") or []:
            if owner.get("controller") and owner["kind"] == MAIL_QUEUE.name:
                key = Key(MAIL_QUEUE.name, body["metadata"]["namespace"], owner["name"])
                self._children_changed.add(key)
                self._work.add(key)

    # Looks

    async def look(self, key: Key) -> timedelta | None:
        """Look at one resource; returns after how long to look again, None for never."""
        with metrics.RECONCILE_SECONDS.labels(key.kind).time():
            try:
                after = await self._look(key)
            except KubernetesConflict:
                metrics.RECONCILES.labels(key.kind, "conflict").inc()
                return self._spread(timedelta(seconds=0.5))
            except Exception:
                metrics.RECONCILES.labels(key.kind, "error").inc()
                raise
        metrics.RECONCILES.labels(key.kind, "done").inc()
        return self._spread(after) if after is not None else None

    async def _look(self, key: Key) -> timedelta | None:
        if key.kind == QUEUE_CLUSTER.name:
            return await self._look_at_cluster(key)
        found = await self._api.get(MAIL_QUEUE, key.namespace, key.name)
        if found is None:
            self._forget(key)
            return None
        if "deletionTimestamp" in found["metadata"]:
            after = await self._deletion.proceed(found)
            if after is None:
                self._engines.forget(found["metadata"]["uid"])
            return after
        return await self._look_at_queue(key, found)

    async def _look_at_queue(self, key: Key, found: Object) -> timedelta:
        children_changed = key in self._children_changed
        self._children_changed.discard(key)
        seen = self._seen.get(key) if key not in self._surroundings_changed else None
        self._surroundings_changed.discard(key)
        now = self._clock.elapsed()
        if found["spec"].get("paused"):
            await self._queues.refresh_paused(found)
            self._seen.pop(key, None)
            return self._intervals.figures
        if self._needs_all(seen, found, now):
            status = await self._queues.bring_about(found)
            looked_at, before = now, seen.troubled if seen else 0
            troubled = before + 1 if wants_retry(status) else 0
        else:
            assert seen is not None
            looked_at, troubled = seen.looked_at, 0
            status = await (
                self._queues.restore_children(found)
                if children_changed
                else self._queues.refresh(found)
            )
        self._seen[key] = _Seen(found["metadata"]["generation"], status, looked_at, troubled)
        if troubled:
            delay: timedelta = self._intervals.first_retry * 2 ** min(troubled - 1, 10)
            return min(delay, self._intervals.clusters)
        return self._intervals.figures

    def _needs_all(self, seen: _Seen | None, found: Object, now: timedelta) -> bool:
        return (
            seen is None
            or seen.troubled > 0
            or seen.generation != found["metadata"]["generation"]
            or seen.status != found.get("status")
            or FINALIZER not in (found["metadata"].get("finalizers") or [])
            or now - seen.looked_at >= self._intervals.thorough
        )

    async def _look_at_cluster(self, key: Key) -> timedelta | None:
        found = await self._api.get(QUEUE_CLUSTER, key.namespace, key.name)
        if found is None:
            self._marks.pop(key, None)
            return None
        if "deletionTimestamp" in found["metadata"]:
            return await self._health.end(found)
        uid = found["metadata"]["uid"]
        before = self._connections.fingerprint(uid)
        was_good = servers_are_good(found.get("status") or {})
        status = await self._health.look(found)
        changed = before is not None and before != self._connections.fingerprint(uid)
        if changed or (servers_are_good(status) and not was_good):
            await self._look_at_queues_of(key)
        return self._intervals.clusters

    async def _look_at_queues_of(self, cluster: Key) -> None:
        for each in await self._clusters.queues(cluster.namespace, cluster.name):
            key = key_of(MAIL_QUEUE, each)
            self._surroundings_changed.add(key)
            self._work.add(key, urgent=False)

    def _forget(self, key: Key) -> None:
        self._seen.pop(key, None)
        self._children_changed.discard(key)
        self._surroundings_changed.discard(key)

    def _spread(self, interval: timedelta) -> timedelta:
        return interval * (0.9 + 0.2 * self._randomness.uniform())


def key_of(kind: Kind, body: Mapping[str, Any]) -> Key:
    """Return the key of an object."""
    return Key(kind.name, body["metadata"]["namespace"], body["metadata"]["name"])


def _mark(body: Mapping[str, Any]) -> object:
    """What of a resource is others' to change: its status is ours."""
    metadata = body["metadata"]
    return (
        metadata["uid"],
        metadata.get("generation"),
        metadata.get("deletionTimestamp"),
        FINALIZER in (metadata.get("finalizers") or []),
    )
