"""Reconciles a MailQueue: from what the API server and the servers say to what should be.

The status is written last, from what was found, so that a crash anywhere is repaired by the next
look. Source: ADR 0006.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from postroad.controller import conditions as aspect
from postroad.controller.api import DEPLOYMENT, MAIL_QUEUE
from postroad.controller.api_server import ApiServer, Object
from postroad.controller.apply_children import apply_children, find_children, scaled_elsewhere
from postroad.controller.aspects import attempt
from postroad.controller.children import INTAKE, WORKER, selector, wanted_children
from postroad.controller.clusters import Cluster, Clusters
from postroad.controller.conditions import Finding, Truth, advice, good, unknown
from postroad.controller.credentials import check_certificate, read_credentials
from postroad.controller.engines import Engines
from postroad.controller.queue_servers import SERVER_ASPECTS, Look, QueueServers
from postroad.controller.reporting import Reporter
from postroad.controller.resource import PodContext, Queue
from postroad.controller.spec import Intake, Workers
from postroad.controller.status import (
    Report,
    Status,
    composed,
    composed_paused,
    deployment_facts,
    with_fields,
)
from postroad.controller.workloads import workload_finding
from postroad.errors import KubernetesError, PostroadError
from postroad.ports.clock import Clock

KEPT = (aspect.CONFIGURATION_ACCEPTED, *SERVER_ASPECTS)


Workload = tuple[str, str, str, Workers | Intake | None]
"""Aspect, what people call its pods, component, and what the spec says of it."""


class Queues:
    """Reconciles MailQueues. `image` is what workers and intake run."""

    def __init__(
        self,
        api: ApiServer,
        clusters: Clusters,
        reporter: Reporter,
        clock: Clock,
        engines: Engines,
        image: str,
    ) -> None:
        self._api = api
        self._clusters = clusters
        self._reporter = reporter
        self._clock = clock
        self._engines = engines
        self._image = image
        self._servers = QueueServers(clusters, engines, clock)

    async def bring_about(self, found: Object) -> Status:
        """Make a MailQueue as declared and report; returns the status as it is now.

        Raises: KubernetesError when even that could not be said; the next look repeats it.
        """
        found = await self._reporter.hold(MAIL_QUEUE, found)
        if not (found.get("status") or {}).get("conditions"):
            found = await self._say_pending(found)
        before: Mapping[str, Any] = found.get("status") or {}
        generation = found["metadata"]["generation"]
        report = Report()
        finding = await attempt("Spec", lambda: self._look(found, before, report), seconds=300)
        if not finding.is_good:
            report.findings = self._blocked(finding)
        after = composed(before, report, generation, self._clock.now())
        await self._reporter.write(MAIL_QUEUE, found, after)
        return after

    async def _say_pending(self, found: Object) -> Object:
        """Say at once that somebody looks: the first thorough look may take a while."""
        message = "the operator has begun to look at this queue"
        pending = [unknown(each, aspect.PENDING, message) for each in (*KEPT, aspect.WORKERS_READY)]
        generation = found["metadata"]["generation"]
        after = composed({}, Report(pending), generation, self._clock.now())
        return await self._reporter.write(MAIL_QUEUE, found, after)

    async def refresh(self, found: Object) -> Status:
        """Bring the figures of the status up to date; changes nothing else."""
        after = with_fields(found.get("status") or {}, await self._figures(found))
        await self._reporter.write(MAIL_QUEUE, found, after)
        return after

    async def refresh_paused(self, found: Object) -> Status:
        """Bring the figures of a paused queue up to date, and say that it is paused."""
        before: Mapping[str, Any] = found.get("status") or {}
        generation = found["metadata"]["generation"]
        figures = await self._figures(found)
        after = composed_paused(before, figures, generation, self._clock.now())
        await self._reporter.write(MAIL_QUEUE, found, after)
        return after

    async def restore_children(self, found: Object) -> Status:
        """Look at the children only: the last thorough look found servers and configuration good,
        and its findings about them stand."""
        before: Mapping[str, Any] = found.get("status") or {}
        queue = Queue.of(found)
        try:
            cluster = await self._clusters.for_queue(queue)
        except KubernetesError:
            raise
        except PostroadError:
            return await self.bring_about(found)
        look = Look(queue, before, Report(), configured=True)
        kept = [
            Finding(each["type"], Truth(each["status"]), each["reason"], each["message"])
            for each in before.get("conditions") or []
            if each["type"] in KEPT
        ]
        look.report.findings = kept
        look.report.findings += await self._make_children(cluster, look)
        look.report.findings += self._advice(queue)
        generation = found["metadata"]["generation"]
        after = composed(before, look.report, generation, self._clock.now())
        await self._reporter.write(MAIL_QUEUE, found, after)
        return after

    async def _figures(self, found: Object) -> dict[str, Any]:
        """A trouble is reported by the next thorough look; figures stay as they were."""
        try:
            queue = Queue.of(found)
            return await self._measured(await self._clusters.for_queue(queue), queue)
        except (PostroadError, ValidationError):
            return {}

    async def _look(self, found: Object, before: Mapping[str, Any], report: Report) -> Finding:
        queue = Queue.of(found)
        look = Look(queue, before, report, configured="configuration" in before)
        cluster = await self._clusters.for_queue(queue)
        report.findings += await self._servers.ask(cluster, look)
        report.findings += await self._make_children(cluster, look)
        report.findings += self._advice(queue)
        if look.configured:
            report.fields |= await self._measured(cluster, queue)
        return good("Spec", "looked at")

    def _advice(self, queue: Queue) -> list[Finding]:
        said = []
        if queue.spec.pipeline is not None:
            message = "this release runs no Spark jobs; spec.pipeline is kept for one that does"
            said.append(advice(aspect.PIPELINE_READY, "NotSupported", message))
        if queue.spec.intake is not None and queue.spec.intake.is_open_relay:
            message = (
                "spec.intake.relayFrom holds the whole Internet: whatever reaches the intake may "
                "send to any recipient; name only the networks of your own clients"
            )
            said.append(advice(aspect.RELAY_RESTRICTED, "OpenRelay", message))
        return said

    async def _make_children(self, cluster: Cluster, look: Look) -> list[Finding]:
        """Workers that run before there is a queue would only fail; once there was one, they are
        kept as declared even while a server is away."""
        queue = look.queue
        wanted: list[Workload] = [(aspect.WORKERS_READY, "workers", WORKER, queue.spec.workers)]
        if queue.spec.intake:
            wanted.append((aspect.INTAKE_READY, "intake pods", INTAKE, queue.spec.intake))
        if not look.configured:
            message = "not made before the queue is"
            return [unknown(each, aspect.PENDING, message) for each, *_ in wanted]

        async def apply() -> Finding:
            deployments.update(await self._apply(cluster, queue))
            return good(aspect.WORKERS_READY, "applied")

        deployments: dict[str, Object] = {}
        applied = await attempt(aspect.WORKERS_READY, apply)
        if not applied.is_good:
            return [applied]
        findings = [self._workload(look, deployments, *each) for each in wanted]
        certificate = await attempt(aspect.INTAKE_READY, lambda: self._check_certificate(queue))
        if not certificate.is_good:  # what keeps pods from being ready, and what those do not see
            findings[-1] = certificate
        return findings

    async def _check_certificate(self, queue: Queue) -> Finding:
        if queue.spec.intake and queue.spec.intake.tls:
            name = queue.spec.intake.tls.secret_ref.name
            await check_certificate(self._api, queue.name.namespace, name)
        return good(aspect.INTAKE_READY, "looked at")

    async def _apply(self, cluster: Cluster, queue: Queue) -> dict[str, Object]:
        credentials = cluster.credentials
        if cluster.namespace != queue.name.namespace:
            credentials = await read_credentials(self._api, queue.name.namespace, cluster.spec)
        around = PodContext(
            cluster=cluster.spec,
            image=self._image,
            authorities=credentials.authorities,
            secret_versions=credentials.versions,
            cassandra_tls=bool(credentials.cassandra.authorities),
        )
        found = await find_children(self._api, queue)
        wanted = wanted_children(queue, around, scaled_elsewhere=scaled_elsewhere(found))
        now = await apply_children(self._api, queue, wanted, found)
        return {name: each for (kind, name), each in now.items() if kind == DEPLOYMENT.name}

    def _workload(
        self,
        look: Look,
        deployments: Mapping[str, Object],
        which: str,
        what: str,
        component: str,
        spec: Workers | Intake | None,
    ) -> Finding:
        field = "workers" if component == WORKER else "intake"
        if spec is None:
            look.report.fields[field] = None
            return good(which, f"no {what} declared", "NoneDeclared")
        deployment = deployments[f"{look.queue.name.name}-{component}"]
        facts: dict[str, Any] = dict(deployment_facts(deployment, spec.replicas))
        if component == WORKER:
            facts["selector"] = selector(look.queue, component)
        else:
            facts.pop("replicas")
        look.report.fields[field] = facts
        return workload_finding(which, what, deployment, spec.replicas)

    async def _measured(self, cluster: Cluster, queue: Queue) -> dict[str, Any]:
        """Figures are worth no condition: those that cannot be had stay as they were."""
        try:
            bucket = queue.bucket(cluster.spec)
            return await self._engines.figures(cluster.servers, queue, bucket)
        except (PostroadError, TimeoutError):
            return {}

    def _blocked(self, finding: Finding) -> list[Finding]:
        """Nothing could be asked: the reason stands for every aspect."""
        return [
            Finding(each, Truth.UNKNOWN, finding.reason, finding.message, finding.waits)
            for each in (aspect.CONFIGURATION_ACCEPTED, *SERVER_ASPECTS, aspect.WORKERS_READY)
        ]
