"""The view's contract, over memory and Cassandra."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta

import pytest

import servers
from contract.view_contract import ViewContract
from postroad.adapters.cassandra.session import Session
from postroad.adapters.cassandra.store import CassandraViewStore
from postroad.adapters.machine.clocks import MachineClock
from postroad.adapters.memory.servers import MemoryServers, World
from postroad.ports.view import TableOptions, ViewStore

OPTIONS = TableOptions(
    replication={"class": "SimpleStrategy", "replication_factor": "1"},
    row_lifetime=timedelta(days=14),
    compaction_window=timedelta(hours=12),
    gc_grace=timedelta(hours=3),
)


@pytest.fixture(scope="module")
def keyspace() -> Iterator[str]:
    """A keyspace for all tests of this module; each uses a queue of its own in it."""
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


class TestMemoryView(ViewContract):
    """Over memory."""

    @pytest.fixture
    def store(self) -> ViewStore:
        return MemoryServers(World(MachineClock())).views()


@pytest.mark.needs("cassandra")
class TestCassandraView(ViewContract):
    """Over a real Cassandra."""

    @pytest.fixture
    async def store(self, keyspace: str) -> AsyncIterator[ViewStore]:
        store = CassandraViewStore(Session(servers.cassandra(keyspace)))
        yield store
        await store.close()
