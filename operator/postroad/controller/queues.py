"""Reconciles MailQueues in a line: facts, decision, deeds, status, one write.

The status is written last, from the findings, so that the next reconcile repairs a crash anywhere.
Source: ADR 0006, 0034.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from postroad.controller import conditions as condition
from postroad.controller.api import MAIL_QUEUE, Key
from postroad.controller.attempts import attempt, count_error
from postroad.controller.clusters import Cluster, Clusters
from postroad.controller.conditions import Finding, Truth, advice, unknown
from postroad.controller.engines import Engines
from postroad.controller.figures import Turns, reported_figures
from postroad.controller.finalizers import Finalizers
from postroad.controller.leftovers import Leftovers
from postroad.controller.queue_children import QueueChildren
from postroad.controller.queue_resource import Queue
from postroad.controller.queue_servers import SERVER_CONDITIONS, QueueServers, ReconcileState
from postroad.controller.quotas import has_configuration
from postroad.controller.reporting import WARNING, Announcement, Reporter
from postroad.controller.scope import (
    LastReconcile,
    Scope,
    SeenFacts,
    after_reconcile,
    expected_children,
    scope_of,
)
from postroad.controller.status import (
    Report,
    Status,
    composed,
    composed_paused,
    hash_of_spec,
    with_fields,
)
from postroad.controller.upgrades import Upgrades
from postroad.controller.watched import Indexes
from postroad.errors import PostroadError
from postroad.ports.clock import Clock
from postroad.ports.kubernetes import Kubernetes, Object

KEPT = (condition.CONFIGURATION_ACCEPTED, *SERVER_CONDITIONS)


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """What a reconcile read of a MailQueue. `resolved`: its spec and its QueueCluster; None where
    it has none that it can use, and `finding` then is why."""

    found: Object
    seen: SeenFacts
    resolved: tuple[Queue, Cluster] | None
    finding: Finding


class Queues:
    """Reconciles MailQueues. `image` is what workers and intake run; `interval` is the time between
    full reconciles."""

    def __init__(
        self,
        api: Kubernetes,
        clusters: Clusters,
        reporter: Reporter,
        clock: Clock,
        engines: Engines,
        indexes: Indexes,
        turns: Turns,
        leftovers: Leftovers,
        image: str,
        interval: timedelta,
        upgrades: Upgrades,
    ) -> None:
        self._indexes = indexes
        self._upgrades = upgrades
        self._leftovers = leftovers
        self._interval = interval
        self._clusters = clusters
        self._reporter = reporter
        self._finalizers = Finalizers(api, clusters)
        self._clock = clock
        self._engines = engines
        self._servers = QueueServers(clusters, engines, clock)
        self._children = QueueChildren(api, clusters.reads, image, upgrades)
        self._turns = turns

    async def reconcile(self, found: Object, last: LastReconcile | None) -> LastReconcile | None:
        """Read the facts about a MailQueue, decide the scope, carry it out, and write the status;
        return what to compare the next reconcile with.

        Raises: KubernetesError; the next reconcile then has the same scope, or a wider one.
        """
        now = self._clock.elapsed()
        facts = await self._read(await self._finalizers.release(found))
        scope = scope_of(facts.found, facts.seen, last, now, self._interval)
        if scope is Scope.PAUSED or facts.resolved is None:
            self._upgrades.end(key_of(facts.found))
        if scope is Scope.FULL and not (facts.found.get("status") or {}).get("conditions"):
            metadata = facts.found["metadata"]
            await self._leftovers.take_over(f"{metadata['namespace']}.{metadata['name']}")
            facts = replace(facts, found=await self._report_pending(facts.found))
        found, report = await self._carry_out(scope, facts, expected_children(facts.seen, last))
        repairs = [Announcement(WARNING, "Repaired", each) for each in report.repairs]
        await self._reporter.announce(found, repairs)
        written = await self._reporter.write(
            MAIL_QUEUE, found, self._composed(scope, found, report)
        )
        return after_reconcile(scope, facts.seen, written.get("status") or {}, last, now)

    async def _read(self, found: Object) -> QueueFacts:
        metadata, key = found["metadata"], key_of(found)
        children, may_roll = self._indexes.children_of(key), self._upgrades.is_granted(key)
        seen = SeenFacts(metadata["generation"], None, children, may_roll)
        resolved = None
        async with attempt("Spec", seconds=120) as attempted:
            queue = Queue.of(found)
            begun = has_configuration(found)
            cluster = await self._clusters.for_queue(queue, begun=begun)
            seen, resolved = replace(seen, cluster=cluster.stamp), (queue, cluster)
        return QueueFacts(found, seen, resolved, attempted.finding)

    async def _carry_out(
        self, scope: Scope, facts: QueueFacts, expected: frozenset[tuple[str, str]]
    ) -> tuple[Object, Report]:
        """Return the MailQueue as it is then, and the report."""
        report = Report()
        if scope is Scope.FULL:
            report.fields["specHash"] = hash_of_spec(facts.found["spec"])
            report.fields["operatorClass"] = self._clusters.operator_class
        if facts.resolved is None:
            report.findings = blocked(facts.finding)
            return facts.found, report
        queue, cluster = facts.resolved
        before = facts.found.get("status") or {}
        state = ReconcileState(queue, before, report, expected=expected)
        if scope is Scope.FULL:
            return await self._make_all(facts.found, cluster, state), report
        if scope is Scope.CHILDREN:
            state.configured = True
            report.findings = kept_findings(state.before)
            await self._make_children(cluster, state)
        else:
            report.fields |= await self._measured(cluster, state)
        return facts.found, report

    async def _make_all(self, found: Object, cluster: Cluster, state: ReconcileState) -> Object:
        """Make all of a MailQueue; return it with its finalizer, which comes first."""
        report = state.report
        async with attempt("Spec", seconds=300) as attempted:
            found = await self._finalizers.hold(found, cluster)
            state.configured = "configuration" in state.before
            report.findings += await self._servers.ask(cluster, state)
            await self._make_children(cluster, state)
            if state.configured:
                report.fields |= await self._measured(cluster, state)
        if not attempted.finding.is_good:
            report.findings = blocked(attempted.finding)
        return found

    async def _make_children(self, cluster: Cluster, state: ReconcileState) -> None:
        state.report.findings += await self._children.make(cluster, state)
        state.report.findings += self._advice(state.queue)

    async def _report_pending(self, found: Object) -> Object:
        """Write conditions at once, because the first full reconcile may take minutes."""
        message = "the operator has begun to reconcile this queue"
        pending = [
            unknown(each, condition.PENDING, message) for each in (*KEPT, condition.WORKERS_READY)
        ]
        generation = found["metadata"]["generation"]
        after = composed({}, Report(pending), generation, self._clock.now())
        return await self._reporter.write(MAIL_QUEUE, found, after)

    def _advice(self, queue: Queue) -> list[Finding]:
        found = []
        if queue.spec.pipeline is not None:
            message = "this release runs no Spark jobs and ignores spec.pipeline"
            found.append(advice(condition.PIPELINE_READY, "NotSupported", message))
        if queue.spec.intake is not None and queue.spec.intake.is_open_relay:
            message = (
                "spec.intake.relayFrom contains the whole Internet: every client that reaches the "
                "intake may send to any recipient; name only the networks of your own clients"
            )
            found.append(advice(condition.RELAY_RESTRICTED, "OpenRelay", message))
        return found

    async def _measured(self, cluster: Cluster, state: ReconcileState) -> dict[str, Any]:
        """Return the fields for new figures; none before their turn, and while `ViewReady` is why
        there are none."""
        queue, before = state.queue, state.before
        due = "figuresAt" not in before or self._turns.is_due(queue.key, self._clock.elapsed())
        if not due or condition.VIEW_READY in cluster.away:
            return {}
        try:
            bucket = queue.bucket(cluster.spec)
            figures = await self._engines.figures(cluster.servers, queue, bucket)
        except (PostroadError, TimeoutError) as error:
            count_error("cassandra", error)
            slow = isinstance(error, TimeoutError)
            return {"figuresError": "TooSlow" if slow else type(error).__name__}
        return reported_figures(before, figures, self._clock.now())

    def _composed(self, scope: Scope, found: Object, report: Report) -> Status:
        before, generation = found.get("status") or {}, found["metadata"]["generation"]
        if scope is Scope.FIGURES:
            return with_fields(before, report.fields)
        now = self._clock.now()
        if scope is Scope.PAUSED:
            return composed_paused(before, found["spec"], report.fields, generation, now)
        return composed(before, report, generation, now)


def kept_findings(before: Mapping[str, Any]) -> list[Finding]:
    """Return the findings of the last full reconcile about servers and configuration: they were
    good."""
    return [
        Finding(each["type"], Truth(each["status"]), each["reason"], each["message"])
        for each in before.get("conditions") or []
        if each["type"] in KEPT
    ]


def blocked(finding: Finding) -> list[Finding]:
    """Return the finding that stopped a reconcile for every condition."""
    return [
        Finding(each, Truth.UNKNOWN, finding.reason, finding.message, finding.retryable)
        for each in (*KEPT, condition.WORKERS_READY)
    ]


def key_of(found: Object) -> Key:
    """Return the key of a MailQueue."""
    metadata = found["metadata"]
    return Key(MAIL_QUEUE.name, metadata["namespace"], metadata["name"])
