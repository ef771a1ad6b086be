"""Reports the pods of a MailQueue, from its Deployments: findings, fields of its status. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from postroad.controller.kubernetes.api import DEPLOYMENT
from postroad.controller.mailqueue.applying import AppliedPart
from postroad.controller.mailqueue.plan import WorkloadsPlan
from postroad.controller.pods.manifests import INTAKE, QUEUE, WORKER, selector
from postroad.controller.reads import as_child
from postroad.controller.spec.intake import Intake
from postroad.controller.spec.mailqueue import MailQueueSpec, Workers
from postroad.controller.status import conditions as condition
from postroad.controller.status.conditions import Finding, advice, bad, good, unknown
from postroad.controller.status.status import Report
from postroad.errors import QuotaExceeded

Workload = tuple[str, str, str, Workers | Intake | None]
"""Condition, plural name of its pods for messages, component, and its part of the spec."""


def workloads_of(spec: MailQueueSpec) -> list[Workload]:
    """Return what a MailQueue runs, the workers first."""
    found: list[Workload] = [(condition.WORKERS_READY, "workers", WORKER, spec.workers)]
    if spec.intake:
        found.append((condition.INTAKE_READY, "intake pods", INTAKE, spec.intake))
    return found


def pending_report(spec: MailQueueSpec) -> Report:
    """Return the report about pods that are not made yet, because they would only fail."""
    message = "pods are created once the queue has a configuration"
    return Report([unknown(each, condition.PENDING, message) for each, *_ in workloads_of(spec)])


def workloads_report(
    plan: WorkloadsPlan, parts: Sequence[AppliedPart], certificate: Finding
) -> Report:
    """Return the report about pods that were applied. `certificate`: whether the intake can serve
    TLS with its own."""
    written = [each for part in parts for each in part.applied if each.is_written]
    report = Report(
        repairs=[each.repair for each in written if each.repair],
        applied=[as_child(each.object) for each in written],
    )
    wanted, name = workloads_of(plan.queue.spec), plan.queue.name.name
    failed = {each.component: each.failed for each in parts if each.failed}
    if QUEUE in failed:
        return report + Report([replace(failed[QUEUE], condition=each) for each, *_ in wanted])
    now = {place: each for part in parts for place, each in part.now.items()}
    findings, fields = [], dict[str, Any]()
    for workload in wanted:
        _, _, component, spec = workload
        deployment = now.get((DEPLOYMENT.name, f"{name}-{component}"))
        facts = deployment_facts(deployment, spec.replicas) if spec else None
        altered = _rewritten(parts, component)
        finding = workload_finding(workload, deployment, altered, plan.most_workers)
        findings.append(failed.get(component) or finding)
        if facts is not None and component == WORKER:
            facts["selector"] = selector(plan.queue, component)
        elif facts is not None:
            facts.pop("replicas")
        fields["workers" if component == WORKER else component] = facts
    if not certificate.is_good:  # why pods are not ready, which they cannot report
        findings[-1] = certificate
    if any(each.waits for each in parts):
        message = f"its pods stay until QueueCluster {plan.cluster.name} upgrades it"
        findings.append(advice(condition.UP_TO_DATE, "UpgradeWaits", message))
    return report + Report(findings, fields)


def workload_finding(
    workload: Workload,
    deployment: Mapping[str, Any] | None,
    altered: Sequence[str] = (),
    most_workers: int | None = None,
) -> Finding:
    """Return whether a Deployment has enough ready pods of its newest template. `altered`: what
    another process rewrites of what they depend on; `most_workers`: the quota."""
    which, what, component, spec = workload
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
    facts, most = deployment_facts(deployment, spec.replicas), most_workers
    desired = facts["desired"]
    if component == WORKER and most is not None and max(most, desired) < spec.replicas:
        message = (
            f"{desired} of {spec.replicas} workers made: the QueueCluster has {most} for "
            "each MailQueue (spec.quota.workersPerQueue)"
        )
        return bad(which, QuotaExceeded.__name__, message, retryable=False)
    return good(which, f"{facts['ready']} of {desired} {what} ready")


def shortage(deployment: Mapping[str, Any], wanted: int, what: str) -> str | None:
    """Return what a Deployment lacks of ready pods of its newest template; None: nothing."""
    facts, status = deployment_facts(deployment, wanted), deployment.get("status") or {}
    seen = status.get("observedGeneration", -1) >= deployment["metadata"]["generation"]
    updated = int(status.get("updatedReplicas") or 0)
    ready, desired = facts["ready"], facts["desired"]
    if seen and ready >= desired and updated >= desired and facts["replicas"] == desired:
        return None
    message = f"{ready} of {desired} {what} ready, {min(updated, desired)} up to date"
    for each in status.get("conditions") or []:  # no pods can be made, or it waited too long
        stuck = each["type"] == "Progressing" and each["status"] == "False"
        if stuck or (each["type"] == "ReplicaFailure" and each["status"] == "True"):
            return f"{message}: {each.get('message', each.get('reason', ''))}"
    return message


def _rewritten(parts: Sequence[AppliedPart], component: str) -> list[str]:
    """Return what another process rewrites of a component, and of what all pods share."""
    return [
        each.rewritten
        for part in parts
        for each in part.applied
        if part.component in (QUEUE, component) and each.rewritten
    ]


def deployment_facts(deployment: Mapping[str, Any] | None, wanted: int) -> dict[str, Any]:
    """Return ready, desired and present replicas of a Deployment."""
    if deployment is None:
        return {"ready": 0, "desired": wanted, "replicas": 0}
    status = deployment.get("status") or {}
    return {
        "ready": int(status.get("readyReplicas") or 0),
        "desired": int(deployment["spec"].get("replicas", wanted)),
        "replicas": int(status.get("replicas") or 0),
    }
