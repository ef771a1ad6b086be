"""Makes the children of a MailQueue: reads, decides about each component, applies, reports.

What all pods share goes first; then intake and workers, each for itself, so that what is refused of
one neither stops the other nor deletes what runs.

A run of a pipeline's job writes a summary in the end, which Kubernetes keeps with its pod; one that
failed leaves the end of its log there."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from postroad.controller.credentials import check_pipeline_secrets, read_credentials
from postroad.controller.kubernetes.api import (
    AUTOSCALED,
    CHILDREN,
    COMPONENT,
    CRON_JOB,
    INSTANCE,
    JOB,
    MANAGED_BY,
    POD,
    STATEFUL_SET,
    WORKLOADS,
    Key,
)
from postroad.controller.kubernetes.drift import ApplyResponses, hash_in
from postroad.controller.mailqueue.autoscaling import BY_AUTOSCALER, keeps_replicas
from postroad.controller.mailqueue.plan import WorkloadsPlan
from postroad.controller.pods import applying, manifests
from postroad.controller.pods.pipeline_children import PIPELINE, job_name, pipeline_children
from postroad.controller.pods.readiness import deployment_facts, shortage
from postroad.controller.pods.settings_files import check_intake, read_of_workers
from postroad.controller.pods.upgrades import Upgrades, is_rolling
from postroad.controller.reads import Absences, Reads, as_child
from postroad.controller.spec.intake import Intake
from postroad.controller.spec.mailqueue import MailQueueSpec, Workers
from postroad.controller.spec.queue_resource import NO_PIPELINE, PipelineProgram, PodContext, Queue
from postroad.controller.status import conditions as condition
from postroad.controller.status.conditions import (
    Finding,
    Report,
    advice,
    attempt,
    bad,
    good,
    shortened,
    unknown,
)
from postroad.domain.values.instants import format_duration
from postroad.http_responses import parsed_json
from postroad.ports.clock import Clock
from postroad.ports.kubernetes import Kind, Kubernetes, Object

Workload = tuple[str, str, str, Workers | Intake | None]
"""Condition, plural name of its pods for messages, component, and its part of the spec."""


_WORKLOADS = frozenset(each.name for each in WORKLOADS)
_FIELDS = {manifests.WORKER: "workers", manifests.INTAKE: "intake"}
"""Fields of the status by component."""


def workloads_of(spec: MailQueueSpec) -> list[Workload]:
    """Return what a MailQueue runs, the workers first."""
    found: list[Workload] = [(condition.WORKERS_READY, "workers", manifests.WORKER, spec.workers)]
    if spec.intake:
        found.append((condition.INTAKE_READY, "intake pods", manifests.INTAKE, spec.intake))
    return found


def pending_report(spec: MailQueueSpec) -> Report:
    """Return the report about pods that are not made yet, because they would only fail."""
    message = "pods are created once the queue has a configuration"
    return Report([unknown(each, condition.PENDING, message) for each, *_ in workloads_of(spec)])


def stopped_report(spec: MailQueueSpec, why: Finding) -> Report:
    """Return the report about pods that are neither made nor changed."""
    return Report([unknown(each, why.reason, why.message) for each, *_ in workloads_of(spec)])


def workloads_report(plan: WorkloadsPlan, parts: Sequence[applying.AppliedPart]) -> Report:
    """Return the report about pods that were applied."""
    written = [each for part in parts for each in part.applied if each.is_written]
    report = Report(
        repairs=[each.repair for each in written if each.repair],
        applied=[as_child(each.object) for each in written],
    )
    wanted, name = workloads_of(plan.queue.spec), plan.queue.name.name
    failed = {each.component: each.failed for each in parts if each.failed}
    if manifests.QUEUE in failed:
        return report + Report(
            [replace(failed[manifests.QUEUE], condition=each) for each, *_ in wanted]
        )
    now = {place: each for part in parts for place, each in part.now.items()}
    findings, fields = [], dict[str, Any]()
    for workload in wanted:
        _, _, component, spec = workload
        kind = manifests.workload_kind(plan.queue, component).name
        deployment = now.get((kind, f"{name}-{component}"))
        altered = _rewritten(parts, component)
        finding = workload_finding(workload, deployment, altered)
        findings.append(failed.get(component) or finding)
        facts = _facts(plan, component, deployment, spec.replicas) if spec else None
        fields[_FIELDS[component]] = facts
    if any(each.waits for each in parts):
        message = f"its pods stay until QueueCluster {plan.cluster.name} upgrades it"
        findings.append(advice(condition.UP_TO_DATE, "UpgradeWaits", message))
    return report + Report(findings, fields)


def _facts(
    plan: WorkloadsPlan, component: str, deployment: Mapping[str, Any] | None, wanted: int
) -> dict[str, Any]:
    """Return what the status has about a Deployment."""
    facts = deployment_facts(deployment, wanted)
    if component != manifests.WORKER:
        facts.pop("replicas")
        return facts
    facts["selector"] = manifests.selector(plan.queue, component)
    if plan.scaling is not None:
        by_another = deployment is not None and hash_in(deployment, AUTOSCALED)
        facts["reason"] = BY_AUTOSCALER if by_another else plan.scaling
    return facts


def workload_finding(
    workload: Workload,
    deployment: Mapping[str, Any] | None,
    altered: Sequence[str] = (),
) -> Finding:
    """Return whether a Deployment has enough ready pods of its newest template. `altered`: what
    another process rewrites of what they depend on."""
    which, what, _, spec = workload
    if spec is not None and deployment is None:  # it could not be made, which is reported instead
        return bad(which, condition.PODS_NOT_READY, f"no {what} made", retryable=True)
    missing = shortage(deployment, spec.replicas, what) if deployment and spec else None
    if missing is not None:
        return bad(which, condition.PODS_NOT_READY, missing, retryable=True)
    if altered:
        message = f"an admission webhook or another controller rewrites {', '.join(altered)}"
        return bad(which, condition.REWRITTEN, message, retryable=True)
    if spec is None:
        return good(which, f"no {what} declared", "NoneDeclared")
    facts = deployment_facts(deployment, spec.replicas)
    return good(which, f"{facts['ready']} of {facts['desired']} {what} ready")


def _rewritten(parts: Sequence[applying.AppliedPart], component: str) -> list[str]:
    """Return what another process rewrites of a component, and of what all pods share."""
    return [
        each.rewritten
        for part in parts
        for each in part.applied
        if part.component in (manifests.QUEUE, component) and each.rewritten
    ]


def _replaced_later(
    found: applying.Found, place: applying.ChildName, present: Object | None, intake: Intake
) -> applying.Found:
    """Return the intake of the other kind, which runs on until this one is ready: an outbox was
    declared, or taken out."""
    is_ready = present is not None and shortage(present, intake.replicas, "") is None
    return {
        each: found[each]
        for kind in _WORKLOADS
        if (each := (kind, place[1])) != place and each in found and not is_ready
    }


def _kinds(queue: Queue, expected: Collection[applying.ChildName]) -> Sequence[Kind]:
    """Return the kinds to look for: StatefulSets where there is one, or is to be."""
    is_stateful = manifests.workload_kind(queue, manifests.INTAKE) is STATEFUL_SET
    if is_stateful or any(kind == STATEFUL_SET.name for kind, _ in expected):
        return CHILDREN
    return [each for each in CHILDREN if each is not STATEFUL_SET]


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
        pull_secrets: tuple[str, ...] = (),
    ) -> None:
        self._absences = absences
        self._pipeline = pipeline
        self._pull_secrets = pull_secrets
        self._api = api
        self._reads = reads
        self._image = image
        self._upgrades = upgrades
        self._answers = ApplyResponses(clock)

    def leave(self, queue: Key, *, on_purpose: bool = False) -> None:
        """Give up the place of a MailQueue whose pods are not replaced: on purpose, or because
        what they are to be is not known. Idempotent."""
        self._upgrades.end(queue)
        self._upgrades.note(queue, compared=on_purpose)

    async def observe(self, plan: WorkloadsPlan, before: Mapping[str, Any]) -> Report:
        """Return how many pods a paused MailQueue has, which end and begin without the operator.
        `before`: its status. Raises: KubernetesError."""
        queue, fields = plan.queue, dict[str, Any]()
        found = await applying.find_children(self._api, queue, WORKLOADS)
        for _, _, component, spec in workloads_of(queue.spec):
            kind, field = manifests.workload_kind(queue, component).name, _FIELDS[component]
            present = found.get((kind, f"{queue.name.name}-{component}"))
            if present is not None and spec is not None:
                known = before.get(field) or {}
                fields[field] = known | _facts(plan, component, present, spec.replicas)
        return Report(fields=fields)

    async def make(
        self,
        plan: WorkloadsPlan,
        expected: Collection[applying.ChildName],
        *,
        configured: bool,
        may_upgrade: bool,
    ) -> Report:
        """Apply the children once the queue has a configuration, because workers before would only
        fail; after that also while a server is away. `expected`: those that are there unless
        another process deleted them; `may_upgrade`: the pods may become those of this release."""
        queue = plan.queue
        if not configured:
            return pending_report(queue.spec)
        parts = await self._apply(plan, expected, may_upgrade=may_upgrade)
        now = {place: each for part in parts for place, each in part.now.items()}
        is_known = not any(each.failed for each in parts if each.component != PIPELINE)
        self._upgrades.note(queue.key, compared=is_known)
        if any(each.waits for each in parts):
            self._upgrades.wait(plan.cluster, queue.key)
        elif not any(kind in _WORKLOADS and is_rolling(now[kind, of]) for kind, of in now):
            self._upgrades.end(queue.key)
        report = workloads_report(plan, parts)
        if parts[0].failed is not None:
            return report
        jobs = Report()
        async with attempt(condition.PIPELINE_READY) as attempted:
            jobs = await report_pipeline(self._api, plan, now)
        refusal = parts[-1].failed or attempted.finding
        return report + (jobs if refusal.is_good else replace(jobs, findings=[refused(refusal)]))

    async def _apply(
        self, plan: WorkloadsPlan, expected: Collection[applying.ChildName], *, may_upgrade: bool
    ) -> Sequence[applying.AppliedPart]:
        queue = plan.queue
        versions, found = plan.tls_versions, applying.Found()
        async with attempt(manifests.QUEUE) as read:
            if versions is None:
                pods = await read_credentials(self._reads, queue.name.namespace, plan.servers)
                versions = pods.tls_versions
            found = await applying.find_children(self._api, queue, _kinds(queue, expected))
        if not read.finding.is_good:
            return [applying.AppliedPart(manifests.QUEUE, failed=read.finding)]
        image = queue.spec.image or self._image
        programs = self._pipeline, self._pull_secrets
        context = PodContext(plan.servers, image, versions, *programs)
        granted = may_upgrade and self._upgrades.is_granted(queue.key)
        wanted = [
            await self._wanted(queue, context, each, found, granted=granted)
            for each in applying.CONDITION_OF
        ]
        return await applying.apply_parts(self._api, queue, wanted, found, expected, self._answers)

    async def _wanted(
        self,
        queue: Queue,
        context: PodContext,
        component: str,
        found: applying.Found,
        *,
        granted: bool,
    ) -> applying.WantedPart:
        """Return what to apply of a component, once the Secrets and ConfigMaps that it names are
        there."""
        spec, namespace = queue.spec, queue.name.namespace
        kind, name = manifests.workload_kind(queue, component), f"{queue.name.name}-{component}"
        place = kind.name, name
        present, waits, children = found.get(place), False, list[manifests.Child]()
        async with attempt(applying.CONDITION_OF[component]) as attempted:
            await applying.take_over(self._api, queue, component, found)
            present = found.get(place)
            if component == manifests.WORKER and spec.workers:
                versions = await read_of_workers(self._reads, queue, spec.workers)
                versions = {**(context.tls_versions or {}), **versions}
                context = replace(context, tls_versions=versions)
            if component == manifests.INTAKE and spec.intake:
                await check_intake(self._reads, queue, spec.intake)
            if component == PIPELINE:
                if spec.pipeline is not None:
                    await check_pipeline_secrets(self._reads, namespace, spec.pipeline)
                children = pipeline_children(queue, context)
            else:
                autoscaled = await keeps_replicas(self._api, self._absences, present)
                children, waits = manifests.paced_children(
                    queue, context, component, present, autoscaled=autoscaled, granted=granted
                )
                if present is not None and waits and not autoscaled:
                    present = await self._scaled(present, queue, component)
        failed = None if attempted.finding.is_good else attempted.finding
        stays = {place: present} if present is not None and waits else {}
        beside: applying.Found = {}
        if component == manifests.INTAKE and spec.intake:
            beside = _replaced_later(found, place, present, spec.intake)
        return applying.WantedPart(component, children, stays, failed, beside)

    async def _scaled(self, present: Object, queue: Queue, component: str) -> Object:
        """Scale a Deployment that waits for an upgrade, of which all else stays."""
        spec = queue.spec.workers if component == manifests.WORKER else queue.spec.intake
        if spec is None or present["spec"].get("replicas") == spec.replicas:
            return present
        metadata, change = present["metadata"], {"spec": {"replicas": spec.replicas}}
        place = metadata["namespace"], metadata["name"]
        kind = manifests.workload_kind(queue, component)
        return await self._api.patch(kind, *place, change) or present


JOB_FAILED = "JobFailed"
MAX_NUMBER = 10**12
MAX_RESULT = 300
_ERROR = "postroad: "
"""Prefix that the line of an error begins with."""


async def report_pipeline(
    api: Kubernetes, plan: WorkloadsPlan, now: Mapping[tuple[str, str], Object]
) -> Report:
    """Report the jobs, and whether they run. Raises: KubernetesError."""
    queue, spec = plan.queue, plan.queue.spec.pipeline
    if spec is None:
        return Report(fields={"pipeline": None})
    declared = {job: now.get((CRON_JOB.name, job_name(queue, job))) for job in spec.scheduled}
    namespace, instance = queue.name.namespace, f"{INSTANCE}={queue.name.name}"
    labels = f"{MANAGED_BY}=postroad,{instance},{COMPONENT}={PIPELINE}"
    runs, pods = await api.list(JOB, namespace, labels), await api.list(POD, namespace, labels)
    before = {each["job"]: each for each in plan.jobs}
    entries = [
        job_status(
            before.get(job, {"job": job}),
            cron_job,
            [] if cron_job is None else manifests.owned_by(cron_job, runs),
            pods,
        )
        for job, cron_job in declared.items()
    ]
    return Report([finding_of(entries)], {"pipeline": entries or None})


def finding_of(entries: Sequence[Mapping[str, Any]]) -> Finding:
    """Return whether the last run of each job succeeded."""
    failures = [f"{each['job']} failed: {each['error']}" for each in entries if "error" in each]
    if failures:
        return advice(condition.PIPELINE_READY, JOB_FAILED, "; ".join(failures))
    names = ", ".join(each["job"] for each in entries)
    return good(condition.PIPELINE_READY, f"scheduled: {names}" if names else "no job is scheduled")


def refused(finding: Finding) -> Finding:
    """Return why the jobs are not as declared. Mail does not wait for them."""
    return replace(finding, condition=condition.PIPELINE_READY, advisory=True)


def job_status(
    before: Mapping[str, Any],
    cron_job: Mapping[str, Any] | None,
    runs: Sequence[Object],
    pods: Sequence[Object],
) -> dict[str, Any]:
    """Return what the status has about a job: of its last run that succeeded, and why a later one
    failed."""
    after = {name: value for name, value in before.items() if name != "error"}
    last = ((cron_job or {}).get("status") or {}).get("lastSuccessfulTime")
    if last is not None:
        after["lastSuccess"] = last
    ended = [each for each in runs if outcome_of(each) is not None]
    ended.sort(key=lambda each: str(each["metadata"].get("creationTimestamp")))
    for run in ended[-1:]:
        words = _last_words(run, pods)
        if outcome_of(run) == "Failed":
            after["error"] = error_of(run, words)
        elif words is not None:
            after |= summary(words)
    if not ended and "error" in before:
        after["error"] = before["error"]
    return after


def document_left(text: str) -> dict[str, Any]:
    """Return the JSON object that a pod left; an empty one for any other text."""
    try:
        found = parsed_json(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def summary(text: str) -> dict[str, Any]:
    """Return the fields that a run's summary gives; none for a text that is no summary."""
    found = document_left(text)
    try:
        counts = {str(name): int(count) for name, count in found["counts"].items()}
        result = ", ".join(f"{count} {name}" for name, count in counts.items()) or "nothing to do"
        fields: dict[str, Any] = {"result": shortened(result, MAX_RESULT)}
        if found.get("lag_seconds") is not None:
            fields["lag"] = format_duration(timedelta(seconds=_natural(found["lag_seconds"])))
        if found.get("findings") is not None:
            fields["findings"] = _natural(found["findings"])
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return {}
    return fields


def _natural(number: Any) -> int:
    """Return a number that the CRD takes. Raises: ValueError; the text is a pod's."""
    if not 0 <= int(number) <= MAX_NUMBER:
        raise ValueError(f"{number} is no number of findings or seconds")
    return int(number)


def outcome_of(run: Mapping[str, Any]) -> str | None:
    """Return Complete or Failed; None while a run is under way."""
    for each in (run.get("status") or {}).get("conditions") or []:
        if each["type"] in ("Complete", "Failed") and each["status"] == "True":
            return str(each["type"])
    return None


def _last_words(run: Mapping[str, Any], pods: Sequence[Object]) -> str | None:
    """Return what the container of the newest pod of a run left."""
    own = manifests.owned_by(run, pods)
    own.sort(key=lambda each: str(each["metadata"].get("creationTimestamp")))
    for pod in own[-1:]:
        for container in (pod.get("status") or {}).get("containerStatuses") or []:
            if container["name"] == PIPELINE:
                ended = (container.get("state") or {}).get("terminated") or {}
                return str(ended.get("message", ""))
    return None


def error_of(run: Mapping[str, Any], words: str | None) -> str:
    """Return the line in which the run names its error; else why Kubernetes ended it."""
    lines = [each for each in (words or "").splitlines() if each.startswith(_ERROR)]
    if lines:
        return shortened(lines[-1].removeprefix(_ERROR), MAX_RESULT)
    for each in (run.get("status") or {}).get("conditions") or []:
        if each["type"] == "Failed":
            return shortened(str(each.get("message") or each.get("reason")), MAX_RESULT)
    return "see the log of its pod"
