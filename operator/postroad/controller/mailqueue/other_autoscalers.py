"""Finds out whether another autoscaler has the replicas of a Deployment, or of a MailQueue.

Who wrote replicas last does not tell whether an autoscaler owns them: one that is deleted leaves
its name in `managedFields`, and some write under names of their own. So the autoscalers themselves
are asked, but only about an object whose scale another process wrote."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from postroad.controller.kubernetes.api import AUTOSCALED, AUTOSCALERS, DEPLOYMENT
from postroad.controller.kubernetes.drift import hash_in
from postroad.controller.reads import Absences
from postroad.ports.kubernetes import Kubernetes, Object

LOOK = timedelta(seconds=15)
"""Interval at which an autoscaler that decides is looked for: no watch brings them."""

PATIENCE = timedelta(seconds=30)
"""Time for which the replicas stay as an autoscaler left them: one that is replaced comes back, and
pods that it made would be gone meanwhile."""


async def keeps_replicas(api: Kubernetes, absences: Absences, present: Object | None) -> bool:
    """True if an autoscaler has the replicas of a Deployment, or had them just before it went.
    Raises: KubernetesError."""
    if present is None:
        return False
    uid = present["metadata"]["uid"]
    has_autoscaler = await is_autoscaled(api, present)
    if has_autoscaler or not hash_in(present, AUTOSCALED):
        absences.end(uid)
        return has_autoscaler
    return not absences.lasts(uid, PATIENCE)


async def is_autoscaled(api: Kubernetes, scaled: Object) -> bool:
    """True if another process scaled an object that has an autoscaler. Raises: KubernetesError."""
    metadata = scaled["metadata"]
    if not any(each.get("subresource") == "scale" for each in metadata.get("managedFields") or []):
        return False
    for kind in AUTOSCALERS:
        if await api.serves(kind):
            found = await api.list(kind, metadata["namespace"])
            if any(targets(each, scaled["kind"], metadata["name"]) for each in found):
                return True
    return False


def targets(autoscaler: Mapping[str, Any], kind: str, name: str) -> bool:
    """True if an autoscaler scales this object of its namespace."""
    target = autoscaler["spec"].get("scaleTargetRef") or {}
    return (target.get("kind") or DEPLOYMENT.name, target.get("name")) == (kind, name)
