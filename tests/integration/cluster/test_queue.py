"""The queue's adapters beside one wrong node: out of date, or with a wrong clock."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

from integration.cluster.clients import ONE, cql, execute
from integration.cluster.load import under_load
from postroad.adapters.cassandra.session import Session, Statement
from postroad.adapters.cassandra.store import CassandraViewStore
from postroad.errors import ServerError
from postroad.ports.view import TableOptions
from servers import fresh
from stack.clusters import Cluster
from support.access import cassandra_of

OPTIONS = TableOptions(
    replication={"class": "NetworkTopologyStrategy", "dc1": "3"},
    row_lifetime=timedelta(days=14),
    compaction_window=timedelta(hours=12),
    gc_grace=timedelta(hours=3),
)
WRITE = Statement(
    "INSERT INTO {keyspace}.configuration_events (queue, sequence, document)"
    " VALUES ('test.late', 1, 'written')"
)
READ = Statement("SELECT document FROM {keyspace}.configuration_events WHERE queue = 'test.late'")
TIMEOUT_SECONDS = 60
HOUR = 3600


async def test_a_replica_that_missed_a_write_hides_it_from_no_reader(cluster: Cluster) -> None:
    """A read of one replica would find no mark of a mail that was removed."""
    keyspace = fresh()
    session = Session(cassandra_of(cluster.environment(), keyspace))
    await CassandraViewStore(session).create(OPTIONS)
    assert await session.execute(READ) == []
    with cql(cluster, "cassandra-3") as late:
        cluster.partition(["host", "cassandra-1", "cassandra-2"], ["cassandra-3"])
        await written(session)
        cluster.partition(["host", "cassandra-3"], ["cassandra-1", "cassandra-2"])
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            try:
                assert await session.execute(READ)
            except ServerError:
                await asyncio.sleep(0.5)
        # a read of one replica returns nothing there, so this test can fail
        assert execute(late, READ.cql.replace("{keyspace}", keyspace), ONE) == []

    cluster.heal()
    await asyncio.to_thread(cluster.settled)
    assert await session.execute(READ)
    await session.close()


async def written(session: Session) -> None:
    """Repeat a write until the driver asks nodes that it can reach."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while True:
        try:
            await session.execute(WRITE)
            return
        except ServerError:
            assert time.monotonic() < deadline


async def test_one_cassandra_host_with_a_wrong_clock_refuses_and_loses_nothing(
    cluster: Cluster,
) -> None:
    cluster.skew("cassandra-2", HOUR)

    async with under_load(cluster) as load:
        await asyncio.sleep(20)

    print(f"one host an hour ahead: {load.summary()}")
    assert load.violations == []
    assert not load.refused
