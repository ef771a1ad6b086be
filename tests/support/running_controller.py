"""The controller over an API server and servers in memory, on an event loop whose time tests move.

Intervals are those of production. `Kopf`'s part, bringing the watches' events, is done here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Mapping
from datetime import datetime, timedelta
from typing import Any

from postroad.adapters.memory.servers import MemoryServers, MemoryWorld
from postroad.controller.kubernetes.api import (
    MAIL_QUEUE,
    MAIL_QUEUE_TASK,
    MANAGED_BY,
    QUEUE_CLUSTER,
)
from postroad.controller.reads import OWN, WATCHED
from postroad.controller.run.controller import Controller
from postroad.controller.run.options import Options
from postroad.controller.run.workqueue import TASKS
from postroad.controller.spec.cluster import DEFAULT_CLASS
from postroad.ports.kubernetes import Kind, Object
from postroad.ports.servers import Checked, Servers
from postroad.settings import Settings
from support import resources
from support.admission import admitted
from support.deployments import control_deployments
from support.manual_loop import move
from support.memory.clock import START, SeededRandomness
from support.memory.fault_injection import UNAVAILABLE, FaultInjector, Step, faults_of
from support.memory.kubernetes.client import MemoryKubernetes
from support.memory.kubernetes.world import KubernetesWorld, ObjectPlace

NAMESPACE = "mail"
CHECK_SECONDS = 4.0


class LoopClock:
    """The time of the event loop."""

    def now(self) -> datetime:
        return START + self.elapsed()

    def elapsed(self) -> timedelta:
        return timedelta(seconds=asyncio.get_running_loop().time())

    async def sleep(self, duration: timedelta) -> None:
        await asyncio.sleep(duration.total_seconds())


class CountedServers(MemoryServers):
    """Servers that record whether they were closed."""

    closed = False

    async def check(self, *, brief: bool = False) -> dict[str, Checked]:
        servers = {"rabbitmq": "broker", "cassandra": "view", "s3": "blobs"}
        found = await asyncio.gather(*map(self._check, servers.values()))
        return dict(zip(servers, found, strict=True))

    async def _check(self, server: str) -> Checked:
        step = Step(0, server, "check")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CHECK_SECONDS):
                faults = faults_of(self)
                if faults.before:
                    await faults.before(step)
                if not faults.plan(step):
                    return Checked("memory")
        return Checked(error=UNAVAILABLE[server]())

    async def close(self) -> None:
        self.closed = True


class RunningController:
    """A running controller. `name` is that of its Kubernetes cluster, `namespaces` those that it
    watches; none: all. `beside` runs in the same cluster, over the same servers. `keyspaces` has
    the servers of QueueClusters with other keyspaces than the default."""

    def __init__(
        self,
        name: str = "kubernetes",
        world: MemoryWorld | None = None,
        *,
        namespaces: tuple[str, ...] = (),
        beside: RunningController | None = None,
        operator_class: str = DEFAULT_CLASS,
        image: str | None = None,
    ) -> None:
        self.clock = LoopClock()
        self._namespaces = namespaces
        fresh = KubernetesWorld(self.clock, name=name)
        fresh.admission = admitted
        self.kubernetes: KubernetesWorld = beside.kubernetes if beside else fresh
        self.api = MemoryKubernetes(self.kubernetes)
        self.user = MemoryKubernetes(self.kubernetes, "user")
        self.world: MemoryWorld = beside.world if beside else world or MemoryWorld(self.clock)
        self.keyspaces: dict[str, MemoryWorld] = {}
        self.faults = FaultInjector()
        self.faults_at: dict[str, FaultInjector] = {}
        """Those of QueueClusters with another URI of RabbitMQ."""
        self.connected: list[CountedServers] = []
        self.controller = Controller(
            self.api,
            Options(
                image or f"postroad:{operator_class}",
                namespaces=namespaces,
                operator_class=operator_class,
            ),
            connect=self._connect,
            clock=self.clock,
            randomness=SeededRandomness(0),
        )

    def _connect(self, settings: Settings) -> Servers:
        uri = settings.rabbitmq.uri.get_secret_value()
        world = self.keyspaces.get(settings.cassandra.keyspace, self.world)
        self.connected.append(CountedServers(world, self.faults_at.get(uri, self.faults)))
        return self.connected[-1]

    async def deliver_events(self, kind: Kind) -> None:
        """Bring the events of a watch."""
        labels = "" if kind in OWN else f"{MANAGED_BY}=postroad"
        async for happened, body in self.kubernetes.watch(kind, labels=labels):
            if self._namespaces and body["metadata"]["namespace"] not in self._namespaces:
                continue
            with contextlib.suppress(Exception):
                gone = happened == "DELETED"
                self.controller.causes.on_event(kind, body, gone=gone, routine=False)

    def fill_indexes(self) -> None:
        """Do what a watch does first, for a test that reconciles without watches."""
        for kind in WATCHED:
            for place, each in self.kubernetes.objects.items():
                if place.is_of(kind, None):
                    self.controller.indexes.put(each)

    @property
    def calls(self) -> list[str]:
        """All requests of the operator, as `VERB KIND NAMESPACE/NAME`."""
        return [each.operation for each in self.api.faults.steps]

    def at(self, plural: str, namespace: str, name: str) -> Object | None:
        """Return an object."""
        return self.kubernetes.objects.get(ObjectPlace(plural, namespace, name))

    async def declare(self, **spec: Any) -> None:
        """Create the QueueCluster `main` with its Secrets, and the MailQueue `outgoing`."""
        for each in (*resources.secrets(NAMESPACE), resources.queue_cluster(NAMESPACE)):
            await self.create(each)
        await self.create(resources.mail_queue(NAMESPACE, **spec))
        await move(10)
        assert self.condition("Ready")["status"] == "True"

    async def create(self, wanted: Object) -> None:
        """Create a resource as a user."""
        secret = Kind("v1", "Secret", "secrets")
        kinds = {each.name: each for each in (MAIL_QUEUE, MAIL_QUEUE_TASK, QUEUE_CLUSTER, secret)}
        await self.user.create(kinds[wanted["kind"]], wanted)

    async def change(self, spec: Mapping[str, Any], name: str = "outgoing") -> None:
        """Change the spec of a MailQueue as a user."""
        assert await self.user.patch(MAIL_QUEUE, NAMESPACE, name, {"spec": spec})

    async def delete(self, kind: Kind, name: str) -> None:
        """Delete an object as a user."""
        found = self.at(kind.plural, NAMESPACE, name)
        assert found
        await self.user.delete(kind, found)

    def found(self, kind: Kind = MAIL_QUEUE, name: str = "outgoing") -> Object:
        """Return an object."""
        found = self.at(kind.plural, NAMESPACE, name)
        assert found
        return found

    def condition(self, which: str, kind: Kind = MAIL_QUEUE, name: str = "outgoing") -> Object:
        """Return a condition of a resource."""
        conditions = self.found(kind, name).get("status", {}).get("conditions", [])
        return next((each for each in conditions if each["type"] == which), {"status": None})

    def events(self, reason: str) -> list[Object]:
        """Return the Events with a reason."""
        return [
            each
            for (plural, *_), each in self.kubernetes.objects.items()
            if plural == "events" and each["reason"] == reason
        ]


@contextlib.asynccontextmanager
async def running_controller(
    name: str = "kubernetes",
    world: MemoryWorld | None = None,
    *,
    namespaces: tuple[str, ...] = (),
    beside: RunningController | None = None,
    operator_class: str = DEFAULT_CLASS,
    image: str | None = None,
    broken: Collection[str] = (),
    short: Collection[str] = (),
) -> AsyncIterator[RunningController]:
    """Yield a running controller. `broken`: images whose pods do not get ready. `short`: names of
    Deployments for whose new pods there is no quota."""
    operator = RunningController(
        name,
        world,
        namespaces=namespaces,
        beside=beside,
        operator_class=operator_class,
        image=image,
    )
    tasks = [
        asyncio.create_task(operator.controller.run(TASKS)),
        *(asyncio.create_task(operator.deliver_events(each)) for each in WATCHED),
        asyncio.create_task(control_deployments(operator.kubernetes, broken, short)),
    ]
    try:
        yield operator
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await operator.controller.close()
