"""Reads what a reconcile of a MailQueue depends on."""

from dataclasses import dataclass, replace

from postroad.controller.cluster.clusters import Clusters
from postroad.controller.cluster.quotas import has_configuration
from postroad.controller.mailqueue.plan import QueuePlan, plan_of
from postroad.controller.mailqueue.scope import SeenFacts
from postroad.controller.pods.upgrades import Upgrades
from postroad.controller.reads import Indexes, key_of
from postroad.controller.spec.queue_resource import Queue, asks_to_rotate
from postroad.controller.status.attempts import attempt
from postroad.controller.status.conditions import VIEW_READY, Finding
from postroad.ports.kubernetes import Object


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
