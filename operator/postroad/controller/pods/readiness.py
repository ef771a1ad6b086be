"""Readiness of Deployments and StatefulSets, from their status: pure."""

from collections.abc import Mapping
from typing import Any


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


def has_ready_pods(deployment: Mapping[str, Any]) -> bool:
    """True if pods that a Deployment has by its present spec are ready."""
    status = deployment.get("status") or {}
    seen = status.get("observedGeneration", -1) >= deployment["metadata"]["generation"]
    return seen and bool(deployment["spec"].get("replicas") and status.get("readyReplicas"))


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
