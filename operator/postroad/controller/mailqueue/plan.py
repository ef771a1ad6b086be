"""Needs of a MailQueue, at each server and for its pods, as values; the facts behind them; and how
much of it a reconcile carries out.

That compares facts: what the resource depends on now, with what the last reconcile that succeeded
saw of it. So a failed reconcile loses nothing, and an event only chooses the moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import Enum, auto
from typing import Any

from postroad.controller.cluster.clusters import Cluster, Clusters
from postroad.controller.cluster.plans import BrokerPlan, BucketPlan, QueuePlace, ViewPlan
from postroad.controller.kubernetes.api import (
    AUTOSCALED,
    DEPLOYMENT,
    QUEUE_CLUSTER,
    Key,
    has_finalizer,
)
from postroad.controller.kubernetes.drift import hash_in
from postroad.controller.mailqueue.autoscaling import Autoscalers, Decided, is_autoscaled
from postroad.controller.pods.readiness import has_ready_pods
from postroad.controller.pods.upgrades import Upgrades
from postroad.controller.reads import ChildVersion, Indexes, key_of, place_for
from postroad.controller.spec.cluster import QueueClusterSpec
from postroad.controller.spec.queue_resource import (
    Queue,
    asks_to_rotate,
    cluster_of_pods,
    is_erased_with_its_resource,
)
from postroad.controller.status.conditions import (
    BLOBS_READY,
    BROKER_READY,
    VIEW_READY,
    Finding,
    Status,
    attempt,
    wants_retry,
)
from postroad.domain.queues.broker_users import RotationPace
from postroad.ports.clock import Clock
from postroad.ports.kubernetes import Kubernetes, Object


class Scope(Enum):
    """Parts of a MailQueue that are carried out."""

    FULL = auto()
    """Servers, configuration, children, metrics."""

    CHILDREN = auto()
    """The children; findings about servers and configuration stay."""

    METRICS = auto()
    """Sizes and limits in the status."""

    PAUSED = auto()
    """The metrics, and the condition Paused."""


@dataclass(frozen=True, slots=True)
class SeenFacts:
    """Facts that a MailQueue depends on. `cluster`: a version that changes with its QueueCluster,
    the Secrets and whether the servers answer; None while the MailQueue cannot use it. `may_roll`:
    its pods may be replaced because of a newer operator. `rotate`: the annotation that asks for
    another user at RabbitMQ. `workers`: what autoscaling decided; `looked`: when another autoscaler
    was found to decide."""

    generation: int
    cluster: tuple[object, ...] | None
    children: frozenset[ChildVersion]
    may_roll: bool = False
    rotate: str = ""
    workers: Decided | None = None
    looked: timedelta | None = None


def with_applied(seen: SeenFacts, applied: Sequence[ChildVersion]) -> SeenFacts:
    """Return the facts with the children that a reconcile applied, whose events are no news."""
    known = {(each.kind, each.name): each for each in (*seen.children, *applied)}
    return replace(seen, children=frozenset(known.values()))


@dataclass(frozen=True, slots=True)
class LastReconcile:
    """The last reconcile of a MailQueue: what it saw, the status it wrote, when the last full one
    was, and how many in a row left something to repeat."""

    seen: SeenFacts
    status: Status
    full_at: timedelta
    failures: int = 0

    def saw_resource_of(self, seen: SeenFacts) -> bool:
        """True if neither the MailQueue nor its QueueCluster has changed since."""
        return (seen.generation, seen.cluster) == (self.seen.generation, self.seen.cluster)


@dataclass(frozen=True, slots=True)
class NextReconcile:
    """Plan of the next reconcile. `expected`: kinds and names of the children that are there unless
    another process deleted them."""

    scope: Scope
    expected: frozenset[tuple[str, str]]


def decide(
    found: Mapping[str, Any],
    seen: SeenFacts,
    last: LastReconcile | None,
    now: timedelta,
    interval: timedelta,
) -> NextReconcile:
    """Return what to do for a MailQueue. `interval`: between full reconciles, whatever is seen."""
    expected: frozenset[tuple[str, str]] = frozenset()
    if last is not None and last.saw_resource_of(seen):  # the operator itself deletes none of them
        expected = frozenset((each.kind, each.name) for each in last.seen.children)
    return NextReconcile(_scope(found, seen, last, now, interval), expected)


def _scope(
    found: Mapping[str, Any],
    seen: SeenFacts,
    last: LastReconcile | None,
    now: timedelta,
    interval: timedelta,
) -> Scope:
    if found["spec"].get("paused"):
        return Scope.PAUSED
    if (
        last is None
        or last.failures > 0
        or seen.cluster is None
        or not last.saw_resource_of(seen)
        or seen.rotate != last.seen.rotate
        or last.status != found.get("status")
        or has_finalizer(found) != is_erased_with_its_resource(found)
        or now - last.full_at >= interval
    ):
        return Scope.FULL
    return Scope.METRICS if seen == last.seen else Scope.CHILDREN


def after_reconcile(
    scope: Scope, seen: SeenFacts, status: Status, last: LastReconcile | None, now: timedelta
) -> LastReconcile | None:
    """Return what to compare the next reconcile with; None: the next one is full."""
    if scope is Scope.PAUSED:
        return None
    full_at = now if scope is Scope.FULL or last is None else last.full_at
    same = last is not None and last.seen.cluster == seen.cluster
    before = last.failures if last is not None and same else 0
    return LastReconcile(seen, status, full_at, before + 1 if wants_retry(status) else 0)


@dataclass(frozen=True, slots=True)
class WorkloadsPlan:
    """The children of a MailQueue. `servers`: the spec of its QueueCluster, as the pods use it;
    `tls_versions`: those of its Secrets, None where the pods read Secrets of their own namespace;
    `jobs`: the status of the pipeline. `scaling`: why there are so many workers, where autoscaling
    decided."""

    queue: Queue
    cluster: Key
    servers: QueueClusterSpec
    tls_versions: Mapping[str, str] | None
    jobs: Sequence[Mapping[str, Any]]
    scaling: str | None = None


@dataclass(frozen=True, slots=True)
class QueuePlan:
    """All that a reconcile of a MailQueue makes, a value for each step."""

    place: QueuePlace
    broker: BrokerPlan
    bucket: BucketPlan
    view: ViewPlan
    workloads: WorkloadsPlan


def plan_of(
    queue: Queue, cluster: Cluster, status: Mapping[str, Any], scaling: str | None = None
) -> QueuePlan:
    """Return the plan of a MailQueue with this status."""
    place = QueuePlace(
        holder=replace(cluster.holder, queue=str(queue.name), adopted=queue.adopted),
        servers=cluster.servers,
        name=queue.name,
        uid=queue.uid,
        delivery_limit=queue.spec.broker.delivery_limit,
        bucket=queue.bucket(cluster.spec),
        bucket_prefix=cluster.spec.s3.bucket_prefix,
        owns_bucket=queue.owns_bucket,
    )
    users, begun = cluster.spec.rabbitmq.users, "configuration" in status
    pace = None if users is None else RotationPace(users.overlap, users.period)
    of_pods = cluster_of_pods(cluster.spec, queue)
    is_shared = cluster.namespace == queue.name.namespace and of_pods is cluster.spec
    return QueuePlan(
        place,
        BrokerPlan(place, queue, pace, begun, cluster.away.get(BROKER_READY)),
        BucketPlan(place, begun, cluster.away.get(BLOBS_READY)),
        ViewPlan(place, queue, cluster.keyspace, status),
        WorkloadsPlan(
            queue,
            Key(QUEUE_CLUSTER.name, cluster.namespace, cluster.name),
            of_pods,
            cluster.credentials.tls_versions if is_shared else None,
            status.get("pipeline") or (),
            scaling,
        ),
    )


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """Facts that a reconcile read of a MailQueue. `plan`: what it needs; None where it has no spec
    or no QueueCluster that it can use, and `finding` then is why."""

    found: Object
    seen: SeenFacts
    plan: QueuePlan | None
    finding: Finding


class FactsReader:
    """Reads the facts about MailQueues."""

    def __init__(
        self,
        api: Kubernetes,
        clusters: Clusters,
        indexes: Indexes,
        upgrades: Upgrades,
        autoscalers: Autoscalers,
        clock: Clock,
    ) -> None:
        self._api = api
        self._autoscalers = autoscalers
        self._clock = clock
        self.operator_class = clusters.operator_class
        self._clusters = clusters
        self._indexes = indexes
        self._upgrades = upgrades

    async def read(self, found: Object) -> QueueFacts:
        """Read the facts about a MailQueue. Raises: KubernetesUnavailable, KubernetesConflict."""
        key, plan = key_of(found), None
        children, may_roll = self._indexes.children_of(key), self._upgrades.is_granted(key)
        generation, rotate = found["metadata"]["generation"], asks_to_rotate(found)
        seen = SeenFacts(generation, None, children, may_roll, rotate)
        async with attempt("Spec", seconds=120) as attempted:
            queue = Queue.of(found)
            decided, looked = await self._scaled(found, queue)
            seen = replace(seen, workers=decided, looked=looked)
            cluster = await self._clusters.for_queue(queue)
        if attempted.finding.is_good:
            async with attempt(VIEW_READY, seconds=120) as attempted:
                await self._clusters.claims.check_keyspace(cluster.keyspace)
        if attempted.finding.is_good:
            seen = replace(seen, cluster=cluster.version)
            scaling = None if decided is None else decided.reason
            queue = queue if decided is None else queue.with_workers(decided.size)
            plan = plan_of(queue, cluster, found.get("status") or {}, scaling)
            self._autoscalers.keep(plan.view)
        return QueueFacts(found, seen, plan, attempted.finding)

    def scaled(self, found: Object) -> str | None:
        """Return a change that autoscaling made since the last one, once: as a sentence for an
        Event."""
        return self._autoscalers.announcement(found["metadata"]["uid"])

    async def _scaled(self, found: Object, queue: Queue) -> tuple[Decided | None, timedelta | None]:
        """Return what autoscaling decided, and the time where another autoscaler decides: about a
        Deployment, or about a MailQueue, whose spec then has the number."""
        place = place_for(DEPLOYMENT.name, queue.key)
        deployments = {each["metadata"]["name"]: each for each in self._indexes.at(place)}
        foreign = {name for name, each in deployments.items() if hash_in(each, AUTOSCALED)}
        worker, workers, present = f"{queue.name.name}-worker", queue.spec.workers, None
        is_of_queue = (
            workers is not None
            and workers.autoscaling is not None
            and await is_autoscaled(self._api, found)
        )
        if worker in deployments and not is_of_queue:
            present = deployments[worker]["spec"].get("replicas")
        by_another = is_of_queue or worker in foreign
        is_ready = worker in deployments and has_ready_pods(deployments[worker])
        decided = self._autoscalers.decided(
            queue, present, is_ready=is_ready, by_another=by_another
        )
        return decided, self._clock.elapsed() if by_another or foreign else None
