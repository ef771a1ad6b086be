"""State of the pods of a MailQueue: findings and fields of its status, from its Deployments."""

from collections.abc import Mapping, Sequence
from typing import Any

from postroad.controller.kubernetes.api import DEPLOYMENT
from postroad.controller.pods.children import WORKER, selector
from postroad.controller.spec.intake import Intake
from postroad.controller.spec.mailqueue import Workers
from postroad.controller.spec.queue_resource import Queue
from postroad.controller.status.conditions import PODS_NOT_READY, REWRITTEN, Finding, bad, good
from postroad.controller.status.status import deployment_facts
from postroad.errors import QuotaExceeded
from postroad.ports.kubernetes import Object

Workload = tuple[str, str, str, Workers | Intake | None]
"""Condition, plural name of its pods for messages, component, and its part of the spec."""


def workload_status(
    queue: Queue, workload: Workload, now: Mapping[tuple[str, str], Object]
) -> tuple[Finding, dict[str, Any] | None]:
    """Return whether the pods of a component are ready, and its facts for the status."""
    which, what, component, spec = workload
    if spec is None:
        return good(which, f"no {what} declared", "NoneDeclared"), None
    deployment = now.get((DEPLOYMENT.name, f"{queue.name.name}-{component}"))
    facts: dict[str, Any] = dict(deployment_facts(deployment, spec.replicas))
    if component == WORKER:
        facts["selector"] = selector(queue, component)
    else:
        facts.pop("replicas")
    if deployment is None:  # it could not be made, which is reported instead
        return bad(which, PODS_NOT_READY, f"no {what} made", retryable=True), facts
    return workload_finding(which, what, deployment, spec.replicas), facts


def as_applied(altered: Sequence[str], found: Finding) -> Finding:
    """Return the finding, or a bad one where another process rewrites what the pods depend on."""
    if not altered or not found.is_good:
        return found
    message = f"an admission webhook or another controller rewrites {', '.join(altered)}"
    return bad(found.condition, REWRITTEN, message, retryable=True)


def within_quota(
    wanted: int, made: Mapping[str, Any] | None, most: int | None, found: Finding
) -> Finding:
    """Return the finding, or a bad one where the quota allows fewer workers than are `wanted`."""
    if made is None or most is None or not found.is_good:
        return found
    if made["desired"] >= wanted or wanted <= most:
        return found
    message = (
        f"{made['desired']} of {wanted} workers made: the QueueCluster has {most} for "
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
