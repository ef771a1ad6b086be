"""Needs of a MailQueue, at each server and for its pods, as values, and the facts
behind them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from postroad.controller.cluster.clusters import Cluster, Clusters
from postroad.controller.cluster.plans import BrokerPlan, BucketPlan, QueuePlace, ViewPlan
from postroad.controller.cluster.quotas import has_configuration
from postroad.controller.kubernetes.api import QUEUE_CLUSTER, Key
from postroad.controller.mailqueue.scope import SeenFacts
from postroad.controller.pods.upgrades import Upgrades
from postroad.controller.reads import Indexes, key_of
from postroad.controller.spec.cluster import QueueClusterSpec
from postroad.controller.spec.queue_resource import Queue, asks_to_rotate, cluster_of_pods
from postroad.controller.status.attempts import attempt
from postroad.controller.status.conditions import BLOBS_READY, BROKER_READY, VIEW_READY, Finding
from postroad.domain.queues.broker_users import RotationPace
from postroad.ports.kubernetes import Object


@dataclass(frozen=True, slots=True)
class WorkloadsPlan:
    """The children of a MailQueue. `servers`: the spec of its QueueCluster, as the pods use it;
    `tls_versions`: those of its Secrets, None where the pods read Secrets of their own namespace;
    `jobs`: the status of the pipeline."""

    queue: Queue
    cluster: Key
    servers: QueueClusterSpec
    tls_versions: Mapping[str, str] | None
    jobs: Sequence[Mapping[str, Any]]

    @property
    def most_workers(self) -> int | None:
        """Number of workers that the QueueCluster lets each MailQueue have; None: any number."""
        return self.servers.quota.workers_per_queue


@dataclass(frozen=True, slots=True)
class QueuePlan:
    """All that a reconcile of a MailQueue makes, a value for each step."""

    place: QueuePlace
    broker: BrokerPlan
    bucket: BucketPlan
    view: ViewPlan
    workloads: WorkloadsPlan


def plan_of(queue: Queue, cluster: Cluster, status: Mapping[str, Any]) -> QueuePlan:
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

    def __init__(self, clusters: Clusters, indexes: Indexes, upgrades: Upgrades) -> None:
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
            cluster = await self._clusters.for_queue(queue, begun=has_configuration(found))
        if attempted.finding.is_good:
            async with attempt(VIEW_READY, seconds=120) as attempted:
                await self._clusters.claims.check_keyspace(cluster.keyspace)
        if attempted.finding.is_good:
            seen = replace(seen, cluster=cluster.version)
            plan = plan_of(queue, cluster, found.get("status") or {})
        return QueueFacts(found, seen, plan, attempted.finding)
