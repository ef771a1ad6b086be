"""The controller of Deployments, for an API server in memory."""

from __future__ import annotations

from contextlib import suppress

from postroad.adapters.memory.kubernetes import MemoryKubernetes
from postroad.adapters.memory.kubernetes_world import KubernetesWorld
from postroad.controller.api import DEPLOYMENT
from postroad.errors import KubernetesConflict


async def control_deployments(world: KubernetesWorld) -> None:
    """Report that all replicas of Deployments are there and ready, until cancelled."""
    manager = MemoryKubernetes(world, "kube-controller-manager")
    async for happened, body in world.watch(DEPLOYMENT):
        status = {"observedGeneration": body["metadata"]["generation"]}
        if replicas := body["spec"].get("replicas"):
            counts = ("replicas", "readyReplicas", "updatedReplicas")
            status |= dict.fromkeys(counts, replicas)
        if happened != "DELETED" and body.get("status") != status:
            with suppress(KubernetesConflict):
                await manager.replace_status(DEPLOYMENT, {**body, "status": status})
