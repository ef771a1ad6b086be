"""Reconciles QueueClusters: checks their servers, creates their tables, writes their status."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from postroad.controller.cluster.clusters import (
    CONDITIONS,
    WATCHED_NAMESPACES,
    Clusters,
    assigned_elsewhere,
    is_assigned_elsewhere,
    watched_namespaces,
)
from postroad.controller.cluster.consoles import Consoles
from postroad.controller.cluster.finalizers import Finalizers
from postroad.controller.cluster.plans import KeyspacePlan
from postroad.controller.cluster.queue_logins import QueueLogins
from postroad.controller.kubernetes.api import NAMESPACE, QUEUE_CLUSTER, Key, log_repair
from postroad.controller.pods.upgrades import Upgrades, named
from postroad.controller.reads import User, key_of
from postroad.controller.spec.cluster import pace_of
from postroad.controller.spec.parts import allowed_by
from postroad.controller.status import conditions as condition
from postroad.controller.status.conditions import (
    CONFLICT,
    Finding,
    Report,
    Status,
    Truth,
    advice,
    attempt,
    bad,
    condition_of,
    failed,
    good,
    hash_of_spec,
    shortened,
    unknown,
)
from postroad.controller.status.status_writer import WARNING, Announcement, StatusWriter
from postroad.domain.values.instants import format_duration
from postroad.ports.clock import Clock
from postroad.ports.kubernetes import Kubernetes, Object
from postroad.ports.servers import Checked
from postroad.ports.view import SchemaChanges

STILL_USED = timedelta(seconds=10)
"""Interval of the checks whether queues still use a cluster that is being deleted."""

MAIL_TABLES = frozenset(
    {
        "configuration_events",
        "dead_letters",
        "deleted_mails",
        "deliveries",
        "enqueued_mails",
        "limits",
        "slices",
    }
)
"""Tables of every release, whose loss loses mail or what is known of it. A later table is missing
after an upgrade too."""


class ClusterHealth:
    """Reconciles QueueClusters."""

    def __init__(
        self,
        api: Kubernetes,
        clusters: Clusters,
        status_writer: StatusWriter,
        clock: Clock,
        upgrades: Upgrades,
        consoles: Consoles,
    ) -> None:
        self._api = api
        self._consoles = consoles
        self._upgrades = upgrades
        self._clusters = clusters
        self._status_writer = status_writer
        self._finalizers = Finalizers(api, clusters)
        self._logins = QueueLogins(api, clusters, clock)
        self.answers: dict[str, Mapping[str, bool]] = {}
        """Servers of each QueueCluster that answered when they were last checked."""

    async def keep(self, found: Object) -> Object | None:
        """Record in the status of a QueueCluster that this operator keeps it; return it as it is
        then; None when another operator keeps it: an Event reports that once. Raises:
        KubernetesConflict when another process was first, KubernetesError."""
        namespaces, before = self._clusters.namespaces, found.get("status") or {}
        if is_assigned_elsewhere(found, namespaces):
            conflict = assigned_elsewhere(found, namespaces)
            event = Announcement(WARNING, CONFLICT, conflict.explain(), once=True)
            await self._status_writer.announce(found, [event])
            return None
        after = {**before, WATCHED_NAMESPACES: watched_namespaces(namespaces)}
        return await self._status_writer.write(QUEUE_CLUSTER, found, after)

    async def reconcile(self, found: Object) -> Status:
        """Check the servers of a QueueCluster, create its tables, write and return its status.
        Raises: KubernetesError."""
        report = Report()
        async with attempt(condition.READY) as held:
            found = await self._finalizers.add_or_release_cluster(found)
        async with attempt("Spec", seconds=120) as attempted:
            report = await self._check(found)
        finding = attempted.finding
        if not finding.is_good:
            unknown = replace(finding, truth=Truth.UNKNOWN)
            report = Report([replace(unknown, condition=each) for each in CONDITIONS.values()])
        if not held.finding.is_good:
            report += Report([held.finding])
        report += self._report_upgrade(found) + reported_pause(found)
        written = await self._status_writer.report(QUEUE_CLUSTER, found, report)
        return written.get("status") or {}

    def _report_upgrade(self, found: Object) -> Report:
        metadata = found["metadata"]
        key = Key(QUEUE_CLUSTER.name, metadata["namespace"], metadata["name"])
        progress = self._upgrades.progress(key)
        counts = {"waiting": progress.waiting, "rolling": len(progress.rolling)}
        fields = {"upgrade": None if progress.is_over else counts}
        return Report([progress.finding(pace_of(found).at_once)], fields)

    async def notices_a_change(self, found: Object) -> bool:
        """True if a Secret of a QueueCluster has changed, another server than is known answers, or
        one answers no longer. Raises: KubernetesUnavailable."""
        uid = found["metadata"]["uid"]
        known = self._clusters.facts.of(uid)
        if known is None:
            return False
        if await self._clusters.has_new_secrets(found):
            return True
        checked = await self._clusters.check(uid, brief=True)
        if checked is None:
            return False
        self.answers[uid] = answers_of(checked)
        return self.answers[uid] != known.answers

    async def end(self, found: Object) -> timedelta | None:
        """Remove the finalizer of a QueueCluster that no MailQueue's deletion needs; the keyspace
        stays. Return when to check again, None when it is done. In a namespace that is being
        deleted, only the MailQueues of this namespace count, because those of others cannot hold it
        up for ever."""
        namespace = found["metadata"]["namespace"]
        users = await self._finalizers.holders(found)
        if users and await self._is_namespace_deleted(namespace):
            users = [each for each in users if each["metadata"]["namespace"] == namespace]
        if not users:
            await self._finalizers.remove(QUEUE_CLUSTER, found)
            return None
        await self._report_in_use(found, users)
        return STILL_USED

    async def _report_in_use(self, found: Object, users: Sequence[Object]) -> None:
        listed = named(map(key_of, users))
        message = f"{len(users)} MailQueues with deletionPolicy Delete use this cluster: {listed}"
        ready = condition_of(found.get("status") or {}, condition.READY)
        if ready.get("reason") != "InUse":
            in_use = Announcement(WARNING, "InUse", message, "Delete")
            await self._status_writer.announce(found, [in_use])
        report = Report([unknown(each, "InUse", message) for each in CONDITIONS.values()])
        await self._status_writer.report(QUEUE_CLUSTER, found, report)

    async def _is_namespace_deleted(self, namespace: str) -> bool:
        found = await self._api.get(NAMESPACE, None, namespace) or {}
        return "deletionTimestamp" in found.get("metadata", {})

    async def _check(self, found: Object) -> Report:
        metadata, fields, console = found["metadata"], dict[str, Any](), Report()
        place = metadata["namespace"], metadata["name"]
        cluster = await self._clusters.open(found)
        async with attempt(condition.READY) as counted:
            users = await self._clusters.users.allowed(*place, allowed_by(found))
            fields["queues"] = len(users)
            if not cluster.spec.paused:
                console = await self._consoles.keep(found, cluster, users)
        checked = await self._clusters.check(cluster.uid, brief=False) or {}
        self.answers[cluster.uid] = answers_of(checked)
        findings = {server: server_finding(server, each) for server, each in checked.items()}
        if findings["rabbitmq"].is_good and not cluster.spec.paused:
            async with attempt(condition.BROKER_READY) as cleaned:
                if cluster.spec.rabbitmq.users is not None:
                    await self._logins.delete_unused(cluster.holder, cluster.servers.queue_users())
                cleaned.finding = findings["rabbitmq"]
            findings["rabbitmq"] = cleaned.finding
        reached = findings["cassandra"]
        if reached.is_good and not cluster.spec.paused:
            async with attempt(condition.VIEW_READY) as attempted:
                attempted.finding, fields["tables"] = await self._made_tables(
                    cluster.keyspace, found, reached
                )
            findings["cassandra"] = attempted.finding
            if self._clusters.claims.conflict_of(cluster.uid):
                fields["tables"] = None  # they are another QueueCluster's
        fields["versions"] = versions_of(checked) or None
        about_all = [] if counted.finding.is_good else [counted.finding]
        advised = durability(checked), tried(checked)
        return Report([*findings.values(), *advised, *about_all], fields) + console

    async def _made_tables(
        self, plan: KeyspacePlan, found: Object, reached: Finding
    ) -> tuple[Finding, dict[str, str]]:
        """Make the tables; return also their options for the status."""
        options, changes = await self._clusters.make_tables(plan)
        before = (found.get("status") or {}).get("tables")
        now = {
            "rowLifetime": format_duration(options.row_lifetime),
            "compactionWindow": format_duration(options.compaction_window),
            "gcGrace": format_duration(options.gc_grace),
        }
        if undone := undone_alterations(before, now, changes):
            log_repair("options", tables=changes.altered)
            await self._status_writer.announce(found, [Announcement(WARNING, "Repaired", undone)])
        if lost := lost_tables(before, changes):
            log_repair("tables", tables=changes.created)
            return bad(condition.VIEW_READY, "TablesWereGone", lost, retryable=True), now
        message = f"{reached.message}; its tables exist in {plan.cassandra.keyspace}"
        return good(condition.VIEW_READY, message), now


def reported_pause(found: Object) -> Report:
    """Return the report about a pause. Ready is Unknown where the spec has changed since."""
    spec, known = hash_of_spec(found["spec"]), (found.get("status") or {}).get("specHash")
    if not found["spec"].get("paused"):
        return Report(fields={"specHash": spec})
    message = "spec.paused is true: no tables, users and pods are changed until it is false"
    findings = [Finding(condition.PAUSED, Truth.TRUE, condition.PAUSED_BY_USER, message)]
    if known != spec:
        message = f"{message}; until then no change of the spec is carried out"
        findings.append(unknown(condition.READY, condition.PAUSED_BY_USER, message))
    return Report(findings)


def left_in_use(deleted: Object, users: Collection[User]) -> list[Announcement]:
    """Return the Event about a QueueCluster that was deleted while MailQueues use it."""
    if deleted["kind"] != QUEUE_CLUSTER.name or not users:
        return []
    note = (
        f"{len(users)} MailQueues refer to this QueueCluster, which is deleted: "
        f"{named(each.key for each in users)}; their pods go on, and its keyspace stays theirs: "
        "create it again, or delete them"
    )
    return [Announcement(WARNING, "InUse", note, "Delete", once=True)]


def answers_of(checked: Mapping[str, Checked]) -> dict[str, bool]:
    return {server: each.error is None for server, each in checked.items()}


def server_finding(server: str, checked: Checked) -> Finding:
    if checked.error is not None:
        return failed(CONDITIONS[server], checked.error)
    return good(CONDITIONS[server], f"{server} {checked.version} answers", "Reachable")


def durability(checked: Mapping[str, Checked]) -> Finding:
    """Return whether accepted mail survives the loss of one machine, as far as RabbitMQ and
    Cassandra report it; object stores do not report their copies. The replication that the keyspace
    has counts, not that of the spec, by which it was created."""
    lacks = [f"{server}: {word}" for server, each in checked.items() for word in each.limits]
    unknown = [f"{server}: {word}" for server, each in checked.items() for word in each.unknown]
    unknown += [
        f"{server}: no answer"
        for server, each in checked.items()
        if each.error is not None and server != "s3"
    ]
    if lacks:
        return advice(condition.DURABLE, "LimitedDurability", "; ".join(dict.fromkeys(lacks)))
    if unknown:
        message = f"not known of {'; '.join(unknown)}"
        return Finding(condition.DURABLE, Truth.UNKNOWN, "NotAllKnown", message, advisory=True)
    return good(condition.DURABLE, "accepted mail survives the loss of one machine", "Replicated")


def lost_tables(before: Mapping[str, object] | None, changes: SchemaChanges) -> str | None:
    """Return a message about tables that were dropped, None when none was. `before`: the tables'
    options that the status had."""
    lost = sorted(MAIL_TABLES.intersection(changes.created)) if before else []
    if not lost:
        return None
    return (
        f"tables were gone and are made anew, empty: {', '.join(lost)}; restore them from a backup "
        "where their mail still waited"
    )


def undone_alterations(
    before: Mapping[str, object] | None, now: Mapping[str, object], changes: SchemaChanges
) -> str | None:
    """Return a message about options that this QueueCluster did not alter; None: all its own."""
    if before != now or not changes.altered:
        return None
    tables = ", ".join(changes.altered)
    return (
        "options of tables were altered, by hand or by another QueueCluster over this keyspace, "
        f"and are as declared here again: {tables}"
    )


TRIED: Mapping[str, tuple[str, ...]] = {
    "rabbitmq": ("3.10", "4.0", "4.3"),
    "cassandra": ("4.1", "5.0"),
}
"""Series of versions that the tests ran with: docs/versions.md. Object stores report none."""

MAX_VERSION = 128
"""Characters of a server's version; the CRD allows no more."""

_SERIES = re.compile(r"\d+\.\d+(?!\d)")


def versions_of(checked: Mapping[str, Checked]) -> dict[str, str]:
    """Return the version of each server that reported one, as the status has it."""
    found = {server: each.version for server, each in checked.items() if each.version}
    return {server: shortened(version, MAX_VERSION) for server, version in found.items()}


def tried(checked: Mapping[str, Checked]) -> Finding:
    """Return whether the tests of this release ran with the servers' versions. A fix release within
    a series counts as tried."""
    found = versions_of(checked)
    others = [
        f"{server} {found[server]}: tried with {', '.join(series)}"
        for server, series in TRIED.items()
        if server in found and _series(found[server]) not in series
    ]
    if others:
        message = f"this release was never tried with {'; '.join(others)}"
        return advice(condition.VERSIONS_TRIED, "NeverTried", message)
    if unknown := [server for server in TRIED if server not in found]:
        message = f"not known of {', '.join(unknown)}"
        return Finding(
            condition.VERSIONS_TRIED, Truth.UNKNOWN, "NotAllKnown", message, advisory=True
        )
    return good(condition.VERSIONS_TRIED, "this release was tried with these versions", "Tried")


def _series(version: str) -> str:
    found = _SERIES.match(version)
    return found[0] if found else ""
