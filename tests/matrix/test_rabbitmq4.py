"""Features of RabbitMQ 4 alone: queues grow onto nodes that joined after they were declared."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from uuid import uuid4

import pytest

import servers
from matrix.variants import NewestRabbitMQ
from postroad.adapters.rabbitmq.broker import RabbitMQ
from postroad.adapters.rabbitmq.connection import Access
from postroad.domain.queues.names import QueueName
from stack.progress import Progress
from stack.records import Record

pytestmark = [pytest.mark.needs("rabbitmq"), pytest.mark.timeout(400)]


class Node(NewestRabbitMQ):
    """One of several nodes, which share a cookie and the first one's epmd."""

    first: Node | None = None

    @property
    def node_name(self) -> str:  # type: ignore[override]
        return f"{self.directory.name}@localhost"

    def secrets(self) -> dict[str, str]:
        return (
            dict(self.first.record.secrets)
            if self.first
            else {**super().secrets(), "cookie": uuid4().hex}
        )

    def settings(self, record: Record) -> dict[str, str]:
        found = super().settings(record)
        if self.first is not None:
            found["ERL_EPMD_PORT"] = str(self.first.record.ports["epmd"])
        return found

    def tool(self, *command: str) -> None:
        """Run rabbitmqctl beside it."""
        entered = self.script("rabbitmqctl", *command)
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **self.settings(self.record)}
        done = subprocess.run(entered, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Sequence[Node]]:
    made = [Node(tmp_path / name) for name in ("one", "two", "three")]
    try:
        for node in made:
            node.first = made[0] if node is not made[0] else None
            await asyncio.to_thread(node.prepare, Progress(quiet=True))
            await asyncio.to_thread(node.start, Progress(quiet=True))
        yield made
    finally:
        for node in reversed(made):
            await asyncio.to_thread(node.remove)


async def test_queues_that_were_declared_on_one_node_grow_when_two_more_have_joined(
    nodes: Sequence[Node],
) -> None:
    environment = nodes[0].environment()
    server = RabbitMQ(
        Access.from_uri(
            environment["POSTROAD_RABBITMQ_URI"],
            management_url=environment["POSTROAD_RABBITMQ_MANAGEMENT_URL"],
        )
    )
    broker = server.broker(QueueName("test", servers.fresh()))
    assert server.management is not None
    await broker.declare()
    assert {len(each.members) for each in await server.management.quorum_queues()} == {1}

    for node in nodes[1:]:
        for command in ("stop_app", "reset", f"join_cluster {nodes[0].node_name}", "start_app"):
            await asyncio.to_thread(node.tool, *command.split())
    async with asyncio.timeout(60):
        while len(await server.management.nodes()) < 3:
            await asyncio.sleep(0.5)
    await broker.declare()

    async with asyncio.timeout(60):
        while {len(each.members) for each in await server.management.quorum_queues()} != {3}:
            await asyncio.sleep(0.5)
    await broker.publish(uuid4(), b"a")
    await server.close()
