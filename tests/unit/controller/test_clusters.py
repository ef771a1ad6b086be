"""What QueueClusters make of their queues, over servers and an API server in memory."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from functools import partialmethod
from pathlib import Path

import pytest

from postroad.adapters.clocks import MachineClock
from postroad.adapters.memory.servers import MemoryServers, MemoryWorld
from postroad.controller.cluster.clusters import Cluster, Clusters
from postroad.controller.credentials import Connections
from postroad.controller.kubernetes.api import QUEUE_CLUSTER, SECRET
from postroad.controller.reads import Absences
from postroad.errors import ResourceConflict
from postroad.settings import Settings
from support import resources
from support.memory.fault_injection import FaultInjector, Step
from support.memory.kubernetes.client import MemoryKubernetes
from support.memory.kubernetes.world import KubernetesWorld


class SchemaChanges:
    """How many schema changes there were, and how many at most in the same moment. Each lasts
    until the test lets it end."""

    def __init__(self) -> None:
        self.count = self.running = self.most = 0
        self.may_end = asyncio.Event()

    async def __call__(self, step: Step) -> None:
        self.count += 1
        self.running += 1
        self.most = max(self.most, self.running)
        await self.may_end.wait()
        await asyncio.sleep(0)
        self.running -= 1


class World:
    """An operator's clusters `main` and `second`, over one keyspace."""

    def __init__(self) -> None:
        self.changes = SchemaChanges()
        self.memory = MemoryWorld(MachineClock())
        self.api = MemoryKubernetes(KubernetesWorld(MachineClock()))
        self.connections = Connections(self._connect)
        self.clusters = Clusters(self.api, self.connections, Absences(MachineClock()))

    async def declare(self) -> list[Cluster]:
        """Create the QueueClusters, and open them."""
        for secret in resources.secrets("mail"):
            await self.api.create(SECRET, secret)
        names = ("main", "second")
        wanted = [resources.queue_cluster("mail", name) for name in names]
        found = [await self.api.create(QUEUE_CLUSTER, each) for each in wanted]
        return [await self.clusters.open(each) for each in found]

    def _connect(self, settings: Settings) -> MemoryServers:
        faults = FaultInjector()
        faults.before = self.changes
        return MemoryServers(self.memory, faults)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    await made.connections.close()


async def test_one_schema_change_runs_at_a_time_whichever_reconcile_makes_it(world: World) -> None:
    """Also of two QueueClusters over one keyspace, of which the second gets none."""
    main, second = await world.declare()
    world.changes.may_end.set()

    *_, refused = await asyncio.gather(
        *(world.clusters.make_tables(main.keyspace) for _ in range(4)),
        world.clusters.make_tables(second.keyspace),
        return_exceptions=True,
    )

    assert isinstance(refused, ResourceConflict)

    assert world.changes.count >= 2
    assert world.changes.most == 1


async def test_a_schema_change_that_takes_too_long_ends_before_the_next_begins(
    world: World,
) -> None:
    main, _ = await world.declare()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await world.clusters.make_tables(main.keyspace)

    repeated = asyncio.create_task(world.clusters.make_tables(main.keyspace))
    await asyncio.sleep(0.01)
    world.changes.may_end.set()
    await repeated

    assert world.changes.most == 1


@pytest.mark.parametrize("has_begun", [True, False])
async def test_connections_that_wait_for_their_end_leave_no_files_when_their_task_is_cancelled(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_begun: bool
) -> None:
    """As Kopf cancels every task of its loop when it ends, within the minute of grace."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    await world.declare()
    closed: list[MemoryServers] = []
    monkeypatch.setattr(MemoryServers, "close", partialmethod(closing, closed))
    for uid in list(world.connections._open):
        world.connections._begin_closing(world.connections._open.pop(uid), 60)
    if has_begun:
        await asyncio.sleep(0)
    for task in world.connections._closing:
        task.cancel()
    await asyncio.sleep(0)  # else the end of the grace comes first
    await world.connections.close()

    assert len(closed) == 2 * has_begun
    assert list(tmp_path.iterdir()) == []


async def closing(servers: MemoryServers, closed: list[MemoryServers]) -> None:
    closed.append(servers)
