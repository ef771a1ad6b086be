"""One level-based loop for all resources: which to reconcile, how much of it, and when again.

Events of the watches only name the object; each reconcile reads its state from the API server.
A MailQueue has three reconciles, from dear to cheap: full (servers, configuration, children),
children only (after an event about a child), figures only (the periodic refresh of sizes).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from postroad.controller.actions import read, reconciling
from postroad.controller.api import MAIL_QUEUE, QUEUE_CLUSTER, Key
from postroad.controller.causes import Cause, Causes
from postroad.controller.cluster_facts import ClusterFacts, secrets_of
from postroad.controller.cluster_health import ClusterHealth
from postroad.controller.clusters import Clusters
from postroad.controller.connections import Connect, Connections
from postroad.controller.deletion import DELETION_TIMEOUT, Deletion, retained
from postroad.controller.engines import Engines
from postroad.controller.finalizers import has_finalizer
from postroad.controller.queue_resource import is_erased_with_its_resource
from postroad.controller.queues import Queues
from postroad.controller.reporting import Reporter
from postroad.controller.status import Status, wants_retry
from postroad.controller.workqueue import Urgency, Workqueue
from postroad.errors import KubernetesConflict
from postroad.ports.clock import Clock, Randomness
from postroad.ports.kubernetes import Kind, Kubernetes, Object
from postroad.telemetry import metrics

Fingerprint = tuple[tuple[object, ...], tuple[object, ...]]
"""Of the spec; of what else changes."""


@dataclass(frozen=True, slots=True)
class Intervals:
    """Intervals of reconciles without events. All are spread by a fifth, so that reconciles do not
    come in waves."""

    figures: timedelta = timedelta(seconds=30)
    """Sizes and limits in the status."""

    full: timedelta = timedelta(minutes=5)
    """Everything about a queue; repairs changes of which no watch had an event."""

    clusters: timedelta = timedelta(minutes=1)
    """Servers, and changed Secrets."""

    servers: timedelta = timedelta(seconds=5)
    """Whether servers answer."""

    first_retry: timedelta = timedelta(seconds=5)
    """After a failed reconcile; doubled up to `clusters`."""


@dataclass(slots=True)
class _Last:
    """The last reconcile of a MailQueue: the status it wrote, when the last full one was, and how
    many have failed in a row."""

    generation: int
    status: Status
    full_at: timedelta
    failures: int = 0


class Controller:
    """Reconciles MailQueues and QueueClusters."""

    def __init__(
        self,
        api: Kubernetes,
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
        self._reporter = reporter = Reporter(api, clock)
        self._queues = Queues(api, self._clusters, reporter, clock, self._engines, image)
        self._deletion = Deletion(api, self._clusters, reporter, clock, deletion_timeout)
        self._health = ClusterHealth(api, self._clusters, reporter, clock)
        self._work: Workqueue[Key] = Workqueue(self.reconcile, randomness)
        self._last: dict[Key, _Last] = {}
        self._causes = Causes()
        self._known_to_queues: dict[str, ClusterFacts] = {}
        self._checked_at: dict[str, timedelta] = {}
        self._fingerprints: dict[Key, Fingerprint] = {}
        self._uids: dict[Key, str] = {}
        self._deleted: dict[Key, Object] = {}

    async def run(self, tasks: int) -> None:
        """Reconcile with so many tasks until cancelled."""
        await self._work.run(tasks)

    async def close(self) -> None:
        """Close the connections to all servers. Idempotent."""
        await self._connections.close()

    # Events of the watches

    def on_event(self, kind: Kind, body: Object, *, gone: bool, routine: bool) -> None:
        """Queue a MailQueue or QueueCluster that was added, changed or deleted. `routine`: it was
        there when the watch began."""
        key = key_of(kind, body)
        before = self._fingerprints.pop(key, None)
        if gone:
            self._deleted[key] = body
        else:
            self._fingerprints[key] = now = fingerprint_of(body)
            if before == now:
                return  # only the status changed, which the operator itself writes
        if gone or before is None or before[0] != now[0]:
            self._causes.add(key, Cause.RESOURCE)
        self._work.add(key, Urgency.ROUTINE if routine else Urgency.CHANGE)
        if kind is MAIL_QUEUE:
            reference = body["spec"].get("clusterRef") or {}
            namespace = reference.get("namespace") or key.namespace
            cluster = Key(QUEUE_CLUSTER.name, namespace, reference.get("name", ""))
            self._causes.add(cluster, Cause.QUEUE)
            self._work.add(cluster, Urgency.ROUTINE)

    def on_child_event(self, body: Object) -> None:
        """Queue the owner of a child that was changed or deleted."""
        for owner in body["metadata"].get("ownerReferences") or []:
            if owner.get("controller") and owner["kind"] == MAIL_QUEUE.name:
                key = Key(MAIL_QUEUE.name, body["metadata"]["namespace"], owner["name"])
                self._causes.add(key, Cause.CHILD)
                self._work.add(key, Urgency.CHILD)

    # Reconciles

    async def reconcile(self, key: Key) -> timedelta | None:
        """Reconcile one resource; return after how long to repeat it, None for never."""
        with metrics.RECONCILE_SECONDS.labels(key.kind).time():
            try:
                with reconciling(key), self._causes.taken(key) as causes:
                    after = await self._reconcile(key, causes)
            except KubernetesConflict:
                metrics.RECONCILES.labels(key.kind, "conflict").inc()
                return self._spread(timedelta(seconds=0.5))
            except Exception:
                metrics.RECONCILES.labels(key.kind, "error").inc()
                raise
        metrics.RECONCILES.labels(key.kind, "done").inc()
        return self._spread(after) if after is not None else None

    async def _reconcile(self, key: Key, causes: Set[Cause]) -> timedelta | None:
        deleted = self._deleted.pop(key, None)
        if deleted is not None:
            await self._reporter.announce(deleted, retained(deleted))
        kind = MAIL_QUEUE if key.kind == MAIL_QUEUE.name else QUEUE_CLUSTER
        found = await self._api.get(kind, key.namespace, key.name)
        self._forget_others(key, found)
        if kind is QUEUE_CLUSTER and Cause.RESOURCE in causes:
            self._wake(await self._clusters.queues(key.namespace, key.name))
        if found is None:
            return None
        read(found)
        if kind is QUEUE_CLUSTER:
            return await self._reconcile_cluster(key, found, causes)
        if "deletionTimestamp" in found["metadata"]:
            return await self._deletion.proceed(found)
        return await self._reconcile_queue(key, found, causes)

    async def _reconcile_queue(self, key: Key, found: Object, causes: Set[Cause]) -> timedelta:
        last = self._last.get(key) if Cause.CLUSTER not in causes else None
        now = self._clock.elapsed()
        if found["spec"].get("paused"):
            await self._queues.refresh_paused(found)
            self._last.pop(key, None)
            return self._intervals.figures
        if self._needs_full(last, found, now):
            status = await self._queues.reconcile(found)
            full_at = now
        else:
            assert last is not None
            full_at = last.full_at
            status = await (
                self._queues.restore_children(found)
                if Cause.CHILD in causes
                else self._queues.refresh(found)
            )
        failures = (last.failures if last else 0) + 1 if wants_retry(status) else 0
        self._last[key] = _Last(found["metadata"]["generation"], status, full_at, failures)
        if failures:
            delay: timedelta = self._intervals.first_retry * 2 ** min(failures - 1, 10)
            return min(delay, self._intervals.clusters)
        return self._intervals.figures

    def _needs_full(self, last: _Last | None, found: Object, now: timedelta) -> bool:
        return (
            last is None
            or last.failures > 0
            or last.generation != found["metadata"]["generation"]
            or last.status != found.get("status")
            or has_finalizer(found) != is_erased_with_its_resource(found)
            or now - last.full_at >= self._intervals.full
        )

    async def _reconcile_cluster(
        self, key: Key, found: Object, causes: Set[Cause]
    ) -> timedelta | None:
        if "deletionTimestamp" in found["metadata"]:
            return await self._health.end(found)
        uid, interval = found["metadata"]["uid"], self._intervals.servers
        now, due = self._clock.elapsed(), self._checked_at.get(uid, -self._intervals.clusters)
        if not causes and now - due < self._intervals.clusters:
            if not await self._health.notices_a_change(uid):
                return interval
            await self._wake_queues(found)  # a reconcile of a server that is away takes its time
        await self._health.reconcile(found)
        await self._wake_queues(found)
        self._checked_at[uid] = now
        return interval

    async def _wake_queues(self, cluster: Object) -> None:
        """Reconcile the MailQueues for which something has changed since they were last woken."""
        metadata = cluster["metadata"]
        queues = await self._clusters.queues(metadata["namespace"], metadata["name"])
        facts = ClusterFacts(
            self._health.answers.get(metadata["uid"], {}),
            self._connections.fingerprint(metadata["uid"]),
            await secrets_of(self._api, cluster, queues),
        )
        before = self._known_to_queues.get(metadata["uid"], facts)
        self._wake([each for each in queues if facts.differ(before, each["metadata"]["namespace"])])
        self._known_to_queues[metadata["uid"]] = facts

    def _wake(self, queues: Sequence[Object]) -> None:
        for each in queues:
            key = key_of(MAIL_QUEUE, each)
            self._causes.add(key, Cause.CLUSTER)
            self._work.add(key, Urgency.ROUTINE)

    def _forget_others(self, key: Key, found: Object | None) -> None:
        """Forget a resource that is gone, also when another one has its name since."""
        uid = found["metadata"]["uid"] if found else None
        gone = self._uids.pop(key, None)
        if uid is not None:
            self._uids[key] = uid
        if gone in (None, uid):
            return
        self._engines.forget(gone)
        self._reporter.forget(gone)
        self._clusters.forget(gone)
        self._health.answers.pop(gone, None)
        self._known_to_queues.pop(gone, None)
        self._checked_at.pop(gone, None)
        self._last.pop(key, None)
        if uid is None:
            self._fingerprints.pop(key, None)

    def _spread(self, interval: timedelta) -> timedelta:
        return interval * (0.9 + 0.2 * self._randomness.uniform())


def key_of(kind: Kind, body: Mapping[str, Any]) -> Key:
    """Return the key of an object."""
    return Key(kind.name, body["metadata"]["namespace"], body["metadata"]["name"])


def fingerprint_of(body: Mapping[str, Any]) -> Fingerprint:
    """Return what changes of a resource when anything but its status does: the spec, and whether it
    is being deleted or held. The operator writes the status, so its own write must not start a
    reconcile."""
    metadata = body["metadata"]
    return (
        (metadata["uid"], metadata.get("generation")),
        (metadata.get("deletionTimestamp"), has_finalizer(body)),
    )
