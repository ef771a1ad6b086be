"""Reconciles MailQueues in a line: facts, decision, deeds, status, one write.

The status is written last, from the findings, so that the next reconcile repairs a crash anywhere.
Source: ADR 0006, 0034."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

from postroad.controller.cluster.finalizers import Finalizers
from postroad.controller.cluster.users import has_configuration
from postroad.controller.kubernetes.api import MAIL_QUEUE
from postroad.controller.mailqueue.children import QueueChildren, stopped_report
from postroad.controller.mailqueue.orphans import OrphanList
from postroad.controller.mailqueue.plan import (
    FactsReader,
    LastReconcile,
    NextReconcile,
    QueueFacts,
    QueuePlan,
    Scope,
    after_reconcile,
    decide,
    with_applied,
)
from postroad.controller.mailqueue.provisioning import SERVER_CONDITIONS, QueueServers
from postroad.controller.mailqueue.queue_metrics import QueueMetrics
from postroad.controller.reads import key_of
from postroad.controller.spec.mailqueue import MailQueueSpec
from postroad.controller.status import conditions as condition
from postroad.controller.status.conditions import (
    Finding,
    Report,
    Truth,
    advice,
    attempt,
    composed,
    hash_of_spec,
    paused_report,
    unknown,
)
from postroad.controller.status.status_writer import NORMAL, WARNING, Announcement, StatusWriter
from postroad.errors import KubernetesError
from postroad.ports.clock import Clock
from postroad.ports.kubernetes import Object

PENDING_SECONDS = 2.0
"""After so long a first reconcile that goes on is reported: a write, and an event of the watch, for
which most take too short a time."""

KEPT = (condition.CONFIGURATION_ACCEPTED, *SERVER_CONDITIONS)


class Queues:
    """Reconciles MailQueues. `interval` is the time between full reconciles."""

    def __init__(
        self,
        reader: FactsReader,
        servers: QueueServers,
        children: QueueChildren,
        metrics: QueueMetrics,
        finalizers: Finalizers,
        orphans: OrphanList,
        status_writer: StatusWriter,
        clock: Clock,
        interval: timedelta,
    ) -> None:
        self._reader = reader
        self._servers = servers
        self._children = children
        self._metrics = metrics
        self._finalizers = finalizers
        self._orphans = orphans
        self._status_writer = status_writer
        self._clock = clock
        self._interval = interval

    async def reconcile(self, found: Object, last: LastReconcile | None) -> LastReconcile | None:
        """Read the facts about a MailQueue, decide the scope, carry it out, and write the status;
        return what to compare the next reconcile with. Raises: KubernetesError; the next reconcile
        then has the same scope, or a wider one."""
        now = self._clock.elapsed()
        async with attempt(condition.READY) as released:
            found = await self._finalizers.release(found)
        facts = await self._reader.read(found)
        due = decide(found, facts.seen, last, now, self._interval)
        if due.scope is Scope.PAUSED or facts.plan is None:
            self._children.leave(key_of(found))
        found, report = await self._reported(facts, due)
        if not released.finding.is_good:
            report += Report([released.finding])
        done = [Announcement(WARNING, "Repaired", each) for each in report.repairs]
        done += [Announcement(NORMAL, "UserSwitched", each) for each in report.switches]
        done += [Announcement(NORMAL, "Scaled", facts.scaled)] if facts.scaled else []
        await self._status_writer.announce(found, done)
        written = await self._write(found, report)
        seen = with_applied(facts.seen, report.applied)
        return after_reconcile(due.scope, seen, written.get("status") or {}, last, now)

    async def _reported(self, facts: QueueFacts, due: NextReconcile) -> tuple[Object, Report]:
        """Carry out what is due; return the MailQueue as it is then, and the report."""
        if due.scope is not Scope.FULL:
            return facts.found, await self._carry_out(facts, due)
        facts, failed = await self._prepared(facts)
        if (facts.found.get("status") or {}).get("conditions"):
            return facts.found, await self._carry_out(facts, due) + failed
        found, report = await self._carry_out_first(facts, due)
        return found, report + failed

    async def _prepared(self, facts: QueueFacts) -> tuple[QueueFacts, Report]:
        """Set the finalizer of a MailQueue whose deletion erases something, and take over what an
        earlier one of its name left behind, before anything is made of it. A failure is a finding
        about what has a configuration already, and stops all else."""
        if facts.plan is None:
            return facts, Report()
        found, begun = facts.found, has_configuration(facts.found)
        async with attempt(condition.READY, seconds=120) as attempted:
            found = await self._finalizers.add(found)
            if not begun:
                await self._orphans.take_over(str(facts.plan.place.name))
        if attempted.finding.is_good:
            return replace(facts, found=found), Report()
        if not begun:
            return replace(facts, plan=None, finding=attempted.finding), Report()
        return replace(facts, found=found), Report([attempted.finding])

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

    async def _carry_out(self, facts: QueueFacts, due: NextReconcile) -> Report:
        spec, plan = facts.found["spec"], facts.plan
        before = facts.found.get("status") or {}
        match due.scope:
            case Scope.FULL:
                names = {"operatorClass": self._reader.operator_class}
                deletion = {"deletion": None}  # of a backup; believed, nothing would be erased
                report = Report(fields={"specHash": hash_of_spec(spec), **names, **deletion})
                if plan is None:
                    return report + Report(blocked(facts.finding))
                return await self._make_all(plan, due, report)
            case Scope.CHILDREN:
                report = Report(kept_findings(before))
                if plan is None:
                    return report
                return report + await self._make_children(plan, due, configured=True)
            case Scope.METRICS | Scope.PAUSED:
                is_paused = due.scope is Scope.PAUSED
                report = paused_report(before, spec) if is_paused else Report(replaced=frozenset())
                return report if plan is None else report + await self._measured(plan)

    async def _make_all(self, plan: QueuePlan, due: NextReconcile, report: Report) -> Report:
        async with attempt("Spec", seconds=300) as attempted:
            prepared = await self._servers.prepare(plan)
            report += prepared.report
            if prepared.stopped is not None:
                self._children.leave(plan.workloads.queue.key)
                return report + stopped_report(plan.workloads.queue.spec, prepared.stopped)
            report += await self._make_children(
                plan, due, configured=prepared.configured, may_upgrade=prepared.may_upgrade
            )
            if prepared.configured:
                report += await self._measured(plan)
        if attempted.finding.is_good:
            return report
        return replace(report, findings=blocked(attempted.finding))

    async def _make_children(
        self,
        plan: QueuePlan,
        due: NextReconcile,
        *,
        configured: bool,
        may_upgrade: bool = True,
    ) -> Report:
        made = await self._children.make(
            plan.workloads, due.expected, configured=configured, may_upgrade=may_upgrade
        )
        return made + Report(advised(plan.workloads.queue.spec))

    async def _measured(self, plan: QueuePlan) -> Report:
        return Report(fields=await self._metrics.fields(plan.view))


def pending_report() -> Report:
    """Return what is written while the first full reconcile goes on."""
    message = "the operator has begun to reconcile this queue"
    types = (*KEPT, condition.WORKERS_READY)
    return Report([unknown(each, condition.PENDING, message) for each in types])


def advised(spec: MailQueueSpec) -> list[Finding]:
    """Return the advice that follows from a spec alone."""
    found = []
    if spec.intake is not None and (names := spec.intake.open_relays):
        message = (
            f"`from` of {', '.join(names)} in spec.intake.listeners contains the whole Internet: "
            "every client that reaches it may send to any recipient; name only the networks of "
            "your own clients"
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
