"""The reconciles of QueueClusters and of queues' servers, over an API server and servers in
memory: for tests of what resources do to each other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from postroad.adapters.memory.servers import MemoryServers, MemoryWorld
from postroad.controller.cluster.clusters import Clusters
from postroad.controller.cluster.consoles import Consoles
from postroad.controller.cluster.health import ClusterHealth
from postroad.controller.cluster.queue_logins import QueueLogins
from postroad.controller.credentials import Connections
from postroad.controller.kubernetes.api import MAIL_QUEUE, QUEUE_CLUSTER
from postroad.controller.mailqueue.plan import plan_of
from postroad.controller.mailqueue.queue_metrics import Engines
from postroad.controller.mailqueue.queues import QueueServers
from postroad.controller.pods.upgrades import Upgrades
from postroad.controller.reads import Absences, Indexes
from postroad.controller.spec.cluster import DEFAULT_CLASS
from postroad.controller.spec.queue_resource import Queue
from postroad.controller.status.conditions import Status, composed
from postroad.controller.status.status_writer import StatusWriter
from postroad.ports.kubernetes import Kind, Object
from support import resources
from support.admission import admitted
from support.memory.clock import ManualClock, SeededRandomness
from support.memory.fault_injection import FaultInjector
from support.memory.kubernetes.client import MemoryKubernetes
from support.memory.kubernetes.world import KubernetesWorld

NAMESPACE = "mail"


@dataclass
class World:
    """Kubernetes and the servers, which outlive every operator."""

    clock: ManualClock = field(default_factory=ManualClock)
    faults: FaultInjector = field(default_factory=FaultInjector)
    ambient_credentials: bool = False

    def __post_init__(self) -> None:
        self.memory = MemoryWorld(self.clock)
        self.kubernetes = KubernetesWorld(self.clock)
        self.kubernetes.admission = admitted
        self.api = MemoryKubernetes(self.kubernetes)
        self.user = MemoryKubernetes(self.kubernetes, "user")
        self._start()

    async def declare(self) -> None:
        """Create the QueueCluster `main` with its Secrets, and the MailQueue `outgoing`."""
        cluster = resources.queue_cluster(NAMESPACE)
        await self.add(*resources.secrets(NAMESPACE), cluster, resources.mail_queue(NAMESPACE))

    async def add(self, *wanted: Object) -> None:
        """Create objects as a user."""
        for each in wanted:
            kind = Kind(each["apiVersion"], each["kind"], f"{each['kind'].lower()}s")
            created = await self.user.create(kind, each)
            if "status" in each:
                await self.user.replace_status(kind, {**created, "status": each["status"]})

    async def change(self, kind: Kind, name: str, **spec: Any) -> None:
        """Change the spec of a resource as a user."""
        assert await self.user.patch(kind, NAMESPACE, name, {"spec": spec})

    def events(self) -> list[Object]:
        """Return all Events."""
        return [each for (kind, *_), each in self.kubernetes.objects.items() if kind == "events"]

    async def restart(self) -> None:
        """Go on with an operator that remembers nothing."""
        await self.close()
        self._start()

    async def close(self) -> None:
        """End the operator."""
        await self.connections.close()

    def _start(self) -> None:
        self.connections = Connections(lambda settings: self.connect())
        self.clusters = Clusters(
            self.api,
            self.connections,
            Absences(self.clock),
            ambient_credentials=self.ambient_credentials,
        )
        engines = Engines(self.clock, SeededRandomness(1))
        logins = QueueLogins(self.api, self.clusters, self.clock)
        self.servers = QueueServers(self.clusters, engines, self.clock, logins)
        status_writer = StatusWriter(self.api, self.clock)
        upgrades = Upgrades(self.api, Indexes(), self.clock)
        consoles = Consoles(self.api, self.clock, "postroad-console", DEFAULT_CLASS, "postroad:1")
        self.health = ClusterHealth(
            self.api, self.clusters, status_writer, self.clock, upgrades, consoles
        )

    def connect(self) -> MemoryServers:
        """Return the servers, as another process has them."""
        return MemoryServers(self.memory, self.faults)

    async def cluster(self, name: str = "main") -> Status:
        """Reconcile a QueueCluster, and return its status."""
        return await self.health.reconcile(await self.found(name))

    async def found(self, name: str = "main", kind: Kind = QUEUE_CLUSTER) -> Object:
        """Return a resource."""
        found = await self.api.get(kind, NAMESPACE, name)
        assert found is not None
        return found

    async def queue(
        self, name: str = "outgoing", namespace: str = NAMESPACE, *, alone: bool = False
    ) -> Status:
        """Reconcile the servers of a MailQueue, write and return its status; before, unless
        `alone`, its QueueCluster that has no tables yet. Raises: the error for which the operator
        touches no server."""
        found = await self.api.get(MAIL_QUEUE, namespace, name)
        assert found is not None
        before = found.get("status") or {}
        queue = Queue.of(found)
        place = queue.cluster_namespace, queue.spec.cluster_ref.name
        uses = await self.api.get(QUEUE_CLUSTER, *place) or {}
        if not alone and "tables" not in uses.get("status", {}):
            await self.cluster(place[1])
        cluster = await self.clusters.for_queue(queue)
        await self.clusters.claims.check_keyspace(cluster.keyspace)
        prepared = await self.servers.prepare(plan_of(queue, cluster, before))
        after = composed(before, prepared.report, queue.generation, self.clock.now())
        await self.api.replace_status(MAIL_QUEUE, {**found, "status": after})
        return after


def reasons(status: Status) -> dict[str, str]:
    """Return the reasons of the conditions that are not true."""
    listed: list[dict[str, Any]] = status["conditions"]
    return {each["type"]: each["reason"] for each in listed if each["status"] != "True"}
