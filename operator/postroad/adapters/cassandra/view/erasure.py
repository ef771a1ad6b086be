"""Erases what a queue has in the keyspace, by the keys of its own partitions: no statement reads
what other queues have.

Rows are deleted before marks, so that a crash in between leaves no mail that looks live. Claims
expire by themselves within minutes. Delivery records are found by the mails of rows and dead
dead letters; those of mails whose rows were cleaned expire. Source: ADR 0044.

A queue may be created anew under the same name at once, by a writer whose estimate of the view's
time lags. So partitions are deleted with a timestamp earlier than any of such a writer, and younger
rows one by one, by ids that are never used again. Source: ADR 0016."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from postroad.adapters.cassandra import mark_statements, statements
from postroad.adapters.cassandra.session import Session, Statement
from postroad.adapters.cassandra.view.rows import DeadLetterReader, month_of_gone
from postroad.adapters.cassandra.view.shared_state import ERASE_SHARED_STATE, erase_lists
from postroad.domain.values.instants import AGREEING
from postroad.ports.delivery import Topic

AT_ONCE = 32
"""Deletions in flight."""

MAILS = 100
"""Partitions of delivery records that one request asks about."""

DEAD_LETTERS = 1000
"""Dead letters that are deleted in one step."""

APART_US = 2 * AGREEING // timedelta(microseconds=1)
"""Difference by which the timestamps of two writers may differ at the same moment."""

PartitionKey = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class _Table:
    """The statements that delete a table's partition, list what is left in it, and delete that."""

    partition: Statement
    ids: Statement
    one: Statement


_ROWS = _Table(statements.DELETE_ROWS, statements.SELECT_ROW_IDS, statements.DELETE_ROW)
_MARKS = _Table(
    mark_statements.ERASE_MARKS, mark_statements.SELECT_MARK_IDS, mark_statements.DELETE_MARK
)
_DEAD_LETTERS = _Table(
    statements.DELETE_DEAD_LETTERS,
    statements.SELECT_DEAD_LETTER_IDS,
    statements.DELETE_DEAD_LETTER,
)


async def erase_slices(
    session: Session, queue: str, starts: Sequence[datetime], buckets: int
) -> AsyncIterator[int]:
    """Delete rows and marks of partitions, and delivery records (see `View.erase_slices`)."""
    place = (queue, list(starts), list(range(buckets)))
    async for key in _keys(session, statements.SELECT_OCCUPIED, queue, place):
        async for count in _erase_rows(session, queue, key):
            yield count
    async for key in _keys(session, mark_statements.SELECT_OCCUPIED_MARKS, queue, place):
        await _erase(session, _MARKS, key)
        await session.execute(mark_statements.DELETE_VERSION, key)
        yield 0


async def erase_dead_letters(session: Session, queue: str) -> AsyncIterator[int]:
    """Delete the dead letters, and the delivery records of their mails. See
    `View.erase_dead_letters`."""
    reader = DeadLetterReader(session, queue)
    for month in await reader.months():
        mails: list[UUID | None] = []
        async for row in reader.dead_letters(month):
            mails.append(row["mail_id"])
            if len(mails) < DEAD_LETTERS:
                continue
            await _erase_records(session, queue, mails)
            through = (session.now_us() - APART_US, queue, month, row["enqueue_id"])
            await session.execute(statements.DELETE_DEAD_LETTERS_THROUGH, through)
            yield len(mails)
            mails = []
        await _erase_records(session, queue, mails)
        for each in (month, month_of_gone(month)):
            await _erase(session, _DEAD_LETTERS, (queue, each))
        yield len(mails)


async def erase_rest(session: Session, queue: str) -> None:
    """Delete the records of closed slices, the months of dead letters, limits and identity."""
    await session.execute(statements.DELETE_SLICES, (queue,))
    await session.execute(statements.DELETE_MONTHS, (session.now_us() - APART_US, queue))
    for row in await session.execute(statements.SELECT_LIMITS, (queue,)):
        await session.execute(statements.FORGET_LIMITS, (queue, row["incarnation"]))
    for topic in Topic:
        await session.execute(ERASE_SHARED_STATE, (queue, topic.value))
    await erase_lists(session, queue)
    for row in await session.execute(statements.SELECT_OWNERSHIP, (queue,)):
        await session.execute(statements.FORGET_OWNERSHIP, (queue, row["incarnation"]))


async def _keys(
    session: Session, occupied: Statement, queue: str, place: PartitionKey
) -> AsyncIterator[PartitionKey]:
    async for page in session.pages(occupied, place):
        for row in page:
            yield (queue, row["slice_start"], row["bucket_id"])


async def _erase_rows(session: Session, queue: str, key: PartitionKey) -> AsyncIterator[int]:
    """Delete a partition's rows page by page, so that an erasure that stops goes on behind them."""
    async for page in session.pages(statements.SELECT_MAILS, key):
        if not page:
            continue
        await _erase_records(session, queue, [row["mail_id"] for row in page])
        through = (session.now_us() - APART_US, *key, page[-1]["enqueue_id"])
        await session.execute(statements.DELETE_ROWS_THROUGH, through)
        yield len(page)
    await _erase(session, _ROWS, key)


async def _erase(session: Session, table: _Table, key: PartitionKey) -> None:
    now = session.now_us()
    await session.execute(table.partition, (now - APART_US, *key))
    async for page in session.pages(table.ids, key):
        left = [(now + APART_US, *key, row["enqueue_id"]) for row in page]
        await _each(session, table.one, left)


async def _erase_records(session: Session, queue: str, mails: Sequence[UUID | None]) -> None:
    """Delete the delivery records of mails. Most have none: asking leaves fewer tombstones."""
    ids = sorted({each for each in mails if each is not None})
    for start in range(0, len(ids), MAILS):
        asked = (queue, ids[start : start + MAILS])
        async for page in session.pages(statements.SELECT_RECORDED, asked):
            found = [(queue, row["mail_id"]) for row in page]
            await _each(session, statements.DELETE_RECORDS, found)


async def _each(session: Session, deletion: Statement, keys: Sequence[PartitionKey]) -> None:
    for start in range(0, len(keys), AT_ONCE):
        batch = keys[start : start + AT_ONCE]
        await asyncio.gather(*(session.execute(deletion, key) for key in batch))
