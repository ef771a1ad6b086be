"""A keyspace is used in one data center: processes that name another are refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest

import servers
from postroad.adapters.cassandra.history import KEY, CassandraHistory
from postroad.adapters.cassandra.session import Session
from postroad.errors import ViewRefused
from support.keyspaces import keyspace

__all__ = ["keyspace"]

pytestmark = [pytest.mark.needs("cassandra"), pytest.mark.timeout(300)]


@pytest.fixture
async def session(keyspace: str) -> AsyncIterator[Session]:
    session = Session(servers.cassandra(keyspace))
    await forget_homes(session)
    yield session
    await session.close()


async def forget_homes(session: Session) -> None:
    """Delete the recorded homes by transactions. This process' clock would stamp a plain deletion,
    which would also take a record that a transaction stamps a little earlier."""
    table = "{keyspace}.configuration_events"
    for row in await session.run(f"SELECT sequence FROM {table} WHERE queue = '{KEY}'"):
        place = f"queue = '{KEY}' AND sequence = {row['sequence']}"
        await session.run(f"DELETE FROM {table} WHERE {place} IF EXISTS")


async def homes(session: Session) -> list[str]:
    """Return the data centers that are recorded, the oldest first."""
    rows = await session.run(
        f"SELECT document FROM {{keyspace}}.configuration_events WHERE queue = '{KEY}'"
    )
    return [json.loads(row["document"])["data_center"] for row in rows]


async def record(session: Session, sequence: int, data_center: str) -> None:
    """Record a home as a process of that data center does."""
    document = json.dumps({"data_center": data_center})
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    await session.run(
        "INSERT INTO {keyspace}.configuration_events (queue, sequence, type, at, document)"
        f" VALUES ('{KEY}', {sequence}, 'HomeChosen', '{now}', '{document}') IF NOT EXISTS"
    )


async def test_the_first_process_records_its_data_center_once(session: Session) -> None:
    others = [CassandraHistory(session, f"test.{servers.fresh()}") for _ in range(8)]

    await asyncio.gather(*(each.load() for each in others))
    await asyncio.gather(*(each.load() for each in others))

    assert await homes(session) == [session.local_datacenter]


async def test_a_process_of_another_data_center_is_refused(session: Session) -> None:
    await record(session, 1, "elsewhere")

    with pytest.raises(ViewRefused, match="in the data center 'elsewhere'"):
        await CassandraHistory(session, "test.refused").load()

    assert await homes(session) == ["elsewhere"]


async def test_the_last_record_counts(session: Session) -> None:
    await record(session, 1, "elsewhere")
    await record(session, 2, session.local_datacenter)

    recorded = await CassandraHistory(session, "test.moved").load()

    assert recorded.events == (), "the home is recorded beside the queues' histories"
    assert await homes(session) == ["elsewhere", session.local_datacenter]


async def test_a_data_center_without_copies_is_succeeded(session: Session) -> None:
    await record(session, 1, "elsewhere")
    before = (await session.run(REPLICATION))[0]["replication"]
    local = session.local_datacenter
    try:
        await session.run(
            "ALTER KEYSPACE {keyspace} WITH replication ="
            f" {{'class': 'NetworkTopologyStrategy', '{local}': 1}}"
        )
        await CassandraHistory(session, "test.moved").load()
    finally:
        assert before["class"].endswith("SimpleStrategy")
        await session.run(
            "ALTER KEYSPACE {keyspace} WITH replication ="
            " {'class': 'SimpleStrategy', 'replication_factor': 1}"
        )

    assert await homes(session) == ["elsewhere", local]


REPLICATION = "SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = '{keyspace}'"
