"""The view's contract, over memory and Cassandra."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

import servers
from contract.purge_line_contract import PurgeLineContract
from contract.view_contract import ViewContract
from postroad.adapters.cassandra.session import Session
from postroad.adapters.cassandra.store import CassandraViewStore
from postroad.adapters.machine.clocks import MachineClock
from postroad.adapters.memory.servers import MemoryServers, World
from postroad.ports.view import ViewStore
from support.keyspaces import keyspace

__all__ = ["keyspace"]


class TestMemoryView(ViewContract, PurgeLineContract):
    """Over memory."""

    @pytest.fixture
    def store(self) -> ViewStore:
        return MemoryServers(World(MachineClock())).views()


@pytest.mark.needs("cassandra")
class TestCassandraView(ViewContract, PurgeLineContract):
    """Over a real Cassandra."""

    @pytest.fixture
    async def store(self, keyspace: str) -> AsyncIterator[ViewStore]:
        store = CassandraViewStore(Session(servers.cassandra(keyspace)))
        yield store
        await store.close()
