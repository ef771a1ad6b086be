"""Cassandra gets a newer version, one node after the other, while mail flows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from integration.cluster.clients import ONE, cql, execute
from integration.cluster.load import under_load
from stack.cassandra import VERSION
from stack.clusters import Cluster
from stack.progress import Progress

OLDEST = "5.0.0"


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("older"))
    try:
        yield Cluster.up(
            cluster.directory, rabbitmq=1, s3=1, cassandra_version=OLDEST, progress=Progress()
        )
    finally:
        cluster.down()


def versions(cluster: Cluster, *nodes: str) -> list[str]:
    found = []
    for name in nodes:
        with cql(cluster, name) as session:
            ((version,),) = execute(session, "SELECT release_version FROM system.local", ONE)
            found.append(version)
    return found


async def test_cassandra_is_upgraded_node_by_node(older: Cluster) -> None:
    nodes = [name for name in older.nodes if name.startswith("cassandra")]
    assert versions(older, *nodes) == [OLDEST] * 3

    async with under_load(older) as load:
        await load.progresses()
        for name in nodes:
            await asyncio.to_thread(older.upgrade, name)
            await asyncio.to_thread(older.settled)
            await load.progresses()

    load.report(f"cassandra: {OLDEST} to {VERSION}")
    assert versions(older, *nodes) == [VERSION] * 3
    assert load.violations == []
