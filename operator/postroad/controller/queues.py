"""Reconciles MailQueues: makes servers and children as declared, then writes the status.

The status is written last, from the findings, so that the next reconcile repairs a crash anywhere.
Source: ADR 0006.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from postroad.controller import conditions as condition
from postroad.controller.api import MAIL_QUEUE
from postroad.controller.attempts import attempt
from postroad.controller.clusters import Cluster, Clusters
from postroad.controller.conditions import Finding, Truth, advice, good, unknown
from postroad.controller.engines import Engines
from postroad.controller.finalizers import Finalizers
from postroad.controller.queue_children import QueueChildren
from postroad.controller.queue_resource import Queue
from postroad.controller.queue_servers import SERVER_CONDITIONS, QueueServers, ReconcileState
from postroad.controller.reporting import Reporter
from postroad.controller.status import (
    Report,
    Status,
    composed,
    composed_paused,
    hash_of_spec,
    with_fields,
)
from postroad.errors import KubernetesError, PostroadError
from postroad.ports.clock import Clock
from postroad.ports.kubernetes import Kubernetes, Object

KEPT = (condition.CONFIGURATION_ACCEPTED, *SERVER_CONDITIONS)


class Queues:
    """Reconciles MailQueues. `image` is what workers and intake run."""

    def __init__(
        self,
        api: Kubernetes,
        clusters: Clusters,
        reporter: Reporter,
        clock: Clock,
        engines: Engines,
        image: str,
    ) -> None:
        self._api = api
        self._clusters = clusters
        self._reporter = reporter
        self._finalizers = Finalizers(api, clusters)
        self._clock = clock
        self._engines = engines
        self._servers = QueueServers(clusters, engines, clock)
        self._children = QueueChildren(api, image)

    async def reconcile(self, found: Object) -> Status:
        """Make a MailQueue as declared, write and return its status.

        Raises: KubernetesError when the status could not be written.
        """
        if not (found.get("status") or {}).get("conditions"):
            found = await self._report_pending(found)
        before: Mapping[str, Any] = found.get("status") or {}
        generation = found["metadata"]["generation"]
        report = Report(fields={"specHash": hash_of_spec(found["spec"])})

        async def make() -> Finding:
            nonlocal found
            found = await self._finalizers.release(found)
            queue = Queue.of(found)
            cluster = await self._clusters.for_queue(queue)
            found = await self._finalizers.hold(found, cluster)
            await self._make(cluster, ReconcileState(queue, before, report))
            return good("Spec", "reconciled")

        finding = await attempt("Spec", make, seconds=300)
        if not finding.is_good:
            report.findings = self._blocked(finding)
        after = composed(before, report, generation, self._clock.now())
        return await self._written(found, after)

    async def _report_pending(self, found: Object) -> Object:
        """Write conditions at once, because the first full reconcile may take minutes."""
        message = "the operator has begun to reconcile this queue"
        pending = [
            unknown(each, condition.PENDING, message) for each in (*KEPT, condition.WORKERS_READY)
        ]
        generation = found["metadata"]["generation"]
        after = composed({}, Report(pending), generation, self._clock.now())
        return await self._reporter.write(MAIL_QUEUE, found, after)

    async def refresh(self, found: Object) -> Status:
        """Write the current figures into the status, and nothing else."""
        after = with_fields(found.get("status") or {}, await self._figures(found))
        return await self._written(found, after)

    async def refresh_paused(self, found: Object) -> Status:
        """Write the current figures and the condition Paused into the status."""
        found = await self._finalizers.release(found)
        before: Mapping[str, Any] = found.get("status") or {}
        generation = found["metadata"]["generation"]
        figures = await self._figures(found)
        now = self._clock.now()
        after = composed_paused(before, found["spec"], figures, generation, now)
        return await self._written(found, after)

    async def restore_children(self, found: Object) -> Status:
        """Reconcile the children only: the last full reconcile found servers and configuration
        good, and its findings about them are kept."""
        before: Mapping[str, Any] = found.get("status") or {}
        queue = Queue.of(found)
        try:
            cluster = await self._clusters.for_queue(queue)
        except KubernetesError:
            raise
        except PostroadError:
            return await self.reconcile(found)
        state = ReconcileState(queue, before, Report(), configured=True)
        kept = [
            Finding(each["type"], Truth(each["status"]), each["reason"], each["message"])
            for each in before.get("conditions") or []
            if each["type"] in KEPT
        ]
        state.report.findings = kept
        state.report.findings += await self._children.make(cluster, state)
        state.report.findings += self._advice(queue)
        generation = found["metadata"]["generation"]
        after = composed(before, state.report, generation, self._clock.now())
        return await self._written(found, after)

    async def _written(self, found: Object, after: Status) -> Status:
        """Write the status; return what the API server kept of it."""
        written = await self._reporter.write(MAIL_QUEUE, found, after)
        return written.get("status") or {}

    async def _figures(self, found: Object) -> dict[str, Any]:
        """Return no figures after an error, which the next full reconcile reports."""
        try:
            queue = Queue.of(found)
            return await self._measured(await self._clusters.for_queue(queue), queue)
        except (PostroadError, ValidationError):
            return {}

    async def _make(self, cluster: Cluster, state: ReconcileState) -> None:
        state.configured = "configuration" in state.before
        report = state.report
        report.findings += await self._servers.ask(cluster, state)
        report.findings += await self._children.make(cluster, state)
        report.findings += self._advice(state.queue)
        if state.configured:
            report.fields |= await self._measured(cluster, state.queue)

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

    async def _measured(self, cluster: Cluster, queue: Queue) -> dict[str, Any]:
        """Return no figures after an error: the status keeps the former ones, and no condition
        changes."""
        if condition.VIEW_READY in cluster.away:
            return {}
        try:
            bucket = queue.bucket(cluster.spec)
            return await self._engines.figures(cluster.servers, queue, bucket)
        except (PostroadError, TimeoutError):
            return {}

    def _blocked(self, finding: Finding) -> list[Finding]:
        """Return the finding that stopped the reconcile for every condition."""
        return [
            Finding(each, Truth.UNKNOWN, finding.reason, finding.message, finding.retryable)
            for each in (
                condition.CONFIGURATION_ACCEPTED,
                *SERVER_CONDITIONS,
                condition.WORKERS_READY,
            )
        ]
