"""Back end `cluster`: three nodes of each server (`stack.clusters`), which have every fault."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from chaos.nemesis import RATES, STEPS, Fault, Means, Menu
from chaos.pace import QUICK
from chaos.real import ACTORS, Town
from stack.clusters import Cluster
from stack.errors import StackError

FOLDER_VARIABLE = "POSTROAD_TEST_CLUSTER"
"""The variable that names the folder of a cluster that stays up between runs. Without it, a run
makes one under `build`."""

OF_ONE_NODE = (
    "node kill",
    "node pause",
    "disk full",
    "node clock",
    "node drift",
    "rolling restart",
)
"""Faults of which at most one happens at a time, because a second broken node takes the quorum from
its servers, and the run then shows little. Partitions and slow nodes come in addition."""

SETTLING = 30.0
"""Seconds that a rolling restart waits before the next node, as an administrator waits until all
nodes see that the restarted one serves."""

DELAYS = (0.05, 0.3, 1.0)
"""Seconds by which a packet or a sync is delayed."""


class ClusterTown(Town):
    """The processes of a run, each with an address of its own, and the nodes."""

    def __init__(
        self, directory: Path, seed: int, rate: float = QUICK.mails, undo: str | None = None
    ) -> None:
        folder = os.environ.get(FOLDER_VARIABLE, str(directory.parent / "cluster"))
        self.cluster = Cluster.up(Path(folder))
        self._base = self.cluster.environment()
        self._locks: dict[str, threading.Lock] = {}
        self._steps: set[asyncio.Task[None]] = set()
        self._one_node = asyncio.Lock()
        self._broken: int | None = None
        """The number of the fault that broke a node, while it lasts."""
        self._was_ahead: set[str] = set()
        super().__init__(directory, seed, rate, undo)

    def base(self) -> Mapping[str, str]:
        return self._base

    def environment(self, actor: str) -> Mapping[str, str]:
        variables = self.cluster.environment(actor)
        return {**variables, **self.own(variables)}

    @property
    def menu(self) -> Menu:
        nodes = self.cluster.nodes
        disks = tuple(each for each in nodes if not each.startswith("s3"))
        return {
            **super().menu,
            "node kill": Means(5, nodes, control="life"),
            "node pause": Means(4, nodes, control="life"),
            "partition": Means(6, ("halves", "ring", "one way", "client"), spans=True),
            "slow network": Means(2, nodes, DELAYS, control="delay"),
            "slow disk": Means(2, disks, DELAYS, control="delay"),
            "node clock": Means(3, disks, STEPS, control="clock"),
            "node drift": Means(1, disks, RATES, control="clock"),
            "disk full": Means(2, disks, control="life"),
            "rolling restart": Means(0.5, ("cassandra", "rabbitmq"), spans=True),
        }

    async def begin(self, fault: Fault) -> None:
        if fault.target in self.actors:
            await super().begin(fault)
            return
        if fault.kind in OF_ONE_NODE:
            await self._one_node.acquire()
            self._broken = fault.number
        await self._do(self._begin, fault)

    async def _do(self, step: Callable[[Fault], None], fault: Fault) -> None:
        """Do a step in a thread. The run may end meanwhile; the next step on this target, and
        `heal`, wait for the thread, because two starts of one node at a time would kill each
        other's processes."""
        lock = self._locks.setdefault(fault.target, threading.Lock())

        def work() -> None:
            with lock:
                step(fault)

        task = asyncio.ensure_future(asyncio.to_thread(work))
        self._steps.add(task)
        task.add_done_callback(self._steps.discard)
        await asyncio.shield(task)

    def _begin(self, fault: Fault) -> None:
        cluster, kind, target = self.cluster, fault.kind, fault.target
        if kind == "node kill":
            cluster.kill(target)
        elif kind == "node pause":
            cluster.pause(target)
        elif kind == "partition":
            self._cut(fault)
        elif kind == "slow network":
            cluster.slow(target, network=fault.amount)
        elif kind == "slow disk":
            cluster.slow(target, disk=fault.amount)
        elif kind in ("node clock", "node drift"):
            self._set_clock(fault)
        elif kind == "disk full":
            cluster.fill_disk(target)
        elif kind == "rolling restart":
            for node in cluster.nodes:
                if node.startswith(target):
                    cluster.restart(node)
                    with contextlib.suppress(StackError):  # a partition is in the way
                        cluster.settled(SETTLING)

    def _set_clock(self, fault: Fault) -> None:
        """Cassandra's time, which it shows and stamps rows with, never goes back. So a host whose
        clock was ahead, and was set right, shows no right time until it is restarted."""
        is_ahead = fault.kind == "node drift" or fault.amount > QUICK.timing.skew.total_seconds()
        if is_ahead and fault.target.startswith("cassandra"):
            self._was_ahead.add(fault.target)
        if fault.kind == "node clock":
            self.cluster.skew(fault.target, fault.amount)
        else:
            self.cluster.skew(fault.target, 0, fault.amount)

    def _cut(self, fault: Fault) -> None:
        """Divide nodes and processes as the number of the fault draws it."""
        randomness = random.Random(f"{self.seed}/{fault.number}")
        members = [*self.cluster.nodes, *ACTORS]
        randomness.shuffle(members)
        middle = len(members) // 2
        if fault.target == "halves":
            self.cluster.partition(members[:middle], members[middle:])
        elif fault.target == "one way":
            self.cluster.partition(members[:middle], members[middle:], one_way=True)
        elif fault.target == "client":
            lonely = randomness.choice(ACTORS)
            self.cluster.partition([lonely], list(self.cluster.nodes))
        else:
            ring = itertools.pairwise([*members, members[0]])
            thirds = [members[each::3] for each in range(3)]
            pairs = [a + b for a, b in itertools.combinations(thirds, 2)]
            self.cluster.partition(*(pairs if randomness.random() < 0.5 else map(list, ring)))

    async def end(self, fault: Fault) -> None:
        if fault.target in self.actors:
            await super().end(fault)
            return
        try:
            await self._do(self._end, fault)
        finally:
            if self._broken == fault.number:
                self._broken = None
                self._one_node.release()

    def _end(self, fault: Fault) -> None:
        cluster, kind, target = self.cluster, fault.kind, fault.target
        if kind == "node kill":
            cluster.start(target)
        elif kind == "node pause":
            cluster.resume(target)
        elif kind == "partition":
            cluster.heal()
        elif kind in ("slow network", "slow disk"):
            cluster.slow(target)
        elif kind in ("node clock", "node drift"):
            cluster.skew(target, 0)
            if target in self._was_ahead:
                cluster.restart(target)
                self._was_ahead.discard(target)
        elif kind == "disk full":
            cluster.free_disk(target)
            cluster.kill(target)  # a node that met a full disk serves again only after a restart
            cluster.start(target)

    async def heal(self) -> None:
        await asyncio.gather(*self._steps, return_exceptions=True)
        await asyncio.to_thread(self.cluster.restore)
        for node in sorted(self._was_ahead):
            await asyncio.to_thread(self.cluster.restart, node)
