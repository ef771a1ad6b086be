"""What the objects of mail queues cost a RabbitMQ node of the bench's own. `CASE` chooses among the
cases, comma separated.

`objects`: declare `BENCH_QUEUES` mail queues, some at once; the memory of the node afterwards, and
how long it takes from a SIGKILL until all of them answer. The peer has delay queues for each mail
queue instead of shared ones, and stops where RabbitMQ refuses.
`neighbour`: one mail queue's delayed messages come due together; how late another's are.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from uuid import uuid4

from bench.results import Result, compared, percentile, progress
from postroad.adapters.rabbitmq import topology
from postroad.adapters.rabbitmq.broker import RabbitMQ
from postroad.adapters.rabbitmq.connection import Access
from postroad.domain.queues.names import QueueName
from postroad.errors import ServerError
from postroad.ports.broker import DELAY_SECONDS
from postroad.telemetry import logs
from stack import processes
from stack.errors import StackError
from stack.local import Stack
from stack.progress import Progress

QUEUES = [int(each) for each in os.environ.get("BENCH_QUEUES", "100,1000,3000").split(",")]
PEER_QUEUES = [int(each) for each in os.environ.get("BENCH_PEER_QUEUES", "100,300,500").split(",")]
AT_ONCE = 8
DELAYED = [int(each) for each in os.environ.get("BENCH_DELAYED", "0,100000,1000000").split(",")]
STEP = int(os.environ.get("BENCH_STEP", "64"))
PROBES = 100
IN_FLIGHT = 2000
PATIENCE = 600.0
"""Seconds that a node may take until its queues answer."""

SHARED, OWN = "delay queues shared", "delay queues for each"


def measure() -> list[Result]:
    """Measure the chosen cases."""
    logs.configure("ERROR")
    cases = {"objects": _objects, "neighbour": _neighbour}
    chosen = os.environ.get("CASE", "objects,neighbour").split(",")
    if unknown := [each for each in chosen if each not in cases]:
        sys.exit(f"no such case: {', '.join(unknown)}; there are {', '.join(cases)}")
    return [result for case in chosen for result in asyncio.run(cases[case]())]


class Node:
    """A RabbitMQ node in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = Stack(folder, environment={}, progress=Progress(quiet=True))
        self.server: RabbitMQ

    def start(self) -> None:
        self._stack.up(["rabbitmq"])
        given = self._stack.server("rabbitmq").environment()
        self.server = RabbitMQ(
            Access.from_uri(
                given["POSTROAD_RABBITMQ_URI"],
                management_url=given["POSTROAD_RABBITMQ_MANAGEMENT_URL"],
            )
        )

    def kill(self) -> None:
        self._stack.server("rabbitmq").kill()

    def down(self) -> None:
        self._stack.down()

    def memory_mb(self) -> float:
        """Return the resident memory of all processes of the node."""
        pages = 0
        for each in processes.members(self._folder / "rabbitmq"):
            with contextlib.suppress(OSError):
                pages += int(Path(f"/proc/{each.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@contextlib.asynccontextmanager
async def _node() -> AsyncIterator[Node]:
    with tempfile.TemporaryDirectory() as folder:
        node = Node(Path(folder))
        try:
            await asyncio.to_thread(node.start)
            yield node
        finally:
            await node.server.close()
            await asyncio.to_thread(node.down)


def _topology(number: int, layout: str) -> topology.Topology:
    name = QueueName("bench", f"queue-{number}")
    shared = topology.topology_of(name, 20)
    if layout == SHARED:
        return shared
    own = (
        topology.DeclaredQueue(
            f"postroad.{name}.delay.{step}",
            (topology.Binding(name.exchange, f"delay.{step}"),),
            {
                "x-queue-type": "quorum",
                "x-overflow": "reject-publish",
                "x-dead-letter-strategy": "at-least-once",
                "x-dead-letter-exchange": name.exchange,
                "x-dead-letter-routing-key": topology.WORK,
                "x-message-ttl": step * 1000,
            },
        )
        for step in DELAY_SECONDS
    )
    dead, work = shared.queues
    alone = topology.DeclaredQueue(work.name, work.bindings[:1], work.arguments)
    return topology.Topology(shared.exchanges, (*own, dead, alone))


async def _objects() -> list[Result]:
    ours = await _growth(SHARED, QUEUES)
    theirs = await _growth(OWN, PEER_QUEUES)
    results = []
    for queues, figures in ours.items():
        peer_queues = min(theirs, key=lambda each: abs(each - queues))
        for (measure, unit), value in figures.items():
            other = theirs[peer_queues].get((measure, unit), math.inf)
            results.append(
                compared(
                    measure,
                    f"{queues} mail queues",
                    unit,
                    [value],
                    f"{OWN}, {peer_queues}",
                    [other],
                    less_is_better=True,
                )
            )
    progress(results)
    return results


Figures = dict[tuple[str, str], float]


async def _growth(layout: str, steps: Sequence[int]) -> dict[int, Figures]:
    """Return the figures at each number of mail queues, until RabbitMQ refuses more."""
    found: dict[int, Figures] = {}
    async with _node() as node:
        if layout == SHARED:
            await node.server.declare_delays()
        empty, declared = node.memory_mb(), 0
        for wanted in steps:
            began = time.perf_counter()
            try:
                await _declare(node, layout, range(declared, wanted))
            except ServerError as error:
                print(f"{layout}: refused between {declared} and {wanted}: {error}", flush=True)
                break
            took = time.perf_counter() - began
            more = wanted - declared
            memory = node.memory_mb()
            declared = wanted
            found[wanted] = {
                ("declare one", "ms"): 1000 * took / more,
                ("memory of one", "MB"): (memory - empty) / declared,
                ("memory of the node", "MB"): memory,
            }
            try:
                found[wanted]["restart", "s"] = await _restart(node, layout, declared)
            except StackError as error:
                print(f"{layout}: {declared} do not start again: {error}", flush=True)
                break
            finally:
                print(layout, wanted, found[wanted], file=sys.stderr, flush=True)
    return found


async def _declare(node: Node, layout: str, numbers: range) -> None:
    left = iter(numbers)

    async def some() -> None:
        for number in left:
            await node.server.administer(topology.declare, _topology(number, layout))

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(some())


async def _restart(node: Node, layout: str, declared: int) -> float:
    """Kill the node; return the seconds until the last queue has a leader again."""
    await node.server.close()
    await asyncio.to_thread(node.kill)
    began = time.perf_counter()
    await asyncio.to_thread(node.start)
    for number in range(declared):
        while True:
            try:
                await node.server.administer(topology.count, _topology(number, layout))
                break
            except ServerError:
                if time.perf_counter() - began > PATIENCE:
                    raise
                await asyncio.sleep(0.5)
    return time.perf_counter() - began


async def _neighbour() -> list[Result]:
    results: list[Result] = []
    alone: list[float] = []
    for delayed in DELAYED:
        async with _node() as node:
            late = await _lateness(node, delayed)
        alone = alone or late
        case = f"{delayed} delayed messages of a neighbour come due"
        results += [
            compared(f"late, {name}", case, "s", [_of(late)], "none", [_of(alone)])
            for name, _of in (("p50", _p50), ("p99", _p99))
        ]
        progress(results)
    return results


def _p50(values: Sequence[float]) -> float:
    return percentile(values, 0.5)


def _p99(values: Sequence[float]) -> float:
    return percentile(values, 0.99)


async def _lateness(node: Node, delayed: int) -> list[float]:
    """Return how many seconds after `STEP` each probe came, while a neighbour's messages in the
    same delay queue were published, and came due, around them."""
    neighbour = node.server.broker(QueueName("bench", "neighbour"))
    ours = node.server.broker(QueueName("bench", "ours"))
    for each in (neighbour, ours):
        await each.declare()
    room = asyncio.Semaphore(IN_FLIGHT)

    async def publish() -> None:
        async with room:
            await neighbour.publish(uuid4(), b"x" * 500, STEP)

    async def fill() -> None:
        for start in range(0, delayed, IN_FLIGHT):
            await asyncio.gather(*(publish() for _ in range(min(IN_FLIGHT, delayed - start))))

    filling = asyncio.create_task(fill())
    pause = max(delayed / 10_000 / PROBES, 0.1)
    for _ in range(PROBES):
        await ours.publish(uuid4(), repr(time.time()).encode(), STEP)
        await asyncio.sleep(pause)
    await filling
    late = []
    messages = ours.consume(PROBES)
    for _ in range(PROBES):
        delivery = await anext(messages)
        late.append(time.time() - float(delivery.body) - STEP)
        await delivery.ack()
    for each in (neighbour, ours):
        await each.close()
    return late
