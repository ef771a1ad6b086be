"""Six nodes of Cassandra: a partition has three of them, and may be without a quorum alone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import pytest
from cassandra.metadata import Murmur3Token

from integration.cluster.clients import cql, execute
from integration.cluster.load import under_load, variables_of
from stack.clusters import Cluster
from stack.progress import Progress


@pytest.fixture(scope="module")
def six(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("six"))
    try:
        yield Cluster.up(cluster.directory, cassandra=6, rabbitmq=1, s3=1, progress=Progress())
    finally:
        cluster.down()


def replicas(session: Any, keyspace: str, table: str, key: str) -> list[frozenset[str]]:
    """Return the hosts of each partition of a table."""
    rows = execute(session, f"SELECT DISTINCT {key}, token({key}) AS place FROM {keyspace}.{table}")
    ring = session.cluster.metadata.token_map
    return [
        frozenset(host.address for host in ring.get_replicas(keyspace, Murmur3Token(row.place)))
        for row in rows
    ]


def victims(cluster: Cluster, keyspace: str) -> list[str]:
    """Return two nodes without which some of the queue's buckets have no quorum, others have one,
    and so have the tables that have one partition for each queue."""
    nodes = [name for name in cluster.nodes if name.startswith("cassandra")]
    hosts = {cluster.node(name).host: name for name in nodes}
    with cql(cluster, *nodes) as session:
        buckets = replicas(session, keyspace, "enqueued_mails", "queue, slice_start, bucket_id")
        others = [
            each
            for table in ("limits", "configuration_events", "slices")
            for each in replicas(session, keyspace, table, "queue")
        ]
    for pair in combinations(hosts, 2):
        lost = [each for each in buckets if each >= {*pair}]
        if lost and len(lost) < len(buckets) and not any(each >= {*pair} for each in others):
            return [hosts[host] for host in pair]
    raise AssertionError(f"no two nodes do: {buckets}")


async def test_two_replicas_away_stop_their_own_partitions_alone(six: Cluster) -> None:
    variables = variables_of(six)
    async with under_load(six, variables) as load:
        await load.progresses()
        away = await asyncio.to_thread(victims, six, variables["POSTROAD_CASSANDRA_KEYSPACE"])

        for name in away:
            await asyncio.to_thread(six.kill, name)
        before = len(load.refused)
        while len(load.refused) < before + 3:  # mail of the partitions that are away
            await asyncio.sleep(0.5)
        await load.progresses()  # mail of the others

        await asyncio.to_thread(six.start, *away)
        await asyncio.to_thread(six.settled)
        await load.progresses()

    load.report("cassandra: two of six nodes away")
    assert load.violations == []
