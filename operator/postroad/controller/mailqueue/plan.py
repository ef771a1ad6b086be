"""Needs of a MailQueue, at each server and for its pods, as values, and the facts
behind them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from postroad.controller.cluster.clusters import Cluster, Clusters
from postroad.controller.cluster.plans import BrokerPlan, BucketPlan, QueuePlace, ViewPlan
from postroad.controller.cluster.quotas import has_configuration
from postroad.controller.kubernetes.api import AUTOSCALED, DEPLOYMENT, QUEUE_CLUSTER, Key
from postroad.controller.kubernetes.drift import hash_in
from postroad.controller.mailqueue.autoscaling import Autoscalers, Decided
from postroad.controller.mailqueue.other_autoscalers import is_autoscaled
from postroad.controller.mailqueue.scope import SeenFacts
from postroad.controller.pods.upgrades import Upgrades
from postroad.controller.reads import Indexes, key_of
from postroad.controller.spec.cluster import QueueClusterSpec
from postroad.controller.spec.queue_resource import Queue, asks_to_rotate, cluster_of_pods
from postroad.controller.status.attempts import attempt
from postroad.controller.status.conditions import BLOBS_READY, BROKER_READY, VIEW_READY, Finding
from postroad.domain.queues.broker_users import RotationPace
from postroad.ports.clock import Clock
from postroad.ports.kubernetes import Kubernetes, Object


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
    or no QueueCluster that it can use, and `finding` then is why; `scaled`: a change that
    autoscaling made since the last one, as a sentence for an Event."""

    found: Object
    seen: SeenFacts
    plan: QueuePlan | None
    finding: Finding
    scaled: str | None = None


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
            cluster = await self._clusters.for_queue(queue, begun=has_configuration(found))
        if attempted.finding.is_good:
            async with attempt(VIEW_READY, seconds=120) as attempted:
                await self._clusters.claims.check_keyspace(cluster.keyspace)
        if attempted.finding.is_good:
            seen = replace(seen, cluster=cluster.version)
            scaling = None if decided is None else decided.reason
            queue = queue if decided is None else queue.with_workers(decided.size)
            plan = plan_of(queue, cluster, found.get("status") or {}, scaling)
            self._autoscalers.keep(plan.view)
        scaled = self._autoscalers.announcement(found["metadata"]["uid"])
        return QueueFacts(found, seen, plan, attempted.finding, scaled)

    async def _scaled(self, found: Object, queue: Queue) -> tuple[Decided | None, timedelta | None]:
        """Return what autoscaling decided, and the time where another autoscaler decides: about a
        Deployment, or about a MailQueue, whose spec then has the number."""
        place = Key(DEPLOYMENT.name, queue.name.namespace, queue.name.name)
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
        decided = self._autoscalers.decided(queue, present, by_another=by_another)
        return decided, self._clock.elapsed() if by_another or foreign else None
