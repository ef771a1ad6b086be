"""Dead letters of a month from which more were deleted than Cassandra reads across in one
request."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

import servers
from postroad.adapters.cassandra import statements
from postroad.adapters.cassandra.session import Session
from postroad.adapters.cassandra.view.view import CassandraView
from postroad.domain.values.identifiers import id_at
from postroad.ports.view import DeadLetter
from support.keyspaces import keyspace

__all__ = ["keyspace"]

pytestmark = pytest.mark.needs("cassandra")

DELETED = 120_000
"""The server fails a request that meets more than 100,000 deletions."""

TOGETHER = 400
QUEUE, MONTH = "mail.out", "2026-01"
START = datetime(2026, 1, 10, tzinfo=UTC)
SPAN = timedelta(hours=1)


@pytest.fixture
async def view(keyspace: str) -> AsyncIterator[CassandraView]:
    session = Session(servers.cassandra(keyspace))
    await session.server_times()
    yield CassandraView(session, QUEUE)
    await session.close()


async def test_dead_letters_among_many_that_were_taken_out_are_listed_counted_and_erased(
    view: CassandraView,
) -> None:
    dead_letters = [
        DeadLetter(id_at(START + part * SPAN, 0, 0), MONTH, START, "no", None, b"body")
        for part in (0.0, 0.5, 1.5)
    ]
    for dead_letter in dead_letters:
        await view.write_dead_letter(dead_letter)
    await delete_many(view._session)

    assert [each async for each in view.dead_letters()] == dead_letters
    assert await view.count_dead_letters() == len(dead_letters)
    assert await view.dead_letter(MONTH, dead_letters[1].enqueue_id) == dead_letters[1]

    await view.delete_dead_letter(dead_letters[1])
    assert await view.count_dead_letters() == 2

    assert sum([each async for each in view.erase_dead_letters()]) == 2
    assert await CassandraView(view._session, QUEUE).count_dead_letters() == 0


async def delete_many(session: Session) -> None:
    """Leave as many tombstones as that many requeues leave."""

    async def together() -> None:
        stamp = session.now_us() - SPAN // timedelta(microseconds=1)
        deleted = [(stamp, QUEUE, MONTH, some_id()) for _ in range(TOGETHER)]
        await session.execute_together(statements.DELETE_DEAD_LETTER, deleted)

    for _ in range(DELETED // TOGETHER // 4):
        await asyncio.gather(*(together() for _ in range(4)))


def some_id() -> UUID:
    return id_at(START + random.random() * SPAN, random.getrandbits(12), uuid4().int)
