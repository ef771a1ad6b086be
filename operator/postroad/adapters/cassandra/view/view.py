"""`View` over Cassandra. The port has the contract of each method; `statements` and
`mark_statements` have the reason for the form of each statement. The enqueue keys of a queue are
lightweight transactions on a row that expires.

An erasure goes by the keys of a queue's own partitions: no statement reads what other queues have.
Rows are deleted before marks, so that a crash in between leaves no mail that looks live. Claims
expire by themselves within minutes. Delivery records are found by the mails of rows and dead
letters; those of mails whose rows were cleaned expire. Source: ADR 0044.

A queue may be created anew under the same name at once, by a writer whose estimate of the view's
time lags. So partitions are deleted with a timestamp earlier than any of such a writer, and younger
rows one by one, by ids that are never used again. Source: ADR 0016."""

import asyncio
import json
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID, uuid4

from postroad.adapters.cassandra import mark_statements, statements
from postroad.adapters.cassandra.session import Row, Session, Statement
from postroad.adapters.cassandra.statements import insert
from postroad.adapters.cassandra.view import rows
from postroad.adapters.cassandra.view.marks import CassandraMarks, batcher
from postroad.adapters.cassandra.view.rows import DeadLetterReader, month_of_gone
from postroad.adapters.cassandra.view.shared_state import (
    ERASE_SHARED_STATE,
    CassandraSharedState,
    CassandraSuppressionList,
    erase_lists,
)
from postroad.domain.queues.entries import Entry, EntryKey, Partition, UndecodableRow
from postroad.domain.queues.ownership import Identity
from postroad.domain.queues.references import KEY_LIFETIME
from postroad.domain.values.identifiers import FIRST
from postroad.domain.values.instants import AGREEING, Readings
from postroad.ports.delivery import Topic
from postroad.ports.marks import Counts
from postroad.ports.view import NOT_READ, ClosedSlice, DeadLetter, KeyedEntry, Limits, Record

LIFETIME = round(KEY_LIFETIME.total_seconds())

COLUMNS = (
    "slice_start",
    "bucket_id",
    "enqueue_id",
    "mail_id",
    "blob_key",
    "accepted_at",
    "digest",
    "is_accepted",
)

TAKE = Statement(
    insert("enqueue_keys", ("queue", "key_token", *COLUMNS))
    + f" IF NOT EXISTS USING TTL {LIFETIME}"
)
"""The first of several processes has the key; the answer to the others is what it wrote."""

CHANGE = Statement(
    f"UPDATE {{keyspace}}.enqueue_keys USING TTL {LIFETIME}"
    f" SET {', '.join(f'{each} = ?' for each in COLUMNS)}"
    " WHERE queue = ? AND key_token = ? IF enqueue_id = ? AND is_accepted = ?"
)
"""All columns, though few differ: they would expire one by one."""

# ruff: noqa: S608  # the statements are built from constants of this file; values are always bound


async def take(session: Session, queue: str, token: bytes, keyed: KeyedEntry) -> KeyedEntry:
    [answer] = await session.execute(TAKE, (queue, token, *_values(keyed)))
    return keyed if answer["[applied]"] else _keyed_of(answer)


async def change(
    session: Session, queue: str, token: bytes, before: KeyedEntry, after: KeyedEntry
) -> bool:
    condition = (before.key.enqueue_id, before.is_accepted)
    [answer] = await session.execute(CHANGE, (*_values(after), queue, token, *condition))
    return bool(answer["[applied]"])


def _values(keyed: KeyedEntry) -> tuple[object, ...]:
    return (
        *keyed.key,
        keyed.mail_id,
        keyed.blob_key,
        keyed.accepted_at,
        keyed.digest,
        keyed.is_accepted,
    )


def _keyed_of(row: Row) -> KeyedEntry:
    return KeyedEntry(
        key=EntryKey(rows.instant(row["slice_start"]), row["bucket_id"], row["enqueue_id"]),
        mail_id=row["mail_id"],
        blob_key=row["blob_key"],
        accepted_at=rows.instant(row["accepted_at"]),
        digest=row["digest"],
        is_accepted=row["is_accepted"],
    )


RECORDS = 100
"""Delivery records in one request. One may hold a reply of several kilobytes, and Cassandra refuses
a request of more than half a segment of its commit log (16 MiB by default)."""


class CassandraView(CassandraMarks):
    """The view of one queue, in a keyspace that it shares with others."""

    def __init__(self, session: Session, queue: str) -> None:
        super().__init__(session, queue)
        self._dead_letters = DeadLetterReader(session, queue)
        self._incarnation: UUID | None = None  # of the limits, as last read
        self._inserting = batcher(self._write_together)

    async def insert(self, entry: Entry) -> None:
        values = (self._queue, *rows.entry_values(entry))
        if rows.is_small(entry):
            await self._inserting(entry.key.partition, (statements.INSERT_ROW, values))
        else:
            await self._session.execute(statements.INSERT_ROW, values)

    async def row(self, key: EntryKey) -> Entry | UndecodableRow | None:
        found = await self._session.execute(
            statements.SELECT_ROW, rows.key_values(self._queue, key)
        )
        return rows.row_of(found[0]) if found else None

    async def rows(
        self, partition: Partition, after: UUID | None = None
    ) -> AsyncIterator[Entry | UndecodableRow]:
        values = (*self._place(partition), after or FIRST)
        async for page in self._session.pages(statements.SELECT_ROWS, values):
            for row in page:
                yield rows.row_of(row)

    async def renew_row(self, key: EntryKey) -> None:
        place = rows.key_values(self._queue, key)
        for found in await self._session.execute(statements.SELECT_AS_STORED, place):
            columns = json.loads(found["[json]"])
            present = {name: value for name, value in columns.items() if value is not None}
            await self._session.execute(statements.RENEW_ROW, (json.dumps(present),))

    async def count_rows(
        self, partition: Partition, now: datetime | None, after: UUID | None = None
    ) -> Counts:
        place = (*self._place(partition), after or FIRST)
        return await self._count(statements.COUNT_ROWS, statements.COUNT_LATER_ROWS, place, now)

    async def occupied(self, starts: Sequence[datetime], buckets: int) -> Collection[Partition]:
        values = (self._queue, list(starts), list(range(buckets)))
        return {
            Partition(rows.instant(row["slice_start"]), row["bucket_id"])
            async for row in self._each(statements.SELECT_OCCUPIED, *values)
        }

    async def blob_keys(
        self, partition: Partition, through: UUID
    ) -> AsyncIterator[tuple[UUID, str | None]]:
        place = self._place(partition)
        async for row in self._each(statements.SELECT_BLOB_KEYS, *place, FIRST, through):
            yield row["enqueue_id"], row["blob_key"]

    async def claim(self, enqueue_id: UUID, owner: UUID, lifetime: timedelta) -> bool:
        seconds = max(1, round(lifetime.total_seconds()))
        answer = await self._decide(statements.CLAIM, seconds, owner, self._queue, enqueue_id)
        if answer["[applied]"] or answer["owner"] != owner:
            return bool(answer["[applied]"])
        renewed = await self._decide(
            statements.RENEW_CLAIM, seconds, owner, self._queue, enqueue_id, owner
        )
        return bool(renewed["[applied]"])

    async def release_claim(self, enqueue_id: UUID, owner: UUID) -> None:
        await self._decide(statements.RELEASE_CLAIM, self._queue, enqueue_id, owner)

    @property
    def shared_state(self) -> CassandraSharedState:
        return CassandraSharedState(self._session, self._queue)

    @property
    def suppression_list(self) -> CassandraSuppressionList:
        return CassandraSuppressionList(self._session, self._queue)

    async def take_key(self, token: bytes, keyed: KeyedEntry) -> KeyedEntry:
        return await take(self._session, self._queue, token, keyed)

    async def change_key(self, token: bytes, before: KeyedEntry, after: KeyedEntry) -> bool:
        return await change(self._session, self._queue, token, before, after)

    async def record(self, mail_id: UUID, records: tuple[Record, ...]) -> None:
        many = [
            (
                *(self._queue, mail_id, each.recipient),
                *(each.outcome.kind.value, each.outcome.text, each.at),
            )
            for each in records
        ]
        if len(many) == 1:
            await self._session.execute(statements.RECORD, many[0])
            return
        portions = (many[at : at + RECORDS] for at in range(0, len(many), RECORDS))
        await asyncio.gather(
            *(self._session.execute_together(statements.RECORD, each) for each in portions)
        )

    async def records(self, mail_id: UUID) -> Mapping[str, Record]:
        return {
            row["recipient"]: rows.record_of(row)
            async for row in self._each(statements.SELECT_RECORDS, self._queue, mail_id)
        }

    async def limits(self) -> Limits:
        found = await self._session.execute(statements.SELECT_LIMITS, (self._queue,))
        self._incarnation = found[0]["incarnation"] if found else None
        return rows.limits_of(found)

    async def advance(
        self,
        *,
        browse_start: datetime | None = None,
        content_start: datetime | None = None,
        archived_through: datetime | None = None,
    ) -> None:
        if self._incarnation is None:
            await self.limits()
        incarnation = self._incarnation = self._incarnation or uuid4()
        place = self._queue, incarnation
        together = [
            (statement, (rows.own_timestamp(limit), limit, *place))
            for statement, limit in (
                (statements.ADVANCE_BROWSE_START, browse_start),
                (statements.ADVANCE_CONTENT_START, content_start),
                (statements.ADVANCE_ARCHIVED_THROUGH, archived_through),
            )
            if limit is not None
        ]
        if len(together) == 1:
            await self._session.execute(*together[0])
        elif together:
            await self._session.execute_batch(together)

    async def identity(self) -> Identity:
        limits = await self._session.execute(statements.SELECT_LIMITS, (self._queue,))
        found = await self._session.execute(statements.SELECT_OWNERSHIP, (self._queue,))
        return rows.identity_of(limits, found)

    async def raise_as_of(self, incarnation: UUID, as_of: datetime) -> None:
        values = (rows.own_timestamp(as_of), as_of, self._queue, incarnation)
        await self._session.execute(statements.RAISE_AS_OF, values)

    async def close_slice(self, closed: ClosedSlice) -> ClosedSlice:
        answer = await self._decide(
            statements.CLOSE_SLICE,
            *(self._queue, closed.slice_start, round(closed.window.total_seconds())),
            dict(closed.rows),
        )
        return closed if answer["[applied]"] else rows.slice_of_row(answer)

    async def mark_drained(self, slice_start: datetime) -> None:
        await self._decide(statements.MARK_DRAINED, self._queue, slice_start)

    async def closed_slices(self, first: datetime) -> AsyncIterator[ClosedSlice]:
        async for row in self._each(statements.SELECT_SLICES, self._queue, first):
            yield rows.slice_of_row(row)

    async def forget_slice(self, slice_start: datetime) -> None:
        await self._decide(statements.FORGET_SLICE, self._queue, slice_start)

    async def delete_rows(self, partition: Partition, written_before: datetime) -> None:
        timestamp = rows.own_timestamp(written_before)
        await self._session.execute(statements.DELETE_ROWS, (timestamp, *self._place(partition)))

    async def write_dead_letter(self, dead_letter: DeadLetter) -> None:
        await self._session.execute(statements.NOTE_MONTH, (self._queue, dead_letter.month))
        await self._session.execute(
            statements.WRITE_DEAD_LETTER, rows.dead_letter_values(self._queue, dead_letter)
        )

    async def rewrite_dead_letter(self, dead_letter: DeadLetter) -> None:
        if dead_letter.written is None:
            raise ValueError(NOT_READ)
        values = rows.dead_letter_values(self._queue, dead_letter)
        await self._session.execute(
            statements.REWRITE_DEAD_LETTER, (*values, dead_letter.written + 1)
        )

    async def dead_letter(self, month: str, enqueue_id: UUID) -> DeadLetter | None:
        gone = month_of_gone(month)
        found = await self._session.execute(
            statements.SELECT_DEAD_LETTER, (self._queue, [month, gone], enqueue_id)
        )
        if any(row["month"] == gone for row in found):
            return None
        return rows.dead_letter_of(found[0]) if found else None

    async def dead_letters(self) -> AsyncIterator[DeadLetter]:
        for month in await self._dead_letters.months():
            async for row in self._dead_letters.dead_letters(month):
                yield rows.dead_letter_of(row)

    async def count_dead_letters(self) -> int:
        months = await self._dead_letters.months()
        return sum([await self._dead_letters.count(month) for month in months])

    async def delete_dead_letter(self, dead_letter: DeadLetter) -> None:
        if dead_letter.entry is not None:
            note = (self._queue, month_of_gone(dead_letter.month), dead_letter.enqueue_id)
            await self._session.execute(statements.NOTE_GONE, note)
        place = (self._queue, dead_letter.month, dead_letter.enqueue_id)
        for found in await self._session.execute(statements.SELECT_WRITTEN_AT, place):
            await self._session.execute(
                statements.DELETE_DEAD_LETTER, (found["written"] + 1, *place)
            )

    async def server_times(self) -> Readings:
        return await self._session.server_times()

    async def hosts(self) -> int:
        return await self._session.local_nodes()

    async def erase_slices(self, starts: Sequence[datetime], buckets: int) -> AsyncIterator[int]:
        await self._session.server_times()  # for the tombstones' timestamps
        async for count in erase_slices(self._session, self._queue, starts, buckets):
            yield count

    async def erase_dead_letters(self) -> AsyncIterator[int]:
        await self._session.server_times()
        async for count in erase_dead_letters(self._session, self._queue):
            yield count

    async def erase(self) -> None:
        await self._session.server_times()
        await erase_rest(self._session, self._queue)
        self._incarnation = None


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
