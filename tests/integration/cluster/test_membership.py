"""Nodes that come, go and are started anew while mail flows: nothing that was accepted is lost."""

from __future__ import annotations

import asyncio

import pytest

from integration.cluster.load import Load, under_load
from stack.clusters import Cluster


def report(load: Load, what: str) -> None:
    """Say what was measured; the machine decides how long things take."""
    print(f"{what}: {load.summary()}; refusals: {sorted(set(load.refused))[:3]}")


@pytest.mark.parametrize("kind", ["cassandra", "rabbitmq", "s3"])
async def test_a_rolling_restart_loses_nothing(cluster: Cluster, kind: str) -> None:
    async with under_load(cluster) as load:
        for name in [each for each in cluster.nodes if each.startswith(kind)]:
            await asyncio.to_thread(cluster.restart, name)
            await asyncio.to_thread(cluster.settled)

    report(load, f"rolling restart of {kind}")
    assert load.accepted
    assert not load.lost


async def test_a_cassandra_node_is_added_and_removed(cluster: Cluster) -> None:
    async with under_load(cluster) as load:
        name = await asyncio.to_thread(cluster.add, "cassandra")
        await asyncio.to_thread(cluster.settled)
        await asyncio.to_thread(cluster.remove, name)
        await asyncio.to_thread(cluster.settled)

    report(load, "cassandra: a node added and removed")
    assert load.accepted
    assert not load.lost


async def test_a_lost_cassandra_node_is_replaced(cluster: Cluster) -> None:
    async with under_load(cluster) as load:
        lost = [name for name in cluster.nodes if name.startswith("cassandra")][-1]
        await asyncio.to_thread(cluster.kill, lost)
        await asyncio.to_thread(cluster.replace, lost)
        await asyncio.to_thread(cluster.settled)

    report(load, "cassandra: a lost node replaced")
    assert load.accepted
    assert not load.lost


async def test_a_lost_rabbitmq_node_is_replaced_and_queues_grow_onto_the_new_one(
    cluster: Cluster,
) -> None:
    async with under_load(cluster) as load:
        lost = [name for name in cluster.nodes if name.startswith("rabbitmq")][-1]
        await asyncio.to_thread(cluster.kill, lost)
        name = await asyncio.to_thread(cluster.replace, lost)
        node = cluster.rabbitmq(name)
        await asyncio.to_thread(node.queues, "grow", node.node_name, "all")
        await asyncio.to_thread(cluster.settled)

    report(load, "rabbitmq: a lost node replaced")
    assert load.accepted
    assert not load.lost
