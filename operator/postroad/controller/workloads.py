"""Turns the state of a Deployment into a finding: pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from postroad.controller.conditions import PODS_NOT_READY, Finding, bad, good
from postroad.controller.status import deployment_facts


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
