"""Applies a MailQueue's children that differ, and deletes those that are no longer wanted."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from postroad.controller.actions import log_action
from postroad.controller.api import CHILDREN, COMPONENT, DEPLOYMENT, INSTANCE, MANAGED_BY
from postroad.controller.children import Child
from postroad.controller.drift import is_current
from postroad.controller.queue_resource import Queue
from postroad.errors import NameTaken
from postroad.ports.kubernetes import Kind, Kubernetes, Object

Found = dict[tuple[str, str], Object]
"""Children by kind and name."""

AUTOSCALER = "kube-controller-manager"
"""Field manager of a HorizontalPodAutoscaler that writes a Deployment's scale."""


async def find_children(api: Kubernetes, queue: Queue) -> Found:
    """Return the children that this MailQueue owns, not those of an earlier one of its name."""
    labels = f"{MANAGED_BY}=postroad,{INSTANCE}={queue.name.name}"
    lists = await asyncio.gather(
        *(api.list(kind, queue.name.namespace, labels) for kind in CHILDREN)
    )
    return {
        (kind.name, each["metadata"]["name"]): each
        for kind, found in zip(CHILDREN, lists, strict=True)
        for each in found
        if is_owned(each, queue.uid)
    }


async def apply_children(
    api: Kubernetes, queue: Queue, wanted: Sequence[Child], found: Found
) -> Found:
    """Make children as wanted, without a write for those that are; return them as they are now.
    Raises: NameTaken, KubernetesError."""
    now: Found = {}
    for kind, child in wanted:
        place = (kind.name, child["metadata"]["name"])
        present = found.get(place)
        if present is None:
            await _require_free(api, queue, kind, child)
        if is_current(child, present) and present is not None:
            now[place] = present
        else:
            now[place] = await api.apply(kind, child)
            log_action("applied a child", child=" ".join(place), existed=present is not None)
    return now


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


async def _require_free(
    api: Kubernetes, queue: Queue, kind: Kind, child: Mapping[str, Any]
) -> None:
    metadata = child["metadata"]
    other = await api.get(kind, metadata["namespace"], metadata["name"])
    if other is not None and not is_owned(other, queue.uid):
        raise NameTaken(
            f"{kind.name} {metadata['name']} exists already, and this MailQueue does not own it",
            hint="delete or rename it; the API server removes that of an earlier MailQueue",
        )


def is_owned(child: Mapping[str, Any], uid: str) -> bool:
    """Whether an object is controlled by the owner with this uid."""
    owners = child["metadata"].get("ownerReferences") or []
    return any(each.get("controller") and each["uid"] == uid for each in owners)


def scaled_elsewhere(found: Found) -> frozenset[str]:
    """Return the names of the Deployments whose replicas an autoscaler wrote last."""
    return frozenset(
        name
        for (kind, name), each in found.items()
        if kind == DEPLOYMENT.name
        and any(
            entry.get("subresource") == "scale"
            and entry.get("manager") == AUTOSCALER
            and "f:replicas" in (entry.get("fieldsV1") or {}).get("f:spec", {})
            for entry in each["metadata"].get("managedFields") or []
        )
    )
