"""Queues of RabbitMQ get copies on nodes that joined after they were declared."""

from __future__ import annotations

from datetime import timedelta
from typing import cast

import pytest

from postroad.adapters.rabbitmq import management
from postroad.adapters.rabbitmq.connection import Access
from postroad.adapters.rabbitmq.management import Management, Vhost
from postroad.adapters.rabbitmq.topology import DeclaredQueue, Topology
from postroad.domain.queues.quorum_queues import QuorumQueue
from postroad.errors import BrokerRefused, BrokerUnavailable

WORK, GONE = "postroad.mail.outgoing.work", "postroad.mail.outgoing.dead"


class ThreeNodes:
    """Stands for the management API of a cluster in which all queues were declared on one node."""

    def __init__(self, members: tuple[str, ...] = ("a",)) -> None:
        self.added: list[tuple[str, str]] = []
        self.asked: list[str] = []
        self.members = members
        self.asked_for_nodes = False
        self.closed = False

    async def quorum_queue(self, queue: str) -> QuorumQueue | None:
        self.asked.append(queue)
        return None if queue == GONE else QuorumQueue(queue, self.members, ("a",))

    async def quorum_queues(self) -> list[QuorumQueue]:
        return [QuorumQueue(WORK, self.members, ("a",))]

    async def nodes(self) -> list[str]:
        self.asked_for_nodes = True
        return ["a", "b", "c"]

    async def add_member(self, queue: str, node: str) -> None:
        self.added.append((queue, node))

    async def close(self) -> None:
        self.closed = True


TOPOLOGY = Topology((), (DeclaredQueue(GONE, (), {}), DeclaredQueue(WORK, (), {})))


def vhost_with(api: object) -> Vhost:
    vhost = Vhost(Access.from_uri("amqp://localhost"))
    vhost.management = cast("Management", api)
    return vhost


async def test_the_declared_queues_get_copies_on_nodes_that_joined() -> None:
    """The others of the vhost are not asked for: a thousand mail queues have two thousand."""
    api = ThreeNodes()

    await vhost_with(api).replicate(TOPOLOGY)

    assert api.asked == [GONE, WORK]
    assert api.added == [(WORK, "b"), (WORK, "c")]


async def test_queues_with_three_copies_need_no_nodes() -> None:
    api = ThreeNodes(("a", "b", "c"))

    await vhost_with(api).replicate(TOPOLOGY)

    assert (api.added, api.asked_for_nodes) == ([], False)


async def surveyed(api: ThreeNodes) -> Vhost:
    vhost = vhost_with(api)
    await vhost.survey(cast("Management", api))
    api.asked_for_nodes = False
    return vhost


async def test_a_survey_answers_for_the_queues_that_it_has() -> None:
    api = ThreeNodes(("a", "b", "c"))
    vhost = await surveyed(api)

    await vhost.replicate(TOPOLOGY)

    assert (api.asked, api.added, api.asked_for_nodes) == ([GONE], [], False)


async def test_queues_that_a_survey_found_with_one_copy_get_others_and_are_asked_about_again() -> (
    None
):
    api = ThreeNodes()
    vhost = await surveyed(api)

    await vhost.replicate(TOPOLOGY)
    assert (api.asked, api.asked_for_nodes) == ([GONE], False)
    assert api.added == [(WORK, "b"), (WORK, "c")]
    await vhost.replicate(TOPOLOGY)

    assert (api.asked, api.asked_for_nodes) == ([GONE, GONE, WORK], True)


async def test_an_old_survey_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    api = ThreeNodes(("a", "b", "c"))
    vhost = await surveyed(api)
    monkeypatch.setattr(management, "SURVEYED", timedelta(seconds=-1))

    await vhost.replicate(TOPOLOGY)

    assert api.asked == [GONE, WORK]


async def test_copies_that_cannot_be_added_are_no_error() -> None:
    class Refusing(ThreeNodes):
        async def add_member(self, queue: str, node: str) -> None:
            raise BrokerRefused("RabbitMQ 3 cannot")

    await vhost_with(Refusing()).replicate(TOPOLOGY)
    await vhost_with(None).replicate(TOPOLOGY)


async def test_a_vhost_has_a_management_api_where_one_is_named_and_closes_it() -> None:
    named = Access.from_uri("amqp://localhost/mail", management_url="http://localhost:15672")
    assert Vhost(named).management is not None
    assert Vhost(named).name == "mail"
    assert Vhost(Access.from_uri("amqp://localhost")).management is None
    api = ThreeNodes()
    vhost = vhost_with(api)

    await vhost.close()

    assert api.closed
    with pytest.raises(BrokerUnavailable, match="was closed"):
        await vhost.check()
