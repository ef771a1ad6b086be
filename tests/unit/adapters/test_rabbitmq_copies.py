"""Queues of RabbitMQ get copies on nodes that joined after they were declared."""

from __future__ import annotations

from typing import cast

from postroad.adapters.rabbitmq.access import Access
from postroad.adapters.rabbitmq.management import Management
from postroad.adapters.rabbitmq.topology import DeclaredQueue, Topology
from postroad.adapters.rabbitmq.vhost import Vhost
from postroad.domain.replicas import QuorumQueue

WORK, OTHER = "postroad.mail.outgoing.work", "of.another.program"


class ThreeNodes:
    """Stands for the management API of a cluster in which all queues were declared on one node."""

    def __init__(self) -> None:
        self.added: list[tuple[str, str]] = []

    async def quorum_queues(self) -> list[QuorumQueue]:
        return [QuorumQueue(each, ("a",), ("a",)) for each in (WORK, OTHER)]

    async def nodes(self) -> list[str]:
        return ["a", "b", "c"]

    async def add_member(self, queue: str, node: str) -> None:
        self.added.append((queue, node))


async def test_only_the_declared_queues_get_copies_on_nodes_that_joined() -> None:
    vhost = Vhost(Access.from_uri("amqp://localhost"))
    api = ThreeNodes()
    vhost.management = cast("Management", api)

    await vhost.replicate(Topology((), (DeclaredQueue(WORK, (), {}),)))

    assert api.added == [(WORK, "b"), (WORK, "c")]
