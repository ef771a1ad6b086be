"""Reconciles MailQueues in a line: facts, decision, deeds, status, one write.

The status is written last, from the findings, so that the next reconcile repairs a crash anywhere.
Source: ADR 0006, 0034.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from postroad.controller.cluster.clusters import Cluster, Clusters
from postroad.controller.cluster.finalizers import Finalizers
from postroad.controller.cluster.queue_logins import QueueLogins
from postroad.controller.cluster.quotas import has_configuration
from postroad.controller.kubernetes.api import MAIL_QUEUE, Key
from postroad.controller.mailqueue.children import QueueChildren
from postroad.controller.mailqueue.engines import Engines
from postroad.controller.mailqueue.figures import Turns, reported_figures
from postroad.controller.mailqueue.leftovers import Leftovers
from postroad.controller.mailqueue.scope import (
    LastReconcile,
    NextReconcile,
    Scope,
    SeenFacts,
    after_reconcile,
    decide,
    with_applied,
)
from postroad.controller.mailqueue.servers import SERVER_CONDITIONS, QueueServers
from postroad.controller.pods.upgrades import Upgrades
from postroad.controller.reads.indexes import Indexes, key_of
from postroad.controller.spec.mailqueue import MailQueueSpec
from postroad.controller.spec.queue_resource import PipelineProgram, Queue, asks_to_rotate
from postroad.controller.status import conditions as condition
from postroad.controller.status.attempts import attempt, count_error
from postroad.controller.status.conditions import Finding, Truth, advice, unknown
from postroad.controller.status.reconcile import ReconcileState
from postroad.controller.status.status import Report, composed, hash_of_spec, paused_report
from postroad.controller.status.status_writer import NORMAL, WARNING, Announcement, StatusWriter
from postroad.errors import KubernetesError, PostroadError
from postroad.ports.clock import Clock
from postroad.ports.kubernetes import Kubernetes, Object

PENDING_SECONDS = 2.0
"""After so long a first reconcile that goes on is reported: a write, and an event of the watch, for
which most take too short a time."""

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
        status_writer: StatusWriter,
        clock: Clock,
        engines: Engines,
        indexes: Indexes,
        turns: Turns,
        leftovers: Leftovers,
        image: str,
        interval: timedelta,
        upgrades: Upgrades,
        pipeline: PipelineProgram,
    ) -> None:
        self._indexes = indexes
        self._upgrades = upgrades
        self._leftovers = leftovers
        self._interval = interval
        self._clusters = clusters
        self._status_writer = status_writer
        self._finalizers = Finalizers(api, clusters)
        self._clock = clock
        self._engines = engines
        logins = QueueLogins(api, clusters, clock)
        self._servers = QueueServers(clusters, engines, clock, logins)
        self._children = QueueChildren(
            api, clusters.reads, image, upgrades, clusters.absences, clock, pipeline
        )
        self._turns = turns

    async def reconcile(self, found: Object, last: LastReconcile | None) -> LastReconcile | None:
        """Read the facts about a MailQueue, decide the scope, carry it out, and write the status;
        return what to compare the next reconcile with.

        Raises: KubernetesError; the next reconcile then has the same scope, or a wider one.
        """
        key, now = key_of(found), self._clock.elapsed()
        async with attempt(condition.READY) as released:
            found = await self._finalizers.release(found)
        facts = await self._read(key, found)
        due = decide(facts.found, facts.seen, last, now, self._interval)
        if due.scope is Scope.PAUSED or facts.resolved is None:
            self._upgrades.end(key)
        found, report = await self._reported(key, facts, due)
        if not released.finding.is_good:
            report.findings.append(released.finding)
        done = [Announcement(WARNING, "Repaired", each) for each in report.repairs]
        done += [Announcement(NORMAL, "UserSwitched", each) for each in report.switches]
        await self._status_writer.announce(found, done)
        written = await self._write(found, report)
        seen = with_applied(facts.seen, report.applied)
        return after_reconcile(due.scope, seen, written.get("status") or {}, last, now)

    async def _reported(
        self, key: Key, facts: QueueFacts, due: NextReconcile
    ) -> tuple[Object, Report]:
        """Carry out what is due; return the MailQueue as it is then, and the report."""
        if due.scope is not Scope.FULL:
            return await self._carry_out_next(facts, due)
        facts, failed = await self._prepared(key, facts)
        is_first = not (facts.found.get("status") or {}).get("conditions")
        carry_out = self._carry_out_first if is_first else self._carry_out_next
        found, report = await carry_out(facts, due)
        report.findings += failed
        return found, report

    async def _prepared(self, key: Key, facts: QueueFacts) -> tuple[QueueFacts, list[Finding]]:
        """Set the finalizer of a MailQueue whose deletion erases something, and take over what an
        earlier one of its name left behind, before anything is made of it. A failure is a finding
        about what has a configuration already, and stops all else."""
        if facts.resolved is None:
            return facts, []
        found, begun = facts.found, has_configuration(facts.found)
        async with attempt(condition.READY, seconds=120) as attempted:
            found = await self._finalizers.add(found, facts.resolved[1])
            if not begun:
                await self._leftovers.take_over(f"{key.namespace}.{key.name}")
        failed = [] if attempted.finding.is_good else [attempted.finding]
        if failed and not begun:
            return replace(facts, resolved=None, finding=attempted.finding), []
        return replace(facts, found=found), failed

    async def _carry_out_next(self, facts: QueueFacts, due: NextReconcile) -> tuple[Object, Report]:
        return facts.found, await self._carry_out(facts, due)

    async def _carry_out_first(
        self, facts: QueueFacts, due: NextReconcile
    ) -> tuple[Object, Report]:
        """Carry out the first full reconcile, which may take minutes: the status is `Pending`
        meanwhile, where it takes longer than a moment."""
        found = facts.found
        working = asyncio.create_task(self._carry_out(facts, due))
        try:
            await asyncio.wait({working}, timeout=PENDING_SECONDS)
            if not working.done():
                with suppress(KubernetesError):  # the status that follows meets it again
                    found = await self._write(found, pending_report())
            return found, await working
        finally:
            working.cancel()

    async def _write(self, found: Object, report: Report) -> Object:
        """Compose the status and write it; return the MailQueue as it is then."""
        before, generation = found.get("status") or {}, found["metadata"]["generation"]
        after = composed(before, report, generation, self._clock.now())
        return await self._status_writer.write(MAIL_QUEUE, found, after)

    async def _read(self, key: Key, found: Object) -> QueueFacts:
        children, may_roll = self._indexes.children_of(key), self._upgrades.is_granted(key)
        generation, rotate = found["metadata"]["generation"], asks_to_rotate(found)
        seen = SeenFacts(generation, None, children, may_roll, rotate)
        async with attempt("Spec", seconds=120) as attempted:
            queue = Queue.of(found)
            begun = has_configuration(found)
            cluster = await self._clusters.for_queue(queue, begun=begun)
        if attempted.finding.is_good:
            async with attempt(condition.VIEW_READY, seconds=120) as attempted:
                await self._clusters.claims.check_keyspace(cluster)
        if not attempted.finding.is_good:
            return QueueFacts(found, seen, None, attempted.finding)
        return QueueFacts(
            found, replace(seen, cluster=cluster.stamp), (queue, cluster), attempted.finding
        )

    async def _carry_out(self, facts: QueueFacts, due: NextReconcile) -> Report:
        found = facts.found
        before = found.get("status") or {}
        match due.scope:
            case Scope.FULL:
                report = Report(fields={"specHash": hash_of_spec(found["spec"])})
                report.fields["operatorClass"] = self._clusters.operator_class
            case Scope.CHILDREN:
                report = Report(kept_findings(before))
            case Scope.FIGURES:
                report = Report(replaced=frozenset())
            case Scope.PAUSED:
                report = paused_report(before, found["spec"])
        if facts.resolved is None:
            if due.scope is Scope.FULL:
                report.findings = blocked(facts.finding)
            return report
        queue, cluster = facts.resolved
        state = ReconcileState(queue, before, report, expected=due.expected)
        if due.scope is Scope.FULL:
            await self._make_all(cluster, state)
        elif due.scope is Scope.CHILDREN:
            state.configured = True
            await self._make_children(cluster, state)
        else:
            report.fields |= await self._measured(cluster, state)
        return report

    async def _make_all(self, cluster: Cluster, state: ReconcileState) -> None:
        report = state.report
        async with attempt("Spec", seconds=300) as attempted:
            state.configured = "configuration" in state.before
            report.findings += await self._servers.ask(cluster, state)
            await self._make_children(cluster, state)
            if state.configured:
                report.fields |= await self._measured(cluster, state)
        if not attempted.finding.is_good:
            report.findings = blocked(attempted.finding)

    async def _make_children(self, cluster: Cluster, state: ReconcileState) -> None:
        state.report.findings += await self._children.make(cluster, state)
        state.report.findings += advised(state.queue.spec)

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


def pending_report() -> Report:
    """Return what is written while the first full reconcile goes on."""
    message = "the operator has begun to reconcile this queue"
    types = (*KEPT, condition.WORKERS_READY)
    return Report([unknown(each, condition.PENDING, message) for each in types])


def advised(spec: MailQueueSpec) -> list[Finding]:
    """Return the advice that follows from a spec alone."""
    found = []
    if spec.intake is not None and spec.intake.is_open_relay:
        message = (
            "spec.intake.relayFrom contains the whole Internet: every client that reaches the "
            "intake may send to any recipient; name only the networks of your own clients"
        )
        found.append(advice(condition.RELAY_RESTRICTED, "OpenRelay", message))
    return found


def kept_findings(before: Mapping[str, Any]) -> list[Finding]:
    """Return the findings of the last full reconcile about servers and configuration: they were
    good."""
    return [
        Finding(each["type"], Truth(each["status"]), each["reason"], each["message"])
        for each in before.get("conditions") or []
        if each["type"] in KEPT
    ]


def blocked(finding: Finding) -> list[Finding]:
    """Return the finding that stopped a reconcile for every condition: of the others than its own
    nothing is known."""
    unknown = replace(finding, truth=Truth.UNKNOWN)
    return [
        finding if each == finding.condition else replace(unknown, condition=each)
        for each in (*KEPT, condition.WORKERS_READY)
    ]
