"""The controllers of Deployments and StatefulSets, for an API server in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import suppress
from copy import deepcopy
from typing import Any

from postroad.controller.kubernetes.api import WORKLOADS
from postroad.errors import KubernetesConflict
from postroad.ports.kubernetes import Kind
from support.memory.kubernetes.client import MemoryKubernetes
from support.memory.kubernetes.field_ownership import Manager, updated
from support.memory.kubernetes.world import KubernetesWorld, ObjectPlace

EXCEEDED = "pods is forbidden: exceeded quota: small"


async def control_deployments(
    world: KubernetesWorld, broken: Collection[str] = (), short: Collection[str] = ()
) -> None:
    """Report that all replicas of Deployments and StatefulSets are ready, until cancelled; of those
    with a `broken` image, that the first new pod never gets ready; of those with a name in `short`,
    that a quota lets no pod of a changed template be made."""
    async with asyncio.TaskGroup() as tasks:
        for kind in WORKLOADS:
            tasks.create_task(_control(world, kind, broken, short))


async def _control(
    world: KubernetesWorld, kind: Kind, broken: Collection[str], short: Collection[str]
) -> None:
    manager = MemoryKubernetes(world, "kube-controller-manager")
    async for happened, body in world.watch(kind):
        counts = ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas")
        status: dict[str, Any] = {"observedGeneration": body["metadata"]["generation"]}
        if replicas := body["spec"].get("replicas"):
            status |= dict.fromkeys(counts, replicas)
            if body["spec"]["template"]["spec"]["containers"][0]["image"] in broken:
                status |= {"replicas": replicas + 1, "updatedReplicas": 1}
            if body["metadata"]["name"] in short and body["metadata"]["generation"] > 1:
                failure = {"type": "ReplicaFailure", "status": "True", "message": EXCEEDED}
                status |= {"updatedReplicas": 0, "conditions": [failure]}
        if happened != "DELETED" and body.get("status") != status:
            with suppress(KubernetesConflict):
                await manager.replace_status(kind, {**body, "status": status})


def scale(world: KubernetesWorld, place: ObjectPlace, replicas: int, manager: str) -> None:
    """Write the scale of a Deployment, as autoscalers and `kubectl scale` do."""
    found = world.objects[place]
    changed = deepcopy(found)
    changed["spec"]["replicas"] = replicas
    world.put(place, updated(found, changed, Manager(manager, "Update", "scale")))
