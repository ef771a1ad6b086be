"""Makes the children of a MailQueue.

What all pods share goes first; then intake and workers, each for itself, so that what is refused of
one neither stops the other nor deletes what runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from postroad.controller.cluster.clusters import Cluster
from postroad.controller.cluster.quotas import granted_workers
from postroad.controller.credentials.credentials import (
    check_address_key,
    check_certificate,
    read_authorities,
    read_credentials,
)
from postroad.controller.kubernetes.absences import Absences
from postroad.controller.kubernetes.actions import log_action, log_repair
from postroad.controller.kubernetes.api import (
    AUTOSCALED,
    CHILDREN,
    COMPONENT,
    DEPLOYMENT,
    INSTANCE,
    MANAGED_BY,
    QUEUE_CLUSTER,
    ROLE_BINDING,
    Key,
)
from postroad.controller.kubernetes.drift import (
    ApplyAnswers,
    hash_of,
    repair_of,
    rewritten_fields,
)
from postroad.controller.mailqueue.pipeline_runs import refused, report_pipeline
from postroad.controller.mailqueue.workloads import as_applied, report_workload, within_quota
from postroad.controller.pods.autoscalers import is_autoscaled
from postroad.controller.pods.children import (
    INTAKE,
    QUEUE,
    WORKER,
    Child,
    belongs_to,
    wanted_children,
)
from postroad.controller.pods.delivery_files import DeliveryFiles
from postroad.controller.pods.delivery_secrets import check_delivery_secrets
from postroad.controller.pods.pipeline_children import PIPELINE, pipeline_children
from postroad.controller.pods.upgrades import Upgrades, hash_in, is_rolling, marked, paced
from postroad.controller.reads.cached_api import version_of
from postroad.controller.reads.indexes import as_child, owner_of
from postroad.controller.reads.read_cache import Reads
from postroad.controller.spec.intake import Intake
from postroad.controller.spec.mailqueue import Workers
from postroad.controller.spec.queue_resource import (
    NO_PIPELINE,
    PipelineProgram,
    PodContext,
    Queue,
    cluster_of_pods,
)
from postroad.controller.status import conditions as condition
from postroad.controller.status.attempts import attempt
from postroad.controller.status.conditions import Finding, advice, unknown
from postroad.controller.status.reconcile import ReconcileState
from postroad.controller.status.status import deployment_facts
from postroad.errors import InvalidInput, KubernetesRefused, NameTaken
from postroad.ports.clock import Clock
from postroad.ports.kubernetes import Kind, Kubernetes, Object

COMPONENTS = {WORKER: condition.WORKERS_READY, INTAKE: condition.INTAKE_READY}

Workload = tuple[str, str, str, Workers | Intake | None]
"""Condition, plural name of its pods for messages, component, and its part of the spec."""


class QueueChildren:
    """Makes the children of MailQueues. `image` is what workers and intake run unless a MailQueue
    names another, and `pipeline` what jobs of the pipeline do."""

    def __init__(
        self,
        api: Kubernetes,
        reads: Reads,
        image: str,
        upgrades: Upgrades,
        absences: Absences,
        clock: Clock,
        pipeline: PipelineProgram = NO_PIPELINE,
    ) -> None:
        self._absences = absences
        self._pipeline = pipeline
        self._api = api
        self._reads = reads
        self._image = image
        self._upgrades = upgrades
        self._answers = ApplyAnswers(clock)

    async def make(self, cluster: Cluster, state: ReconcileState) -> list[Finding]:
        """Apply the children once the queue has a configuration, because workers before would only
        fail; after that also while a server is away."""
        queue = state.queue
        wanted: list[Workload] = [(condition.WORKERS_READY, "workers", WORKER, queue.spec.workers)]
        if queue.spec.intake:
            wanted.append((condition.INTAKE_READY, "intake pods", INTAKE, queue.spec.intake))
        if not state.configured:
            message = "pods are created once the queue has a configuration"
            return [unknown(each, condition.PENDING, message) for each, *_ in wanted]
        now: Found = {}
        failed = await self._apply(cluster, state, now)
        if QUEUE in failed:
            self._upgrades.end(queue.key)
            return [replace(failed[QUEUE], condition=each) for each, *_ in wanted]
        reported = [(each[2], report_workload(state, now, *each)) for each in wanted]
        findings = [
            failed.get(component) or as_applied(state, component, finding)
            for component, finding in reported
        ]
        waiting = self._carry_on(cluster, state, now)
        findings[0] = within_quota(state, cluster.spec.quota.workers_per_queue, findings[0])
        async with attempt(condition.INTAKE_READY) as certificate:
            await self._check_certificate(queue)
        if not certificate.finding.is_good:  # why pods are not ready, which they cannot report
            findings[-1] = certificate.finding
        return [*findings, *waiting, *await self._report_pipeline(state, now, failed)]

    async def _report_pipeline(
        self, state: ReconcileState, now: Found, failed: Mapping[str, Finding]
    ) -> list[Finding]:
        found: list[Finding] = []
        async with attempt(condition.PIPELINE_READY) as attempted:
            found = await report_pipeline(self._api, state, now)
        refusal = failed.get(PIPELINE, attempted.finding)
        return found if refusal.is_good else [refused(refusal)]

    def _carry_on(self, cluster: Cluster, state: ReconcileState, now: Found) -> list[Finding]:
        """Let the queue wait for the replacement of its pods, or end that which is over."""
        queue = state.queue.key
        if state.waits:
            self._upgrades.wait(Key(QUEUE_CLUSTER.name, cluster.namespace, cluster.name), queue)
            message = f"its pods stay until QueueCluster {cluster.name} upgrades it"
            return [advice(condition.UP_TO_DATE, "UpgradeWaits", message)]
        if not any(kind == DEPLOYMENT.name and is_rolling(now[kind, of]) for kind, of in now):
            self._upgrades.end(queue)
        return []

    async def _apply(
        self, cluster: Cluster, state: ReconcileState, now: Found
    ) -> dict[str, Finding]:
        """Apply the children, and put them into `now` as they are then. Return findings about the
        components that could not be applied; about all (`QUEUE`) when nothing could."""
        found: Found = {}
        async with attempt(QUEUE) as read:
            context = await self._context(cluster, state.queue)
            found = await find_children(self._api, state.queue)
        if not read.finding.is_good:
            return {QUEUE: read.finding}
        failed = await self._apply_all(state, context, found, now)
        if all(each.reason != NameTaken.__name__ for each in failed.values()):
            return failed
        wanted = wanted_children(state.queue, context)
        with suppress(InvalidInput):
            wanted += pipeline_children(state.queue, context)
        message, passes = await all_taken(self._api, state.queue, wanted, found)
        return {
            part: replace(each, message=message, retryable=passes)
            if each.reason == NameTaken.__name__
            else each
            for part, each in failed.items()
        }

    async def _apply_all(
        self, state: ReconcileState, context: PodContext, found: Found, now: Found
    ) -> dict[str, Finding]:
        async with attempt(QUEUE) as shared:
            now.update(await self._apply_component(state, context, found, QUEUE))
        if not shared.finding.is_good:
            return {QUEUE: shared.finding}
        failed = {}
        for component, which in COMPONENTS.items():
            async with attempt(which) as attempted:
                now.update(await self._apply_component(state, context, found, component))
            if not attempted.finding.is_good:
                failed[component] = attempted.finding
                now.update(_of_component(found, component))
        async with attempt(condition.PIPELINE_READY) as attempted:
            now.update(await self._apply_pipeline(state, context, found))
        if not attempted.finding.is_good:
            failed[PIPELINE] = attempted.finding
        async with attempt(QUEUE) as deleted:
            await delete_unwanted(self._api, found, now, except_of=failed.keys())
        return failed if deleted.finding.is_good else {WORKER: deleted.finding, **failed}

    async def _apply_component(
        self, state: ReconcileState, context: PodContext, found: Found, component: str
    ) -> Found:
        queue = state.queue
        workers = queue.spec.workers
        place = DEPLOYMENT.name, f"{queue.name.name}-{component}"
        present = found.get(place)
        if component == WORKER and workers:
            context = await self._with_next_hop(context, queue, workers)
            if (delivery := DeliveryFiles.of(queue)) is not None:
                await check_delivery_secrets(self._reads, queue.name.namespace, delivery.settings)
            queue = queue.with_workers(
                granted_workers(
                    workers.replicas,
                    context.cluster.quota.workers_per_queue,
                    deployment_facts(present, 0)["desired"],
                )
            )
        autoscaled = await self._is_autoscaled(present)
        wanted, waits = self._paced(queue, context, component, present, autoscaled=autoscaled)
        state.waits |= waits
        now = await apply_children(self._api, state, wanted, found, self._answers)
        return now if present is None or not waits else {place: present, **now}

    async def _is_autoscaled(self, present: Object | None) -> bool:
        """Whether an autoscaler has the replicas of a Deployment, or had them before it went: one
        that is replaced comes back, and pods that it made would be gone meanwhile."""
        if present is None:
            return False
        uid = present["metadata"]["uid"]
        has_autoscaler = await is_autoscaled(self._api, present)
        if has_autoscaler or not hash_in(present, AUTOSCALED):
            self._absences.end(uid)
            return has_autoscaler
        return not self._absences.lasts(uid)

    async def _apply_pipeline(
        self, state: ReconcileState, context: PodContext, found: Found
    ) -> Found:
        queue = state.queue
        spec = queue.spec.pipeline
        wanted = pipeline_children(queue, context)
        if spec is not None and spec.addresses.key_ref is not None:
            await check_address_key(self._reads, queue.name.namespace, spec.addresses.key_ref)
        try:
            return await apply_children(self._api, state, wanted, found, self._answers)
        except KubernetesRefused as error:
            if ROLE_BINDING.plural not in str(error):
                raise
            hint = (
                "spec.pipeline.executors needs pipelineExecutors=true of the operator's chart, or "
                "manifests/executors.yaml"
            )
            raise KubernetesRefused(str(error), hint=hint) from error

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
        """Return the context of workers, which change with the authorities of the next hop too."""
        verified = workers.handler.relay or workers.handler.webhook
        reference = None if verified is None else verified.ca_ref
        if reference is None:
            return context
        text = await read_authorities(self._reads, queue.name.namespace, reference)
        versions = {**(context.tls_versions or {}), "relay": hash_of(text)}
        return replace(context, tls_versions=versions)

    async def _context(self, cluster: Cluster, queue: Queue) -> PodContext:
        credentials, namespace = cluster.credentials, queue.name.namespace
        servers = cluster_of_pods(cluster.spec, queue)
        if cluster.namespace != namespace or servers is not cluster.spec:
            credentials = await read_credentials(self._reads, namespace, servers)
        return PodContext(
            cluster=servers,
            image=queue.spec.image or self._image,
            tls_versions=credentials.tls_versions,
            pipeline=self._pipeline,
        )

    async def _check_certificate(self, queue: Queue) -> None:
        if queue.spec.intake and queue.spec.intake.tls:
            name = queue.spec.intake.tls.secret_ref.name
            await check_certificate(self._reads, queue.name.namespace, name)


Found = dict[tuple[str, str], Object]
"""Children by kind and name."""


async def find_children(api: Kubernetes, queue: Queue) -> Found:
    """Return the children that this MailQueue owns or takes over. The API server removes those of
    an earlier one."""
    labels = f"{MANAGED_BY}=postroad,{INSTANCE}={queue.name.name}"
    lists = await asyncio.gather(
        *(api.list(kind, queue.name.namespace, labels) for kind in CHILDREN)
    )
    return {
        (kind.name, each["metadata"]["name"]): each
        for kind, found in zip(CHILDREN, lists, strict=True)
        for each in found
        if belongs_to(each, queue)
    }


def _of_component(found: Found, component: str) -> Found:
    labels = {place: each["metadata"]["labels"] for place, each in found.items()}
    return {place: found[place] for place in found if labels[place].get(COMPONENT) == component}


async def apply_children(
    api: Kubernetes,
    state: ReconcileState,
    wanted: Sequence[Child],
    found: Found,
    answers: ApplyAnswers,
) -> Found:
    """Make children as wanted, without a write for those that are; return them as they are now, and
    report what another process had done to them, where a write undid it. Raises: NameTaken,
    KubernetesError."""
    now: Found = {}
    for kind, child in wanted:
        place = (kind.name, child["metadata"]["name"])
        present = found.get(place)
        if present is None and (other := await _other(api, state.queue, kind, child)) is not None:
            raise NameTaken(f"{kind.name} {other['metadata']['name']} exists already")
        if present is not None and answers.is_settled(child, present):
            now[place] = present
            _note_rewritten(state, child, present)
            continue
        was_answer = present is not None and answers.is_answer(child, present)
        now[place] = await api.apply(kind, child)
        _note_rewritten(state, child, now[place])
        answers.note(child, now[place])
        if present is not None and version_of(now[place]) == version_of(present):
            continue  # a webhook rewrites it, also what another operator applied
        state.report.applied.append(as_child(now[place]))
        done = repair_of(child, present, expected=place in state.expected)
        if done is None or was_answer:
            log_action("applied a child", child=" ".join(place), existed=present is not None)
        else:
            log_repair("child", child=" ".join(place), was=done)
            state.report.repairs.append(f"{' '.join(place)} was {done}; it is as declared again")
    return now


def _note_rewritten(state: ReconcileState, child: Mapping[str, Any], now: Object) -> None:
    if altered := rewritten_fields(child, now):
        text = f"{child['kind']} {child['metadata']['name']} ({', '.join(altered)})"
        component = child["metadata"]["labels"][COMPONENT]
        state.rewritten.setdefault(component, []).append(text)


async def delete_unwanted(
    api: Kubernetes, found: Found, wanted: Found, *, except_of: Collection[str]
) -> None:
    """Delete the children that are not wanted, but none of these components."""
    kinds = {kind.name: kind for kind in CHILDREN}
    for place, child in found.items():
        component = child["metadata"]["labels"].get(COMPONENT)
        if place not in wanted and component not in except_of:
            await api.delete(kinds[place[0]], child)
            log_action("deleted a child", child=" ".join(place))


async def _other(
    api: Kubernetes, queue: Queue, kind: Kind, child: Mapping[str, Any]
) -> Object | None:
    """Return the object that has the name of a child and is not the MailQueue's."""
    metadata = child["metadata"]
    there = await api.get(kind, metadata["namespace"], metadata["name"])
    return None if there is None or belongs_to(there, queue) else there


async def all_taken(
    api: Kubernetes, queue: Queue, wanted: Sequence[Child], found: Found
) -> tuple[str, bool]:
    """Return a message with all names of children that are taken, so that they are cleared away at
    once; and whether they become free by themselves, as those of an earlier MailQueue do."""
    missing = [each for each in wanted if (each[0].name, each[1]["metadata"]["name"]) not in found]
    taken = [other for each in missing if (other := await _other(api, queue, *each)) is not None]
    names = ", ".join(f"{each['kind']} {each['metadata']['name']}" for each in taken)
    message = (
        f"of the names of its children, objects that are not this MailQueue's have: {names}; "
        "delete or rename them (the API server removes those of an earlier MailQueue)"
    )
    return message, all(owner_of(each) == queue.key for each in taken)
