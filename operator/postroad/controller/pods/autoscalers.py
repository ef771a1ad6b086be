"""Finds out whether an autoscaler owns the replicas of a Deployment.

Who wrote them last does not tell: an autoscaler that is deleted leaves its name in `managedFields`,
and some write under names of their own. So the autoscalers themselves are asked, but only about a
Deployment whose scale another process wrote.
"""

from collections.abc import Mapping
from typing import Any

from postroad.controller.kubernetes.absences import Absences
from postroad.controller.kubernetes.api import AUTOSCALED, AUTOSCALERS, DEPLOYMENT
from postroad.controller.kubernetes.drift import hash_in
from postroad.ports.kubernetes import Kubernetes, Object


async def keeps_replicas(api: Kubernetes, absences: Absences, present: Object | None) -> bool:
    """True if an autoscaler has the replicas of a Deployment, or had them before it went: one that
    is replaced comes back, and pods that it made would be gone meanwhile. Raises: KubernetesError.
    """
    if present is None:
        return False
    uid = present["metadata"]["uid"]
    has_autoscaler = await is_autoscaled(api, present)
    if has_autoscaler or not hash_in(present, AUTOSCALED):
        absences.end(uid)
        return has_autoscaler
    return not absences.lasts(uid)


async def is_autoscaled(api: Kubernetes, deployment: Object) -> bool:
    """True if another process scaled a Deployment for which there is an autoscaler. Raises:
    KubernetesError."""
    if not is_scaled_by_another(deployment):
        return False
    metadata = deployment["metadata"]
    for kind in AUTOSCALERS:
        if await api.serves(kind):
            found = await api.list(kind, metadata["namespace"])
            if any(targets(each, metadata["name"]) for each in found):
                return True
    return False


def is_scaled_by_another(deployment: Mapping[str, Any]) -> bool:
    """True if the replicas were last written by the scale subresource, as autoscalers do."""
    return any(
        entry.get("subresource") == "scale"
        and "f:replicas" in (entry.get("fieldsV1") or {}).get("f:spec", {})
        for entry in deployment["metadata"].get("managedFields") or []
    )


def targets(autoscaler: Mapping[str, Any], deployment: str) -> bool:
    """True if an autoscaler scales this Deployment of its namespace."""
    target = autoscaler["spec"].get("scaleTargetRef") or {}
    return (target.get("kind") or DEPLOYMENT.name, target.get("name")) == (
        DEPLOYMENT.name,
        deployment,
    )
