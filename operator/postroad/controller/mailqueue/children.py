"""Makes the children of a MailQueue.

What all pods share goes first; then intake and workers, each for itself, so that what is refused of
one neither stops the other nor deletes what runs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from postroad.controller.cluster.quotas import granted_workers
from postroad.controller.credentials import (
    check_address_key,
    check_certificate,
    read_authorities,
    read_credentials,
)
from postroad.controller.kubernetes.absences import Absences
from postroad.controller.kubernetes.api import (
    AUTOSCALED,
    COMPONENT,
    DEPLOYMENT,
    ROLE_BINDING,
    Key,
)
from postroad.controller.kubernetes.drift import ApplyAnswers, hash_of
from postroad.controller.mailqueue.applying import (
    AppliedChild,
    ChildName,
    Found,
    all_taken,
    apply_children,
    delete_unwanted,
    find_children,
)
from postroad.controller.mailqueue.pipeline_runs import refused, report_pipeline
from postroad.controller.mailqueue.plan import WorkloadsPlan
from postroad.controller.mailqueue.workloads import (
    Workload,
    as_applied,
    within_quota,
    workload_status,
)
from postroad.controller.pods.autoscalers import is_autoscaled
from postroad.controller.pods.children import (
    INTAKE,
    QUEUE,
    WORKER,
    Child,
    wanted_children,
)
from postroad.controller.pods.delivery_files import DeliveryFiles, check_delivery_secrets
from postroad.controller.pods.pipeline_children import PIPELINE, pipeline_children
from postroad.controller.pods.upgrades import Upgrades, hash_in, is_rolling, marked, paced
from postroad.controller.reads import Reads, as_child
from postroad.controller.spec.mailqueue import Workers
from postroad.controller.spec.queue_resource import (
    NO_PIPELINE,
    PipelineProgram,
    PodContext,
    Queue,
)
from postroad.controller.status import conditions as condition
from postroad.controller.status.attempts import attempt
from postroad.controller.status.conditions import Finding, advice, unknown
from postroad.controller.status.status import Report, deployment_facts
from postroad.errors import InvalidInput, KubernetesRefused, NameTaken
from postroad.ports.clock import Clock
from postroad.ports.kubernetes import Kubernetes, Object

CONDITION_OF = {
    QUEUE: QUEUE,  # what all pods share: a failure is reported of each component
    WORKER: condition.WORKERS_READY,
    INTAKE: condition.INTAKE_READY,
    PIPELINE: condition.PIPELINE_READY,
}
"""By component, in the order in which they are applied."""

EXECUTORS_NEED = (
    "spec.pipeline.executors needs pipelineExecutors=true of the operator's chart, or "
    "manifests/executors.yaml"
)


@dataclass(frozen=True, slots=True)
class AppliedPart:
    """The children of a component as they are now. `waits`: a newer operator wants to replace pods,
    and may not yet; `failed`: why they are not as wanted."""

    component: str
    applied: Sequence[AppliedChild] = ()
    now: Mapping[ChildName, Object] = field(default_factory=dict)
    waits: bool = False
    failed: Finding | None = None


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
        self._answers = ApplyAnswers(clock)

    def leave(self, queue: Key) -> None:
        """Give up the place of a MailQueue whose pods are not to be replaced. Idempotent."""
        self._upgrades.end(queue)

    async def make(
        self, plan: WorkloadsPlan, expected: Collection[ChildName], *, configured: bool
    ) -> Report:
        """Apply the children once the queue has a configuration, because workers before would only
        fail; after that also while a server is away. `expected`: those that are there unless
        another process deleted them."""
        spec = plan.queue.spec
        wanted: list[Workload] = [(condition.WORKERS_READY, "workers", WORKER, spec.workers)]
        if spec.intake:
            wanted.append((condition.INTAKE_READY, "intake pods", INTAKE, spec.intake))
        if not configured:
            message = "pods are created once the queue has a configuration"
            return Report([unknown(each, condition.PENDING, message) for each, *_ in wanted])
        parts = await self._apply(plan, expected)
        written = [each for part in parts for each in part.applied if each.is_written]
        report = Report(
            repairs=[each.repair for each in written if each.repair],
            applied=[as_child(each.object) for each in written],
        )
        failed = {each.component: each.failed for each in parts if each.failed}
        if QUEUE in failed:
            self._upgrades.end(plan.queue.key)
            return report + Report([replace(failed[QUEUE], condition=each) for each, *_ in wanted])
        now = {place: each for part in parts for place, each in part.now.items()}
        status = {each[2]: workload_status(plan.queue, each, now) for each in wanted}
        findings = [
            failed.get(component) or as_applied(_rewritten(parts, component), finding)
            for component, (finding, _) in status.items()
        ]
        facts = {component: each for component, (_, each) in status.items()}
        waiting = self._carry_on(plan, now, waits=any(each.waits for each in parts))
        if spec.workers is not None:
            most = plan.most_workers
            findings[0] = within_quota(spec.workers.replicas, facts[WORKER], most, findings[0])
        async with attempt(condition.INTAKE_READY) as certificate:
            await self._check_certificate(plan.queue)
        if not certificate.finding.is_good:  # why pods are not ready, which they cannot report
            findings[-1] = certificate.finding
        fields = {"workers" if each == WORKER else each: facts[each] for each in facts}
        report += Report([*findings, *waiting], fields)
        return report + await self._report_pipeline(plan, now, failed.get(PIPELINE))

    async def _report_pipeline(
        self, plan: WorkloadsPlan, now: Found, failed: Finding | None
    ) -> Report:
        report = Report()
        async with attempt(condition.PIPELINE_READY) as attempted:
            report = await report_pipeline(self._api, plan, now)
        refusal = failed or attempted.finding
        return report if refusal.is_good else replace(report, findings=[refused(refusal)])

    def _carry_on(self, plan: WorkloadsPlan, now: Found, *, waits: bool) -> list[Finding]:
        """Let the queue wait for the replacement of its pods, or end that which is over."""
        if waits:
            self._upgrades.wait(plan.cluster, plan.queue.key)
            message = f"its pods stay until QueueCluster {plan.cluster.name} upgrades it"
            return [advice(condition.UP_TO_DATE, "UpgradeWaits", message)]
        if not any(kind == DEPLOYMENT.name and is_rolling(now[kind, of]) for kind, of in now):
            self._upgrades.end(plan.queue.key)
        return []

    async def _apply(
        self, plan: WorkloadsPlan, expected: Collection[ChildName]
    ) -> Sequence[AppliedPart]:
        """Apply the children, component by component, and delete those that are not wanted; of what
        all pods share (`QUEUE`) alone where that failed."""
        queue, found = plan.queue, Found()
        async with attempt(QUEUE) as read:
            context = await self._context(plan)
            found = await find_children(self._api, queue)
        if not read.finding.is_good:
            return [AppliedPart(QUEUE, failed=read.finding)]
        parts = [await self._apply_part(queue, context, QUEUE, found, expected)]
        if parts[0].failed is None:
            parts += [
                await self._apply_part(queue, context, each, found, expected)
                for each in (WORKER, INTAKE, PIPELINE)
            ]
            parts = await self._without_unwanted(parts, found)
        taken = [each.failed and each.failed.reason == NameTaken.__name__ for each in parts]
        if not any(taken):
            return parts
        wanted = wanted_children(queue, context)
        with suppress(InvalidInput):
            wanted += pipeline_children(queue, context)
        message, passes = await all_taken(self._api, queue, wanted, found)
        return [
            replace(each, failed=replace(each.failed, message=message, retryable=passes))
            if is_taken and each.failed
            else each
            for each, is_taken in zip(parts, taken, strict=True)
        ]

    async def _without_unwanted(
        self, parts: Sequence[AppliedPart], found: Found
    ) -> list[AppliedPart]:
        """Delete the children that are not wanted, but none of a component that failed; return the
        parts, where a failure is reported of the workers."""
        now = {place for part in parts for place in part.now}
        failed = {each.component for each in parts if each.failed}
        async with attempt(condition.WORKERS_READY) as deleted:
            await delete_unwanted(self._api, found, now, except_of=failed)
        refusal = None if deleted.finding.is_good else deleted.finding
        return [
            replace(each, failed=each.failed or refusal) if each.component == WORKER else each
            for each in parts
        ]

    async def _apply_part(
        self,
        queue: Queue,
        context: PodContext,
        component: str,
        found: Found,
        expected: Collection[ChildName],
    ) -> AppliedPart:
        applied: list[AppliedChild] = []
        stays: Found = {}
        async with attempt(CONDITION_OF[component]) as attempted:
            wanted, stays = await self._wanted(queue, context, component, found)
            try:
                async for each in apply_children(
                    self._api, queue, wanted, found, expected, self._answers
                ):
                    applied.append(each)  # noqa: PERF401  # those before a failure count
            except KubernetesRefused as error:
                if ROLE_BINDING.plural not in str(error):
                    raise
                raise KubernetesRefused(str(error), hint=EXECUTORS_NEED) from error
        if not attempted.finding.is_good:
            before = _of_component(found, component)
            return AppliedPart(component, applied, before, bool(stays), attempted.finding)
        now = {**stays, **{each.place: each.object for each in applied}}
        return AppliedPart(component, applied, now, bool(stays))

    async def _wanted(
        self, queue: Queue, context: PodContext, component: str, found: Found
    ) -> tuple[list[Child], Found]:
        """Return what to apply of a component, once the Secrets and ConfigMaps that it names are
        there; and the Deployment that stays as it is until the operator may replace its pods."""
        namespace, workers, pipeline = queue.name.namespace, queue.spec.workers, queue.spec.pipeline
        if component == PIPELINE:
            children = pipeline_children(queue, context)
            if pipeline is not None and pipeline.addresses.key_ref is not None:
                await check_address_key(self._reads, namespace, pipeline.addresses.key_ref)
            return children, {}
        place = DEPLOYMENT.name, f"{queue.name.name}-{component}"
        present = found.get(place)
        if component == WORKER and workers:
            context = await self._with_next_hop(context, queue, workers)
            if (delivery := DeliveryFiles.of(queue)) is not None:
                await check_delivery_secrets(self._reads, namespace, delivery.settings)
            queue = queue.with_workers(
                granted_workers(
                    workers.replicas,
                    context.cluster.quota.workers_per_queue,
                    deployment_facts(present, 0)["desired"],
                )
            )
        autoscaled = await self._is_autoscaled(present)
        children, waits = self._paced(queue, context, component, present, autoscaled=autoscaled)
        return children, {place: present} if present is not None and waits else {}

    async def _is_autoscaled(self, present: Object | None) -> bool:
        """True if an autoscaler has the replicas of a Deployment, or had them before it went: one
        that is replaced comes back, and pods that it made would be gone meanwhile."""
        if present is None:
            return False
        uid = present["metadata"]["uid"]
        has_autoscaler = await is_autoscaled(self._api, present)
        if has_autoscaler or not hash_in(present, AUTOSCALED):
            self._absences.end(uid)
            return has_autoscaler
        return not self._absences.lasts(uid)

    def _paced(
        self,
        queue: Queue,
        context: PodContext,
        component: str,
        present: Object | None,
        *,
        autoscaled: bool,
    ) -> tuple[list[Child], bool]:
        """Return the children of a component, and whether more waits for other queues."""

        def build(image: str) -> list[Child]:
            running = replace(context, image=image)
            return wanted_children(queue, running, (component,), autoscaled=autoscaled)

        if self._upgrades.is_granted(queue.key):
            return marked(build(context.image), present), False
        return paced(build, context.image, present, pinned=queue.spec.image is not None)

    async def _with_next_hop(
        self, context: PodContext, queue: Queue, workers: Workers
    ) -> PodContext:
        """Return the context of workers, which change with the authorities of next hops too."""
        delivery, webhook = DeliveryFiles.of(queue), workers.handler.webhook
        named = [] if delivery is None else delivery.authorities
        if webhook is not None and webhook.tls is not None and webhook.tls.ca_ref is not None:
            named.append(webhook.tls.ca_ref)
        if not named:
            return context
        namespace = queue.name.namespace
        texts = [await read_authorities(self._reads, namespace, each) for each in named]
        versions = {**(context.tls_versions or {}), "next hops": hash_of(texts)}
        return replace(context, tls_versions=versions)

    async def _context(self, plan: WorkloadsPlan) -> PodContext:
        versions = plan.tls_versions
        if versions is None:
            namespace = plan.queue.name.namespace
            versions = (await read_credentials(self._reads, namespace, plan.servers)).tls_versions
        return PodContext(
            cluster=plan.servers,
            image=plan.queue.spec.image or self._image,
            tls_versions=versions,
            pipeline=self._pipeline,
        )

    async def _check_certificate(self, queue: Queue) -> None:
        if queue.spec.intake and queue.spec.intake.tls:
            name = queue.spec.intake.tls.cert_ref.name
            await check_certificate(self._reads, queue.name.namespace, name)


def _of_component(found: Found, component: str) -> Found:
    labels = {place: each["metadata"]["labels"] for place, each in found.items()}
    return {place: found[place] for place in found if labels[place].get(COMPONENT) == component}


def _rewritten(parts: Sequence[AppliedPart], component: str) -> list[str]:
    """Return what another process rewrites of a component, and of what all pods share."""
    return [
        each.rewritten
        for part in parts
        for each in part.applied
        if part.component in (QUEUE, component) and each.rewritten
    ]
