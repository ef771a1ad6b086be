"""Erases all that a queue has in the keyspace.

It finds a queue's partitions in the tables, not by the configuration history, which may lack some.
Rows are deleted before marks, so that a crash in between leaves no mail that looks live. Claims
expire by themselves within minutes.

A queue may be created anew under the same name at once, by a writer whose estimate of the view's
time lags. So partitions are deleted with a timestamp earlier than any of such a writer, and younger
rows one by one, by ids that are never used again. Source: ADR 0016.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

from postroad.adapters.cassandra import mark_statements, statements
from postroad.adapters.cassandra.letters import month_of_gone
from postroad.adapters.cassandra.schema import has_table
from postroad.adapters.cassandra.session import Session, Statement
from postroad.domain.clocks import AGREEING

AT_ONCE = 32
"""Deletions in flight."""

APART_US = 2 * AGREEING // timedelta(microseconds=1)
"""How far the timestamps of two writers may differ at the same moment."""

Key = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class _Table:
    """The statements that delete a table's partition, list what is left in it, and delete that."""

    name: str
    partition: Statement
    ids: Statement
    one: Statement


_TABLES = (
    _Table(
        "enqueued_mails",
        statements.DELETE_ROWS,
        statements.SELECT_ROW_IDS,
        statements.DELETE_ROW,
    ),
    _Table(
        "deleted_mails",
        mark_statements.ERASE_MARKS,
        mark_statements.SELECT_MARK_IDS,
        mark_statements.DELETE_MARK,
    ),
    _Table(
        "dead_letters",
        statements.DELETE_LETTERS,
        statements.SELECT_LETTER_IDS,
        statements.DELETE_LETTER,
    ),
)


async def erase_queue(session: Session, queue: str) -> None:
    """Delete all of a queue's partitions, then its limits and its identity. Idempotent.
    Raises: ViewError."""
    now = session.now_us()
    for table in _TABLES:
        async for keys in _partitions(session, table.name, queue):
            await _each(session, table.partition, [(now - APART_US, *key) for key in keys])
            for key in keys:
                async for page in session.pages(table.ids, key):
                    left = [(now + APART_US, *key, row["enqueue_id"]) for row in page]
                    await _each(session, table.one, left)
            if table.name == "deleted_mails":
                await _each(session, mark_statements.DELETE_STAMP, keys)
    async for keys in _partitions(session, "deliveries", queue):
        await _each(session, statements.DELETE_RECORDS, keys)
    await session.execute(statements.DELETE_SLICES, (queue,))
    await session.execute(statements.DELETE_MONTHS, (now - APART_US, queue))
    for row in await session.execute(statements.SELECT_LIMITS, (queue,)):
        await session.execute(statements.FORGET_LIMITS, (queue, row["incarnation"]))
    if await has_table(session, "ownership"):  # not in a keyspace of an earlier release
        for row in await session.execute(statements.SELECT_OWNERSHIP, (queue,)):
            await session.execute(statements.FORGET_OWNERSHIP, (queue, row["incarnation"]))


async def _partitions(session: Session, table: str, queue: str) -> AsyncIterator[list[Key]]:
    """Months of letters are read from their list, because a scan may meet too many tombstones."""
    if table == "dead_letters":
        async for page in session.pages(statements.SELECT_MONTHS, (queue,)):
            months = [row["month"] for row in page]
            yield [(queue, each) for month in months for each in (month, month_of_gone(month))]
        return
    async for page in session.pages(statements.PARTITIONS[table], (queue,)):
        yield [tuple(row.values()) for row in page]


async def _each(session: Session, deletion: Statement, keys: Sequence[Key]) -> None:
    for start in range(0, len(keys), AT_ONCE):
        batch = keys[start : start + AT_ONCE]
        await asyncio.gather(*(session.execute(deletion, key) for key in batch))
