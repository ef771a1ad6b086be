"""The view's contract, over memory and Cassandra."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

import servers
from contract.enqueue_key_contract import EnqueueKeyContract
from contract.purge_watermark_contract import PurgeWatermarkContract
from contract.view_contract import Spoil, ViewContract
from postroad.adapters.cassandra import statements
from postroad.adapters.cassandra.mark_statements import OUTCOME_COLUMNS
from postroad.adapters.cassandra.session import Session, Statement
from postroad.adapters.cassandra.statements import ENTRY, ROW_COLUMNS, select
from postroad.adapters.cassandra.store import CassandraViewStore
from postroad.adapters.cassandra.view import rows
from postroad.adapters.clocks import MachineClock
from postroad.adapters.memory.servers import MemoryServers, MemoryWorld
from postroad.adapters.memory.tables import Tables
from postroad.domain.delivery.attempts import AttemptOutcomes
from postroad.domain.queues.entries import Ending, EndingKind, Entry, EntryKey, Mark
from postroad.ports.view import DeadLetter, ViewStore
from support.keyspaces import keyspace
from support.outcomes import kept_in

__all__ = ["keyspace"]

BELL = ["bell\x07@example.net"]
"""What no address can be."""


class SpoilMemory(Spoil):
    """In the tables of a world."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    async def row(self, entry: Entry) -> None:
        self._tables.undecodable.add(entry.key)
        self._tables.expire_at[entry.key] = self._tables.clock.now() + self.LEFT

    async def stored(self, entry: Entry) -> object:
        return self._tables.rows[entry.key]

    async def mark(self, key: EntryKey) -> None:
        at = self._tables.clock.now()
        self._tables.marks[key] = Mark(ending=Ending(EndingKind.UNKNOWN, at))

    async def outcomes(self, key: EntryKey) -> AttemptOutcomes | None:
        return self._tables.outcomes.get(key)

    async def dead_letter(self, dead_letter: DeadLetter) -> None:
        spoilt = replace(dead_letter, entry=None, is_decoded=False)
        self._tables.dead_letters[dead_letter.enqueue_id] = spoilt


class SpoilCassandra(Spoil):
    """By statements of its own, in the tables of a keyspace."""

    ROW = Statement(f"{statements.INSERT_ROW.cql} USING TTL {round(Spoil.LEFT.total_seconds())}")
    OUTCOMES = Statement(select("deleted_mails", OUTCOME_COLUMNS, ENTRY))
    MARK = Statement(f"UPDATE {{keyspace}}.deleted_mails SET ending = ? WHERE {ENTRY} IF EXISTS")
    DEAD_LETTER = Statement(
        "UPDATE {keyspace}.dead_letters SET recipients = ?"
        " WHERE queue = ? AND month = ? AND enqueue_id = ?"
    )

    def __init__(self, session: Session, queue: str) -> None:
        self._session = session
        self._queue = queue

    async def row(self, entry: Entry) -> None:
        cells = dict(zip(ROW_COLUMNS, rows.entry_values(entry), strict=True)) | {"recipients": BELL}
        await self._session.execute(self.ROW, (self._queue, *cells.values()))

    async def stored(self, entry: Entry) -> object:
        place = rows.key_values(self._queue, entry.key)
        return await self._session.execute(statements.SELECT_AS_STORED, place)

    async def mark(self, key: EntryKey) -> None:
        place = rows.key_values(self._queue, key)
        await self._session.execute(self.MARK, ("teleported", *place))

    async def outcomes(self, key: EntryKey) -> AttemptOutcomes | None:
        place = rows.key_values(self._queue, key)
        found = await self._session.execute(self.OUTCOMES, place)
        return kept_in(found[0]) if found else None

    async def dead_letter(self, dead_letter: DeadLetter) -> None:
        place = (self._queue, dead_letter.month, dead_letter.enqueue_id)
        await self._session.execute(self.DEAD_LETTER, (BELL, *place))


class TestMemoryView(ViewContract, PurgeWatermarkContract, EnqueueKeyContract):
    """Over memory."""

    @pytest.fixture
    def world(self) -> MemoryWorld:
        return MemoryWorld(MachineClock())

    @pytest.fixture
    def store(self, world: MemoryWorld) -> ViewStore:
        return MemoryServers(world).views()

    @pytest.fixture
    def spoil(self, world: MemoryWorld, queue: str) -> Spoil:
        return SpoilMemory(world.tables(queue))


@pytest.mark.needs("cassandra")
class TestCassandraView(ViewContract, PurgeWatermarkContract, EnqueueKeyContract):
    """Over a real Cassandra."""

    @pytest.fixture
    async def session(self, keyspace: str) -> AsyncIterator[Session]:
        session = Session(servers.cassandra(keyspace))
        yield session
        await session.close()

    @pytest.fixture
    def store(self, session: Session) -> ViewStore:
        return CassandraViewStore(session)

    @pytest.fixture
    def spoil(self, session: Session, queue: str) -> Spoil:
        return SpoilCassandra(session, queue)
