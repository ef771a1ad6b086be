"""Needs of a MailQueue: at each server and for its pods, as values: pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from postroad.controller.cluster.clusters import Cluster
from postroad.controller.cluster.plans import BrokerPlan, BucketPlan, QueuePlace, ViewPlan
from postroad.controller.cluster.user_rotation import RotationPace
from postroad.controller.kubernetes.api import QUEUE_CLUSTER, Key
from postroad.controller.spec.cluster import QueueClusterSpec
from postroad.controller.spec.queue_resource import Queue, cluster_of_pods
from postroad.controller.status.conditions import BLOBS_READY, BROKER_READY


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
