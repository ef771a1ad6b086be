"""Reconciles a QueueCluster: are its servers there, what can they do, are its tables made?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from postroad.controller import conditions as aspect
from postroad.controller.api import NAMESPACE, QUEUE_CLUSTER
from postroad.controller.api_server import ApiServer, Object
from postroad.controller.aspects import attempt
from postroad.controller.clusters import Cluster, Clusters
from postroad.controller.conditions import Finding, Truth, advice, failed, good, unknown
from postroad.controller.events import WARNING, Announcement
from postroad.controller.reporting import Reporter
from postroad.controller.status import Report, Status, composed
from postroad.domain.durations import format_duration
from postroad.ports.clock import Clock
from postroad.ports.servers import SAFE_COPIES, Checked

ASPECTS = {
    "rabbitmq": aspect.BROKER_READY,
    "cassandra": aspect.VIEW_READY,
    "s3": aspect.BLOBS_READY,
}
STILL_USED = timedelta(seconds=10)
"""How often a cluster that is to go is looked at, while queues still use it."""


class ClusterHealth:
    """Reconciles QueueClusters."""

    def __init__(
        self, api: ApiServer, clusters: Clusters, reporter: Reporter, clock: Clock
    ) -> None:
        self._api = api
        self._clusters = clusters
        self._reporter = reporter
        self._clock = clock

    async def look(self, found: Object) -> Status:
        """Check a QueueCluster, make its tables, and report. Raises: KubernetesError."""
        found = await self._reporter.hold(QUEUE_CLUSTER, found)
        report = Report()
        finding = await attempt("Spec", lambda: self._checked(found, report), seconds=120)
        if not finding.is_good:
            report.findings = [
                Finding(each, Truth.UNKNOWN, finding.reason, finding.message, finding.waits)
                for each in ASPECTS.values()
            ]
        before: Mapping[str, Any] = found.get("status") or {}
        generation = found["metadata"]["generation"]
        after = composed(before, report, generation, self._clock.now())
        await self._reporter.write(QUEUE_CLUSTER, found, after)
        return after

    async def end(self, found: Object) -> timedelta | None:
        """Let a QueueCluster go once no MailQueue uses it. The keyspace stays. In a namespace that
        goes away it waits for the queues of this namespace only."""
        metadata = found["metadata"]
        namespace, name = metadata["namespace"], metadata["name"]
        users = await self._clusters.queues(namespace, name)
        if users and await self._namespace_goes(namespace):
            users = [each for each in users if each["metadata"]["namespace"] == namespace]
        if not users:
            await self._reporter.let_go(QUEUE_CLUSTER, found)
            self._clusters.forget(metadata["uid"])
            return None
        await self._say_in_use(found, users)
        return STILL_USED

    async def _say_in_use(self, found: Object, users: Sequence[Object]) -> None:
        names = [f"{each['metadata']['namespace']}/{each['metadata']['name']}" for each in users]
        listed = ", ".join(sorted(names)[:5]) + (", …" if len(names) > 5 else "")
        message = f"{len(names)} MailQueues still use this cluster: {listed}"
        known = (found.get("status") or {}).get("conditions") or []
        if all(each["reason"] != "InUse" for each in known if each["type"] == aspect.READY):
            said = Announcement(WARNING, "InUse", message, "Delete")
            await self._reporter.announce(found, [said])
        report = Report([unknown(each, "InUse", message) for each in ASPECTS.values()])
        generation = found["metadata"]["generation"]
        before = found.get("status") or {}
        after = composed(before, report, generation, self._clock.now())
        await self._reporter.write(QUEUE_CLUSTER, found, after)

    async def _namespace_goes(self, namespace: str) -> bool:
        found = await self._api.get(NAMESPACE, None, namespace) or {}
        return "deletionTimestamp" in found.get("metadata", {})

    async def _checked(self, found: Object, report: Report) -> Finding:
        metadata = found["metadata"]
        report.fields["queues"] = len(
            await self._clusters.queues(metadata["namespace"], metadata["name"])
        )
        cluster = await self._clusters.open(found)
        checked = await cluster.servers.check()
        findings = {server: server_finding(server, each) for server, each in checked.items()}
        reached = findings["cassandra"]
        if reached.is_good:
            findings["cassandra"] = await attempt(
                aspect.VIEW_READY, lambda: self._made_tables(cluster, report, reached)
            )
        report.findings = [*findings.values(), durability(cluster, checked)]
        versions = {server: each.version for server, each in checked.items() if each.version}
        report.fields["versions"] = versions or None
        return good("Spec", "checked")

    async def _made_tables(self, cluster: Cluster, report: Report, reached: Finding) -> Finding:
        options = await self._clusters.make_tables(cluster)
        report.fields["tables"] = {
            "rowLifetime": format_duration(options.row_lifetime),
            "compactionWindow": format_duration(options.compaction_window),
            "gcGrace": format_duration(options.gc_grace),
        }
        message = f"{reached.message}; tables are there, in {cluster.spec.cassandra.keyspace}"
        return good(aspect.VIEW_READY, message)


def server_finding(server: str, checked: Checked) -> Finding:
    """Return what the check of one server says."""
    if checked.error is not None:
        return failed(ASPECTS[server], checked.error)
    return good(ASPECTS[server], f"{server} {checked.version} answers", "Reachable")


def durability(cluster: Cluster, checked: Mapping[str, Checked]) -> Finding:
    """Return whether accepted mail survives the loss of one machine, as far as it can be told: the
    object store says nothing about its copies. What the keyspace has counts, not what the spec
    wants: replication is applied only when the keyspace is made."""
    lacks = [f"{server}: {word}" for server, each in checked.items() for word in each.limits]
    unknown = [f"{server}: {word}" for server, each in checked.items() for word in each.unknown]
    unknown += [
        f"{server}: no answer"
        for server, each in checked.items()
        if each.error is not None and server != "s3"
    ]
    factor = cluster.spec.cassandra.replication.factor
    if factor < SAFE_COPIES:
        lacks.insert(0, f"cassandra: replication factor {factor} is below {SAFE_COPIES}")
    if lacks:
        return advice(aspect.DURABLE, "LimitedDurability", "; ".join(dict.fromkeys(lacks)))
    if unknown:
        said = f"not known of {'; '.join(unknown)}"
        return Finding(aspect.DURABLE, Truth.UNKNOWN, "NotAllKnown", said, advisory=True)
    return good(aspect.DURABLE, "accepted mail survives the loss of one machine", "Replicated")
