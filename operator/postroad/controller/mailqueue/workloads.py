"""How the pods of a MailQueue are: findings and fields of its status, from its Deployments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from postroad.controller.kubernetes.api import DEPLOYMENT
from postroad.controller.pods.children import QUEUE, WORKER, selector
from postroad.controller.spec.intake import Intake
from postroad.controller.spec.mailqueue import Workers
from postroad.controller.status.conditions import PODS_NOT_READY, REWRITTEN, Finding, bad, good
from postroad.controller.status.reconcile import ReconcileState
from postroad.controller.status.status import deployment_facts
from postroad.errors import QuotaExceeded
from postroad.ports.kubernetes import Object


def report_workload(
    state: ReconcileState,
    now: Mapping[tuple[str, str], Object],
    which: str,
    what: str,
    component: str,
    spec: Workers | Intake | None,
) -> Finding:
    """Put the facts of a component into the report's fields; return whether its pods are ready."""
    field = "workers" if component == WORKER else "intake"
    if spec is None:
        state.report.fields[field] = None
        return good(which, f"no {what} declared", "NoneDeclared")
    deployment = now.get((DEPLOYMENT.name, f"{state.queue.name.name}-{component}"))
    facts: dict[str, Any] = dict(deployment_facts(deployment, spec.replicas))
    if component == WORKER:
        facts["selector"] = selector(state.queue, component)
    else:
        facts.pop("replicas")
    state.report.fields[field] = facts
    if deployment is None:  # it could not be made, which is reported instead
        return bad(which, PODS_NOT_READY, f"no {what} made", retryable=True)
    return workload_finding(which, what, deployment, spec.replicas)


def as_applied(state: ReconcileState, component: str, found: Finding) -> Finding:
    """Return the finding, or a bad one where another process rewrites what the pods depend on."""
    altered = [each for part in (QUEUE, component) for each in state.rewritten.get(part, [])]
    if not altered or not found.is_good:
        return found
    message = f"an admission webhook or another controller rewrites {', '.join(altered)}"
    return bad(found.condition, REWRITTEN, message, retryable=True)


def within_quota(state: ReconcileState, most: int | None, found: Finding) -> Finding:
    """Return the finding, or a bad one where the quota allows fewer workers than are declared."""
    workers, made = state.queue.spec.workers, (state.report.fields.get("workers") or {})
    if workers is None or most is None or not found.is_good:
        return found
    if made["desired"] >= workers.replicas or workers.replicas <= most:
        return found
    message = (
        f"{made['desired']} of {workers.replicas} workers made: the QueueCluster has {most} for "
        "each MailQueue (spec.quota.workersPerQueue)"
    )
    return bad(found.condition, QuotaExceeded.__name__, message, retryable=False)


def workload_finding(
    condition: str, what: str, deployment: Mapping[str, Any], wanted: int
) -> Finding:
    """Return whether a Deployment has enough ready pods of its newest template."""
    facts = deployment_facts(deployment, wanted)
    status = deployment.get("status") or {}
    seen = status.get("observedGeneration", -1) >= deployment["metadata"]["generation"]
    updated = int(status.get("updatedReplicas") or 0)
    ready, desired = facts["ready"], facts["desired"]
    if seen and ready >= desired and updated >= desired and facts["replicas"] == desired:
        return good(condition, f"{ready} of {desired} {what} ready")
    error = _error_text(status)
    message = f"{ready} of {desired} {what} ready, {min(updated, desired)} up to date"
    return bad(condition, PODS_NOT_READY, f"{message}{error}", retryable=True)


def _error_text(status: Mapping[str, Any]) -> str:
    """Return why a Deployment cannot create pods, or has waited too long for them."""
    for each in status.get("conditions") or []:
        stuck = each["type"] == "Progressing" and each["status"] == "False"
        if stuck or (each["type"] == "ReplicaFailure" and each["status"] == "True"):
            return f": {each.get('message', each.get('reason', ''))}"
    return ""
