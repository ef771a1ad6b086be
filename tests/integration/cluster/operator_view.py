"""The operator's conditions about a cluster's servers: its own reconciliation, without
Kubernetes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from postroad.adapters.clocks import MachineClock
from postroad.bootstrap.cluster import connect
from postroad.controller.cluster.clusters import Clusters
from postroad.controller.cluster.consoles import Consoles
from postroad.controller.cluster.health import ClusterHealth
from postroad.controller.credentials import Connections
from postroad.controller.kubernetes.api import QUEUE_CLUSTER, SECRET
from postroad.controller.pods.upgrades import Upgrades
from postroad.controller.reads import Absences, Indexes
from postroad.controller.spec.cluster import DEFAULT_CLASS
from postroad.controller.status.status_writer import StatusWriter
from postroad.ports.kubernetes import Kubernetes
from support.memory.kubernetes.client import MemoryKubernetes
from support.memory.kubernetes.world import KubernetesWorld
from support.named_servers import named_cluster, named_secrets

NAMESPACE = "mail"
TIMEOUT_SECONDS = 600


class OperatorView:
    """An operator with one QueueCluster, which is reconciled whenever its conditions are asked."""

    def __init__(self, api: Kubernetes, connections: Connections) -> None:
        clock = MachineClock()
        self._api = api
        upgrades = Upgrades(api, Indexes(), clock)
        clusters = Clusters(api, connections, Absences(clock))
        consoles = Consoles(api, clock, "postroad-console", DEFAULT_CLASS, "postroad:1")
        writer = StatusWriter(api, clock)
        self._health = ClusterHealth(api, clusters, writer, clock, upgrades, consoles)

    async def conditions(self) -> Mapping[str, Mapping[str, Any]]:
        """Reconcile, and return the conditions by type."""
        found = await self._api.get(QUEUE_CLUSTER, NAMESPACE, "main")
        assert found is not None
        status = await self._health.reconcile(found)
        return {each["type"]: each for each in status["conditions"]}

    async def until(
        self, claim: Callable[[Mapping[str, Mapping[str, Any]]], bool]
    ) -> Mapping[str, Mapping[str, Any]]:
        """Reconcile until the conditions satisfy `claim`, and return them."""
        found = await self.conditions()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TIMEOUT_SECONDS):
                while not claim(found):
                    await asyncio.sleep(1)
                    found = await self.conditions()
        assert claim(found), found
        return found


@contextlib.asynccontextmanager
async def operator_of(variables: Mapping[str, str]) -> AsyncIterator[OperatorView]:
    """Yield an operator whose QueueCluster has the servers of the variables."""
    connections = Connections(connect)
    try:
        api = MemoryKubernetes(KubernetesWorld(MachineClock()))
        await api.create(QUEUE_CLUSTER, named_cluster(variables, NAMESPACE))
        for each in named_secrets(variables, NAMESPACE):
            await api.create(SECRET, each)
        yield OperatorView(api, connections)
    finally:
        await connections.close()
