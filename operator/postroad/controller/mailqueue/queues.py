"""Reconciles MailQueues in a line: facts, decision, deeds, status, one write.

The status is written last, from the findings, so that the next reconcile repairs a crash anywhere.
Source: ADR 0006, 0034.

What a MailQueue needs on its servers goes first: queues, bucket, tables, configuration. This is
recorded in the view's history before the operator acts on it, so that after a crash between any two
steps the history shows what is left to do. Source: ADR 0005."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar

from postroad.batching import together
from postroad.configuration import settle
from postroad.controller.cluster.claims import QueueClaims
from postroad.controller.cluster.clusters import Clusters
from postroad.controller.cluster.finalizers import Finalizers
from postroad.controller.cluster.plans import (
    BrokerPlan,
    BucketPlan,
    QueuePlace,
    ViewPlan,
    refused_by_lifetime,
)
from postroad.controller.cluster.queue_logins import QueueLogins, UserChanges
from postroad.controller.cluster.users import has_configuration
from postroad.controller.kubernetes.api import MAIL_QUEUE, log_repair
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
from postroad.controller.mailqueue.queue_metrics import Engines, QueueMetrics
from postroad.controller.reads import key_of
from postroad.controller.spec.mailqueue import MailQueueSpec
from postroad.controller.status import conditions as condition
from postroad.controller.status.conditions import (
    CONFLICT,
    TOO_SLOW,
    Finding,
    Report,
    Status,
    Truth,
    advice,
    attempt,
    bad,
    good,
    hash_of_spec,
    paused_report,
    unknown,
)
from postroad.controller.status.status_writer import NORMAL, WARNING, Announcement, StatusWriter
from postroad.distributed.maintenance.erasure import Part
from postroad.domain.configuration.documents import effective_document
from postroad.domain.configuration.history import MAX_READ_LEASE
from postroad.domain.queues.names import QueueName
from postroad.errors import ClusterNotAllowed, HistoryTooNew, KubernetesError, ServerError
from postroad.ports.blobs import OBJECTS_EXPIRE
from postroad.ports.clock import Clock
from postroad.ports.kubernetes import Object
from postroad.ports.view import Recorded

Facts = TypeVar("Facts")

NOT_ALLOWED = ClusterNotAllowed.__name__
"""The reason of a MailQueue that is none of its QueueCluster's."""

OPERATOR = "operator"
"""The operator's name in events of the configuration history."""

SERVER_CONDITIONS = (condition.BROKER_READY, condition.VIEW_READY, condition.BLOBS_READY)


@dataclass(frozen=True, slots=True)
class Prepared:
    """Result of preparing the servers for a MailQueue. `configured`: a configuration holds, so
    that pods may run; `may_upgrade`: they may be replaced because of another release, whose history
    this one has read; `stopped`: why nothing of the queue is made or changed, pods neither."""

    report: Report
    configured: bool
    may_upgrade: bool = True
    stopped: Finding | None = None


class QueueServers:
    """Prepares the servers of queues."""

    def __init__(
        self, clusters: Clusters, engines: Engines, clock: Clock, logins: QueueLogins
    ) -> None:
        self._clusters = clusters
        self._engines = engines
        self._clock = clock
        self._logins = logins

    async def prepare(self, plan: QueuePlan) -> Prepared:
        """Create what the queue needs on each server; report each condition. A failure of one
        server stops none of the others; a conflict over one stops all, because pods would use its
        objects, and so does a history of a later release, which is read before anything is made.
        Raises: KubernetesConflict, KubernetesUnavailable."""
        if not plan.view.keyspace.has_tables:
            message = "the reconcile of the QueueCluster has not made its tables yet"
            types = (condition.CONFIGURATION_ACCEPTED, *SERVER_CONDITIONS)
            pending = Report([unknown(each, condition.PENDING, message) for each in types])
            return Prepared(pending, plan.broker.begun)
        away, view_away = plan.broker.away, plan.view.keyspace.away
        claimed, _ = await _ask(condition.BROKER_READY, away, self._claim(plan.broker), None)
        if claimed.reason == CONFLICT:
            return _not_taken(claimed, Report())
        which = condition.CONFIGURATION_ACCEPTED
        read, recorded = await _ask(which, view_away, self._read(plan.view), None)
        if read.reason == HistoryTooNew.__name__:
            return _not_taken(read, Report())
        declare, make = self._declare(plan.broker, claimed), self._make_bucket(plan.bucket)
        look = self._make_tables(plan.view)
        asks = (
            asyncio.create_task(_ask(condition.BROKER_READY, away, declare, UserChanges())),
            asyncio.create_task(_ask(condition.BLOBS_READY, plan.bucket.away, make, None)),
            asyncio.create_task(_ask(condition.VIEW_READY, view_away, look, False)),
        )
        # All of them end before an error does: else they go on beside the next reconcile.
        await asyncio.gather(*asks, return_exceptions=True)
        broker, users = asks[0].result()
        blobs, _ = asks[1].result()
        view, has_rows = asks[2].result()
        changes = Report(repairs=users.repairs, switches=users.switches)
        if blobs.reason == CONFLICT:
            return _not_taken(blobs, changes)
        fields: Status = {}
        accepted = read if view.is_good else view
        if view.is_good and recorded is not None:
            async with attempt(which) as attempted:
                settling = self._configure(plan.view, recorded, has_rows=has_rows)
                attempted.finding, fields = await settling
            accepted = attempted.finding
        may_upgrade = view.is_good and accepted.reason != TOO_SLOW
        if not may_upgrade:
            accepted = _not_asked(plan.view, accepted)
        report = replace(changes, findings=[accepted, broker, view, blobs], fields=fields)
        return Prepared(report, plan.broker.begun or bool(fields), may_upgrade)

    async def _claim(self, plan: BrokerPlan) -> tuple[Finding, None]:
        await self._claims(plan.place).claim(Part.MESSAGES)
        message = f"exchange {plan.place.name.exchange} is claimed"
        return good(condition.BROKER_READY, message), None

    def _claims(self, place: QueuePlace) -> QueueClaims:
        return QueueClaims(self._clusters.claims, self._clusters.users, place)

    async def _declare(self, plan: BrokerPlan, claimed: Finding) -> tuple[Finding, UserChanges]:
        if not claimed.is_good:
            return claimed, UserChanges()
        name, broker = plan.place.name, plan.place.broker()
        missing = plan.begun and not await broker.exists()
        await broker.declare(first=not plan.begun)
        if streams := plan.streams:
            await plan.place.servers.declare_streams(name, streams)
        changes = await self._logins.keep(plan)
        if missing:
            log_repair("queues", exchange=name.exchange)
            return bad(condition.BROKER_READY, *missing_queues(name), retryable=True), changes
        message = f"exchange {name.exchange} and its queues exist"
        return good(condition.BROKER_READY, message), changes

    async def _make_bucket(self, plan: BucketPlan) -> tuple[Finding, None]:
        place, bucket, blobs = plan.place, plan.place.bucket, plan.place.blobs()
        if not place.owns_bucket:
            if await blobs.exists():
                return good(condition.BLOBS_READY, f"bucket {bucket} exists; it is shared"), None
            message = f"the shared bucket {bucket} does not exist: create it"
            return bad(condition.BLOBS_READY, "BucketNotFound", message, retryable=True), None
        missing = plan.begun and not await blobs.exists()
        limits = await blobs.create(f"{place.name}/", first=not plan.begun)
        await self._claims(place).claim(Part.BYTES)
        if missing:
            log_repair("bucket", bucket=bucket)
            return bad(condition.BLOBS_READY, *missing_bucket(bucket), retryable=True), None
        if OBJECTS_EXPIRE in limits:
            message = f"a lifecycle rule of bucket {bucket} deletes bytes of mail: remove it"
            return bad(condition.BLOBS_READY, OBJECTS_EXPIRE, message, retryable=True), None
        message = f"bucket {bucket} exists"
        if limits:
            message += f"; the object store does not offer: {', '.join(limits)}"
        return good(condition.BLOBS_READY, message, *limits[:1]), None

    async def _read(self, plan: ViewPlan) -> tuple[Finding, Recorded | None]:
        which = condition.CONFIGURATION_ACCEPTED
        try:
            recorded = await plan.place.history().load()
        except HistoryTooNew:
            raise
        except ServerError as error:
            return bad(which, TOO_SLOW, error.explain(), retryable=True), None
        return good(which, "the history can be read"), recorded

    async def _make_tables(self, plan: ViewPlan) -> tuple[Finding, bool]:
        """Reach the tables; return also whether they have rows of the queue."""
        limits = await plan.place.view().limits()
        message = f"tables exist in {plan.keyspace.cassandra.keyspace}"
        return good(condition.VIEW_READY, message), limits.browse_start is not None

    async def _configure(
        self, plan: ViewPlan, recorded: Recorded, *, has_rows: bool
    ) -> tuple[Finding, Status]:
        """Settle the configuration, then set the limits by it; return also the fields of the
        status, of which there are none while no configuration holds."""
        which, lifetime = condition.CONFIGURATION_ACCEPTED, plan.keyspace.cassandra.row_lifetime
        unfit_window, unfit_step = refused_by_lifetime(plan.queue, lifetime)

        async def has_data() -> bool:
            return has_rows

        try:
            settled = await settle(
                plan.place.history(),
                plan.queue.spec.view.configuration(),
                at=self._clock.now(),
                by=OPERATOR,
                generation=plan.queue.generation,
                status=plan.reported_history,
                has_data=has_data,
                unfit=unfit_window or unfit_step,
                # Rows that were found after an empty history may be of one that has begun since.
                recorded=None if has_rows and not recorded.events else recorded,
            )
            if settled.state is not None:
                await self._engines.begin(plan.place)
        except ServerError as error:
            return bad(which, TOO_SLOW, error.explain(), retryable=True), {}
        fields: Status = {}
        if (state := settled.state) is not None:
            document = effective_document(state, state.at + MAX_READ_LEASE)
            fields = {"configuration": document, "history": settled.entries()}
        refusals = [each for each in (settled.refusal, unfit_step) if each is not None]
        if refusals:
            message = "; ".join(dict.fromkeys(each.message for each in refusals))
            return bad(which, refusals[0].reason, message, retryable=False), fields
        assert state is not None
        return good(which, f"version {state.version} holds", "Accepted"), fields


def _not_taken(conflict: Finding, changes: Report) -> Prepared:
    """Return the findings about a queue that another one has, or a later release: nothing more of
    it is made, and what pods it has go on."""
    types = (condition.CONFIGURATION_ACCEPTED, *SERVER_CONDITIONS)
    others = [each for each in types if each != conflict.condition]
    findings = [conflict, *(unknown(each, conflict.reason, conflict.message) for each in others)]
    return Prepared(replace(changes, findings=findings), configured=False, stopped=conflict)


def _not_asked(plan: ViewPlan, why: Finding) -> Finding:
    version = (plan.status.get("configuration") or {}).get("version")
    holds = f"version {version} still holds" if version else "none holds yet"
    message = f"the history in Cassandra cannot be read, {holds}: {why.message}"
    return unknown(condition.CONFIGURATION_ACCEPTED, "HistoryNotReadable", message)


async def _ask(
    which: str,
    away: Finding | None,
    work: Coroutine[Any, Any, tuple[Finding, Facts]],
    otherwise: Facts,
) -> tuple[Finding, Facts]:
    """Ask a server, unless the QueueCluster has just found that it does not answer: a thousand
    queues that wait for it would block those of every other cluster. `otherwise`: the facts where
    it gave none."""
    if away is not None:
        work.close()
        return away, otherwise
    async with attempt(which) as attempted:
        attempted.finding, otherwise = await work
    return attempted.finding, otherwise


def missing_queues(name: QueueName) -> tuple[str, str]:
    """Return reason and message about queues that a configured MailQueue lacked in RabbitMQ."""
    return "QueuesWereMissing", (
        f"the queues of exchange {name.exchange} were missing and are made anew, empty: where the "
        "cluster has a managementURL, maintenance publishes waiting mail again; at once does it "
        f"`kubectl mailqueue republish {name.name} -n {name.namespace} --older-than 5m`"
    )


def missing_bucket(bucket: str) -> tuple[str, str]:
    """Return reason and message about a bucket that a configured MailQueue lacked."""
    return "BucketWasMissing", (
        f"bucket {bucket} was missing and is made anew, empty: mail whose bytes were in it becomes "
        "dead letters; copy the objects back, then requeue them"
    )


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
            is_left = due.scope is Scope.PAUSED or facts.finding.reason == NOT_ALLOWED
            self._children.leave(key_of(found), on_purpose=is_left)
        found, report = await self._reported(facts, due)
        if not released.finding.is_good:
            report += Report([released.finding])
        done = [Announcement(WARNING, "Repaired", each) for each in report.repairs]
        done += [Announcement(NORMAL, "UserSwitched", each) for each in report.switches]
        if scaled := self._reader.scaled(found):
            done.append(Announcement(NORMAL, "Scaled", scaled))
        await self._status_writer.announce(found, done)
        written = await self._status_writer.report(MAIL_QUEUE, found, report)
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
                await self._orphans.take_over(found)
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
        async with together() as tasks:
            working = tasks.create_task(self._carry_out(facts, due))
            await asyncio.wait({working}, timeout=PENDING_SECONDS)
            if not working.done():
                with suppress(KubernetesError):  # the status that follows meets it again
                    found = await self._status_writer.report(MAIL_QUEUE, found, pending_report())
        return found, working.result()

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
            case Scope.METRICS:
                report = Report(replaced=frozenset())
                return report if plan is None else report + await self._measured(plan)
            case Scope.PAUSED:
                report = paused_report(before, spec)
                if plan is None:
                    return report
                report += await self._children.observe(plan.workloads, before)
                return report + await self._measured(plan)

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
            f"`from`, `proxyFrom` or `xclientFrom` of {', '.join(names)} in spec.intake.listeners "
            "contains the whole Internet: every client that reaches it may send to any recipient; "
            "name only the networks of your own clients and proxies"
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
