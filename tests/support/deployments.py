"""The controller of Deployments, for an API server in memory."""

from __future__ import annotations

from contextlib import suppress

from postroad.adapters.memory.kubernetes import MemoryKubernetes
from postroad.adapters.memory.kubernetes_world import KubernetesWorld
from postroad.controller.api import DEPLOYMENT
from postroad.errors import KubernetesConflict


async def control_deployments(world: KubernetesWorld) -> None:
    """Report that Deployments without replicas are seen, until cancelled."""
    manager = MemoryKubernetes(world, "kube-controller-manager")
    async for happened, body in world.watch(DEPLOYMENT):
        status = {"observedGeneration": body["metadata"]["generation"]}
        if happened != "DELETED" and body.get("status") != status:
            with suppress(KubernetesConflict):
                await manager.replace_status(DEPLOYMENT, {**body, "status": status})
