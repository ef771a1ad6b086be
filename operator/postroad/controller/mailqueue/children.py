"""Makes the children of a MailQueue: reads, decides about each component, applies, reports.

What all pods share goes first; then intake and workers, each for itself, so that what is refused of
one neither stops the other nor deletes what runs.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

from postroad.controller.cluster.quotas import granted_workers
from postroad.controller.credentials import (
    check_address_key,
    check_certificate,
    read_credentials,
)
from postroad.controller.kubernetes.absences import Absences
from postroad.controller.kubernetes.api import DEPLOYMENT, Key
from postroad.controller.kubernetes.drift import ApplyResponses
from postroad.controller.mailqueue.applying import (
    CONDITION_OF,
    AppliedPart,
    ChildName,
    Found,
    WantedPart,
    apply_parts,
    find_children,
)
from postroad.controller.mailqueue.pipeline_runs import refused, report_pipeline
from postroad.controller.mailqueue.plan import WorkloadsPlan
from postroad.controller.mailqueue.workloads import (
    deployment_facts,
    pending_report,
    workloads_report,
)
from postroad.controller.pods.autoscalers import keeps_replicas
from postroad.controller.pods.delivery_files import read_of_workers
from postroad.controller.pods.manifests import QUEUE, WORKER, Child, paced_children
from postroad.controller.pods.pipeline_children import PIPELINE, pipeline_children
from postroad.controller.pods.upgrades import Upgrades, is_rolling
from postroad.controller.reads import Reads
from postroad.controller.spec.queue_resource import (
    NO_PIPELINE,
    PipelineProgram,
    PodContext,
    Queue,
)
from postroad.controller.status import conditions as condition
from postroad.controller.status.attempts import attempt
from postroad.controller.status.status import Report
from postroad.ports.clock import Clock
from postroad.ports.kubernetes import Kubernetes


class QueueChildren:
    """Makes the children of MailQueues. `image` is what workers and intake run unless a MailQueue
    names another, and `pipeline` what jobs of the pipeline do."""

    def __init__(
        self,
        api: Kubernetes,
        reads: Reads,
        upgrades: Upgrades,
        absences: Absences,
        clock: Clock,
        image: str,
        pipeline: PipelineProgram = NO_PIPELINE,
    ) -> None:
        self._absences = absences
        self._pipeline = pipeline
        self._api = api
        self._reads = reads
        self._image = image
        self._upgrades = upgrades
        self._answers = ApplyResponses(clock)

    def leave(self, queue: Key) -> None:
        """Give up the place of a MailQueue whose pods are not to be replaced. Idempotent."""
        self._upgrades.end(queue)

    async def make(
        self, plan: WorkloadsPlan, expected: Collection[ChildName], *, configured: bool
    ) -> Report:
        """Apply the children once the queue has a configuration, because workers before would only
        fail; after that also while a server is away. `expected`: those that are there unless
        another process deleted them."""
        queue = plan.queue
        if not configured:
            return pending_report(queue.spec)
        parts = await self._apply(plan, expected)
        now = {place: each for part in parts for place, each in part.now.items()}
        async with attempt(condition.INTAKE_READY) as certificate:
            if queue.spec.intake and queue.spec.intake.tls:
                name = queue.spec.intake.tls.cert_ref.name
                await check_certificate(self._reads, queue.name.namespace, name)
        if any(each.waits for each in parts):
            self._upgrades.wait(plan.cluster, queue.key)
        elif not any(kind == DEPLOYMENT.name and is_rolling(now[kind, of]) for kind, of in now):
            self._upgrades.end(queue.key)
        report = workloads_report(plan, parts, certificate.finding)
        if parts[0].failed is not None:
            return report
        jobs = Report()
        async with attempt(condition.PIPELINE_READY) as attempted:
            jobs = await report_pipeline(self._api, plan, now)
        refusal = parts[-1].failed or attempted.finding
        return report + (jobs if refusal.is_good else replace(jobs, findings=[refused(refusal)]))

    async def _apply(
        self, plan: WorkloadsPlan, expected: Collection[ChildName]
    ) -> Sequence[AppliedPart]:
        queue = plan.queue
        versions, found = plan.tls_versions, Found()
        async with attempt(QUEUE) as read:
            if versions is None:
                pods = await read_credentials(self._reads, queue.name.namespace, plan.servers)
                versions = pods.tls_versions
            found = await find_children(self._api, queue)
        if not read.finding.is_good:
            return [AppliedPart(QUEUE, failed=read.finding)]
        image = queue.spec.image or self._image
        context = PodContext(plan.servers, image, versions, self._pipeline)
        wanted = [await self._wanted(queue, context, each, found) for each in CONDITION_OF]
        return await apply_parts(self._api, queue, wanted, found, expected, self._answers)

    async def _wanted(
        self, queue: Queue, context: PodContext, component: str, found: Found
    ) -> WantedPart:
        """Return what to apply of a component, once the Secrets and ConfigMaps that it names are
        there."""
        spec, namespace = queue.spec, queue.name.namespace
        place = DEPLOYMENT.name, f"{queue.name.name}-{component}"
        present, waits, children = found.get(place), False, list[Child]()
        async with attempt(CONDITION_OF[component]) as attempted:
            if component == WORKER and spec.workers:
                versions = await read_of_workers(self._reads, queue, spec.workers)
                versions = {**(context.tls_versions or {}), **versions}
                context = replace(context, tls_versions=versions)
                has, most = deployment_facts(present, 0), context.cluster.quota.workers_per_queue
                workers = granted_workers(spec.workers.replicas, most, has["desired"])
                queue = queue.with_workers(workers)
            if component == PIPELINE:
                if spec.pipeline is not None and (key := spec.pipeline.addresses.key_ref):
                    await check_address_key(self._reads, namespace, key)
                children = pipeline_children(queue, context)
            else:
                autoscaled = await keeps_replicas(self._api, self._absences, present)
                granted = self._upgrades.is_granted(queue.key)
                children, waits = paced_children(
                    queue, context, component, present, autoscaled=autoscaled, granted=granted
                )
        failed = None if attempted.finding.is_good else attempted.finding
        stays = {place: present} if present is not None and waits else {}
        return WantedPart(component, children, stays, failed)
