"""The history's contract, over memory and Cassandra."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

import servers
from contract.history_contract import HistoryContract
from postroad.adapters.cassandra.history import CassandraHistory
from postroad.adapters.cassandra.session import Session
from postroad.adapters.memory.servers import MemoryHistory
from postroad.ports.view import History
from support.keyspaces import keyspace

__all__ = ["keyspace"]


class TestMemoryHistory(HistoryContract):
    """Over memory."""

    @pytest.fixture
    def history(self) -> History:
        return MemoryHistory()


@pytest.mark.needs("cassandra")
class TestCassandraHistory(HistoryContract):
    """Over a real Cassandra; several sessions are several processes."""

    @pytest.fixture
    async def history(self, keyspace: str) -> AsyncIterator[History]:
        session = Session(servers.cassandra(keyspace))
        yield CassandraHistory(session, f"test.{servers.fresh()}")
        await session.close()
