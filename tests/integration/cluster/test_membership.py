"""Nodes that come, go and restart while mail flows: no accepted mail is lost."""

from __future__ import annotations

import asyncio
import shlex

import pytest

from integration.cluster.load import under_load, variables_of
from integration.cluster.operator_view import operator_of
from stack import probes
from stack.clusters import Cluster
from stack.clusters.nodes import RabbitMQNode
from stack.rabbitmq import USER


def last(cluster: Cluster, kind: str) -> str:
    return [name for name in cluster.nodes if name.startswith(kind)][-1]


def members(node: RabbitMQNode) -> set[frozenset[str]]:
    """Return the sets of nodes on which the queues have members."""
    login = probes.basic(USER, node.record.secrets["password"])
    url = f"{node.management_url(node.record)}/api/queues?columns=name,members"
    found = probes.http_json(url, login)
    assert isinstance(found, list)
    return {frozenset(each["members"]) for each in found if each["name"].startswith("postroad.")}


async def carry_out(cluster: Cluster, message: str) -> None:
    """Run the commands that a condition names, as an administrator would in a shell of a node."""
    node = cluster.rabbitmq("rabbitmq-1")
    for command in message.partition("): ")[2].split("; "):
        program, *words = shlex.split(command)
        assert program == "rabbitmq-queues"
        await asyncio.to_thread(node.queues, *words)


@pytest.mark.parametrize("kind", ["cassandra", "rabbitmq", "s3"])
async def test_a_rolling_restart_loses_nothing(cluster: Cluster, kind: str) -> None:
    async with under_load(cluster) as load:
        for name in [each for each in cluster.nodes if each.startswith(kind)]:
            await asyncio.to_thread(cluster.restart, name)
            await asyncio.to_thread(cluster.settled)

    load.report(f"rolling restart of {kind}")
    assert load.violations == []


async def test_a_cassandra_node_is_added_and_removed(cluster: Cluster) -> None:
    async with under_load(cluster) as load:
        name = await asyncio.to_thread(cluster.add, "cassandra")
        await asyncio.to_thread(cluster.settled)
        await load.progresses()
        await asyncio.to_thread(cluster.remove, name)
        await asyncio.to_thread(cluster.settled)
        await load.progresses()

    load.report("cassandra: a node added and removed")
    assert load.violations == []


async def test_a_lost_cassandra_node_is_replaced(cluster: Cluster) -> None:
    async with under_load(cluster) as load:
        lost = last(cluster, "cassandra")
        await asyncio.to_thread(cluster.kill, lost)
        await asyncio.to_thread(cluster.replace, lost)
        await asyncio.to_thread(cluster.settled)
        await load.progresses()

    load.report("cassandra: a lost node replaced")
    assert load.violations == []


async def test_a_rabbitmq_node_is_added_and_another_removed(cluster: Cluster) -> None:
    """In an order that always leaves each queue three members."""
    variables = variables_of(cluster)
    old = last(cluster, "rabbitmq")
    async with under_load(cluster, variables) as load, operator_of(variables) as operator:
        name = await asyncio.to_thread(cluster.add, "rabbitmq")
        new = cluster.rabbitmq(name)
        assert {len(each) for each in members(new)} == {3}
        await asyncio.to_thread(new.queues, "grow", new.node_name, "all")
        await asyncio.to_thread(cluster.settled)
        assert {len(each) for each in members(new)} == {4}
        await load.progresses()

        await asyncio.to_thread(cluster.remove, old)
        await asyncio.to_thread(cluster.settled)
        [left] = members(new)
        found = await operator.until(lambda found: found["Durable"]["status"] == "True")
        await load.progresses()

    load.report("rabbitmq: a node added and another removed")
    assert len(left) == 3
    assert new.node_name in left
    assert "survives" in found["Durable"]["message"]
    assert load.violations == []


async def test_a_rabbitmq_node_is_lost_and_replaced_as_the_operator_says(
    cluster: Cluster,
) -> None:
    variables = variables_of(cluster)
    lost = last(cluster, "rabbitmq")
    async with under_load(cluster, variables) as load, operator_of(variables) as operator:
        await operator.until(lambda found: found["Durable"]["status"] == "True")

        await asyncio.to_thread(cluster.kill, lost)
        found = await operator.until(lambda found: found["Durable"]["status"] == "False")
        assert "2 nodes, fewer than 3" in found["Durable"]["message"]
        assert found["BrokerReady"]["status"] == "True"
        await load.progresses()

        await asyncio.to_thread(cluster.replace, lost)
        new = cluster.rabbitmq(lost)
        found = await operator.until(lambda found: "grow" in found["Durable"]["message"])
        assert found["Durable"]["status"] == "False"
        assert {len(each) for each in members(new)} == {2}

        await carry_out(cluster, found["Durable"]["message"])
        await operator.until(lambda found: found["Durable"]["status"] == "True")
        await asyncio.to_thread(cluster.settled)
        await load.progresses()

    load.report("rabbitmq: a lost node replaced")
    assert {len(each) for each in members(new)} == {3}
    assert load.violations == []
