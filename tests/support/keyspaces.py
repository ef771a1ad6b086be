"""A keyspace with all tables for the tests of one module; each uses a queue of its own in it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta

import pytest

import servers
from postroad.adapters.cassandra.session import Session
from postroad.adapters.cassandra.store import CassandraViewStore
from postroad.ports.view import TableOptions

OPTIONS = TableOptions(
    replication={"class": "SimpleStrategy", "replication_factor": "1"},
    row_lifetime=timedelta(days=14),
    compaction_window=timedelta(hours=12),
    gc_grace=timedelta(hours=3),
)


@pytest.fixture(scope="module")
def keyspace() -> Iterator[str]:
    """Make the keyspace, and drop it."""
    name = servers.fresh()

    async def create() -> None:
        session = Session(servers.cassandra(name))
        await CassandraViewStore(session).create(OPTIONS)
        await session.close()

    async def drop() -> None:
        session = Session(servers.cassandra(name))
        await session.run("DROP KEYSPACE {keyspace}")
        await session.close()

    asyncio.run(create())
    yield name
    asyncio.run(drop())
