"""A QueueCluster and its MailQueues applied at once over a Cassandra of two nodes: whether each
table has one id.

Two hosts that create a table in the same moment may give it two ids, after which rows are lost.
There are `ROUNDS` rounds, each with a keyspace and `QUEUES` queues of its own. Then, in `RACES`
keyspaces, two clients create tables at the same moment, one at each node: what the operator must
not do. Needs root.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from threading import Barrier, BrokenBarrierError

from bench.operator_bare import delete_queues
from bench.operator_process import operator_on
from bench.operator_scale import apply_queues
from bench.operator_setup import CLUSTER, Site, fresh_site
from bench.operator_watch import ReadyWatch, watching
from bench.results import Result, compared, percentile
from postroad.controller.kubernetes.api import MAIL_QUEUE, QUEUE_CLUSTER
from postroad.domain.queues.names import QueueName
from stack.clusters import Cluster
from stack.cql import CqlError
from stack.progress import Progress

ROUNDS = int(os.environ.get("ROUNDS", "50"))
QUEUES = int(os.environ.get("QUEUES", "20"))
RACES = int(os.environ.get("RACES", "5"))
TABLES = 8
READY_SECONDS, AGREED_SECONDS, STATEMENT_SECONDS = 300.0, 60.0, 60.0
PEER = "two clients at once"
KEYSPACE = "POSTROAD_CASSANDRA_KEYSPACE"


async def measure() -> list[Result]:
    """Measure all rounds."""
    async with two_nodes() as cluster, fresh_site() as site:
        site.variables = cluster.environment()
        await site.apply_secrets()
        seconds, doubled = await _operated(site, cluster)
        raced = await asyncio.to_thread(_races, cluster)
    case = f"{ROUNDS} rounds of {QUEUES} queues"
    p50, longest = percentile(seconds, 0.5), max(seconds)
    return [
        compared("tables with two ids", case, "tables", [float(len(doubled))],
                 f"{PEER}, {RACES} rounds", [float(raced)], less_is_better=True),
        compared("until all are ready, at most", case, "s", [longest], "the median", [p50],
                 less_is_better=True),
    ]  # fmt: skip


@asynccontextmanager
async def two_nodes() -> AsyncIterator[Cluster]:
    """Start a Cassandra of two nodes, with one RabbitMQ and one S3; remove them at the end."""
    await asyncio.to_thread(Cluster(CLUSTER).down)
    try:
        yield await asyncio.to_thread(
            lambda: Cluster.up(
                CLUSTER, cassandra=2, rabbitmq=1, s3=1, progress=Progress(quiet=True)
            )
        )
    finally:
        await asyncio.to_thread(Cluster(CLUSTER).down)


async def _operated(site: Site, cluster: Cluster) -> tuple[list[float], list[str]]:
    """Return the seconds of each round, and the tables with two ids."""
    seconds: list[float] = []
    doubled: list[str] = []
    async with operator_on(site), watching(site.api, site.namespace) as watch:
        for number in range(ROUNDS):
            seconds.append(await _applied(site, watch, number))
            found = await asyncio.to_thread(tables_with_several_ids, cluster, _keyspace(number))
            doubled += found
            print(
                f"round {number}: {seconds[-1]:.1f} s, two ids: {found}",
                file=sys.stderr,
                flush=True,
            )
            await _removed(site, cluster, number)
    return seconds, doubled


def _keyspace(number: int) -> str:
    return f"round_{number}"


def _names(site: Site, number: int) -> list[QueueName]:
    return [QueueName(site.namespace, f"round-{number}-{each}") for each in range(QUEUES)]


async def _applied(site: Site, watch: ReadyWatch, number: int) -> float:
    """Apply a QueueCluster and its queues at once; return the seconds until all are ready."""
    name, names = f"round-{number}", _names(site, number)
    began = time.monotonic()
    await asyncio.gather(
        site.apply_cluster(name, {**site.variables, KEYSPACE: _keyspace(number)}),
        apply_queues(site, names, clusterRef={"name": name}),
    )
    return await watch.until_ready([each.name for each in names], READY_SECONDS) - began


async def _removed(site: Site, cluster: Cluster, number: int) -> None:
    """Delete what a round made but its buckets, which cost nothing."""
    names = _names(site, number)
    for each in names:
        found = await site.api.get(MAIL_QUEUE, site.namespace, each.name)
        assert found is not None
        await site.api.delete(MAIL_QUEUE, found)
    found = await site.api.get(QUEUE_CLUSTER, site.namespace, f"round-{number}")
    assert found is not None
    await site.api.delete(QUEUE_CLUSTER, found)
    async with asyncio.timeout(READY_SECONDS):
        while await site.api.get(QUEUE_CLUSTER, site.namespace, f"round-{number}") is not None:
            await asyncio.sleep(0.2)
    await asyncio.to_thread(_execute, cluster, f"DROP KEYSPACE {_keyspace(number)}")
    await asyncio.to_thread(delete_queues, site, names)


def tables_with_several_ids(cluster: Cluster, keyspace: str) -> list[str]:
    """Return the tables of a keyspace that have not the same one id on all nodes, once the nodes
    agree on their schema or do not in time."""
    deadline = time.monotonic() + AGREED_SECONDS
    while len({*_on_each(cluster, "SELECT schema_version FROM system.local")}) > 1:
        if time.monotonic() > deadline:
            print(f"{keyspace}: the nodes do not agree on their schema", file=sys.stderr)
            break
        time.sleep(0.2)
    statement = (
        f"SELECT table_name, id FROM system_schema.tables WHERE keyspace_name = '{keyspace}'"
    )
    found = _on_each(cluster, statement)
    assert all(found), f"{keyspace} has no tables: {found}"
    ids: dict[str, set[str]] = {}
    for table, uuid in (row for rows in found for row in rows):
        ids.setdefault((table or b"").decode(), set()).add((uuid or b"").hex())
    for name in nodes_of(cluster):
        # After a race the nodes agree on one id in their schema; the other stays in use on one of
        # them, as the folder of the table shows.
        for folder in (cluster.cassandra(name).home / "data" / keyspace).iterdir():
            table_name, _, uuid_hex = folder.name.rpartition("-")
            ids.setdefault(table_name, set()).add(uuid_hex)
    return [f"{keyspace}.{table}" for table, many in ids.items() if len(many) > 1]


def nodes_of(cluster: Cluster) -> list[str]:
    """Return the names of the nodes of Cassandra."""
    return [each for each in cluster.nodes if each.startswith("cassandra")]


def _on_each(cluster: Cluster, statement: str) -> list[tuple[tuple[bytes | None, ...], ...]]:
    """Return the rows of a statement from each node of Cassandra, sorted."""
    found = []
    for name in nodes_of(cluster):
        with cluster.cassandra(name).connection(STATEMENT_SECONDS) as connection:
            found.append(tuple(sorted(connection.execute(statement))))
    return found


def _execute(cluster: Cluster, statement: str, node: str = "cassandra-1") -> None:
    with cluster.cassandra(node).connection(STATEMENT_SECONDS) as connection:
        connection.execute(statement)


def _races(cluster: Cluster) -> int:
    """Return how many tables have two ids after all races. The first error of the driver or the
    nodes, whose schemas the races spoil, ends them."""
    doubled = 0
    for number in range(RACES):
        try:
            doubled += _raced(cluster, f"raced_{number}")
        except (OSError, CqlError, BrokenBarrierError) as error:
            print(f"the races end at {number}: {error!r}", file=sys.stderr, flush=True)
            break
    return doubled


def _raced(cluster: Cluster, keyspace: str) -> int:
    """Let a client of each node create the same tables; return how many have two ids."""
    replication = "{'class': 'NetworkTopologyStrategy', 'dc1': 1}"
    _execute(cluster, f"CREATE KEYSPACE {keyspace} WITH replication = {replication}")
    barrier = Barrier(2)

    def create(node: str) -> None:
        with cluster.cassandra(node).connection(STATEMENT_SECONDS) as connection:
            for number in range(TABLES):
                barrier.wait(STATEMENT_SECONDS)
                with contextlib.suppress(CqlError):  # it may find the other one's table
                    connection.execute(
                        f"CREATE TABLE IF NOT EXISTS {keyspace}.table_{number} (id int PRIMARY KEY)"
                    )

    with ThreadPoolExecutor(2) as threads:
        for each in [threads.submit(create, node) for node in nodes_of(cluster)]:
            each.result()
    return len(tables_with_several_ids(cluster, keyspace))
