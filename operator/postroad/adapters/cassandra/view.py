"""`View` over Cassandra. What each method promises is said at the port; why each statement has its
form, in `statements`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import TypeVar
from uuid import UUID, uuid4

from postroad.adapters.cassandra import rows, statements
from postroad.adapters.cassandra.erasure import erase_queue
from postroad.adapters.cassandra.session import Row, Session, Statement
from postroad.domain.slices import Partition, TurnKey
from postroad.domain.turns import Ending, Mark, Traits, Turn
from postroad.errors import ViewUnavailable
from postroad.gathering import Gathering
from postroad.ports.view import ClosedSlice, Counts, DeadLetter, Limits, Record

V = TypeVar("V")
R = TypeVar("R")

FIRST = UUID(int=0)
"""Before every id."""

MOST_TOGETHER = 50
"""Rows or marks of one partition in one request."""

PATIENCE = timedelta(seconds=5)
"""How long a request may wait for the one before it; as long again as a request may take."""


class CassandraView:
    """The view of one queue, in a keyspace that it shares with others."""

    def __init__(self, session: Session, queue: str) -> None:
        self._session = session
        self._queue = queue
        self._incarnation: UUID | None = None  # of the limits, as last read
        self._inserting = _gathering(partial(self._write_together, statements.INSERT_ROW))
        self._marking = _gathering(partial(self._write_together, statements.MARK_DELIVERED))
        self._reading = _gathering(self._marks_together)

    async def insert(self, turn: Turn) -> None:
        values = (self._queue, *rows.turn_values(turn))
        if rows.is_small(turn):
            await self._inserting(turn.key.partition, values)
        else:
            await self._session.execute(statements.INSERT_ROW, values)

    async def row(self, key: TurnKey) -> Turn | None:
        found = await self._session.execute(
            statements.SELECT_ROW, rows.key_values(self._queue, key)
        )
        return rows.turn_of(found[0]) if found else None

    async def rows(self, partition: Partition, after: UUID | None = None) -> AsyncIterator[Turn]:
        async for row in self._each(
            statements.SELECT_ROWS, *self._place(partition), after or FIRST
        ):
            yield rows.turn_of(row)

    async def count_rows(self, partition: Partition, now: datetime) -> Counts:
        return await self._count(statements.COUNT_ROWS, statements.COUNT_LATER_ROWS, partition, now)

    async def mark(self, key: TurnKey) -> Mark | None:
        return await self._reading(key.partition, key.enqueue_id)

    async def marks(
        self, partition: Partition, after: UUID | None = None
    ) -> AsyncIterator[tuple[UUID, Mark]]:
        place = self._place(partition)
        async for row in self._each(statements.SELECT_MARKS, *place, after or FIRST):
            yield row["enqueue_id"], rows.mark_of(row)

    async def count_marks(self, partition: Partition, now: datetime | None) -> Counts:
        return await self._count(
            statements.COUNT_MARKS, statements.COUNT_LATER_MARKS, partition, now
        )

    async def mark_delivered(self, key: TurnKey, at: datetime, traits: Traits) -> None:
        values = (*rows.key_values(self._queue, key), *rows.trait_values(traits), at)
        if len(traits.domains) <= rows.SMALL:
            await self._marking(key.partition, values)
        else:
            await self._session.execute(statements.MARK_DELIVERED, values)

    async def end(self, key: TurnKey, ending: Ending, traits: Traits) -> Mark | None:
        answer = await self._decide(
            statements.END,
            *rows.key_values(self._queue, key),
            *rows.trait_values(traits),
            *rows.ending_values(ending),
        )
        return None if answer["[applied]"] else rows.mark_of(answer)

    async def end_together(self, ended: Sequence[tuple[TurnKey, Ending, Traits]]) -> bool:
        values = [
            (
                *rows.key_values(self._queue, key),
                *rows.trait_values(traits),
                *rows.ending_values(ending),
            )
            for key, ending, traits in ended
        ]
        answer = await self._session.execute_together(statements.END, values)
        return bool(answer[0]["[applied]"])

    async def mark_published(self, key: TurnKey, successor: UUID) -> bool:
        answer = await self._decide(
            statements.MARK_PUBLISHED, *rows.key_values(self._queue, key), successor
        )
        return bool(answer["[applied]"])

    async def change_successor(self, key: TurnKey, old: UUID, new: TurnKey) -> bool:
        answer = await self._decide(
            statements.CHANGE_SUCCESSOR,
            *(new.enqueue_id, new.slice_start, new.bucket_id),
            *rows.key_values(self._queue, key),
            old,
        )
        return bool(answer["[applied]"])

    async def claim(self, enqueue_id: UUID, owner: UUID, lifetime: timedelta) -> bool:
        seconds = max(1, round(lifetime.total_seconds()))
        answer = await self._decide(statements.CLAIM, self._queue, enqueue_id, owner, seconds)
        if answer["[applied]"] or answer["owner"] != owner:
            return bool(answer["[applied]"])
        renewed = await self._decide(
            statements.RENEW_CLAIM, seconds, owner, self._queue, enqueue_id, owner
        )
        return bool(renewed["[applied]"])

    async def release_claim(self, enqueue_id: UUID, owner: UUID) -> None:
        await self._decide(statements.RELEASE_CLAIM, self._queue, enqueue_id, owner)

    async def record(self, mail_id: UUID, records: tuple[Record, ...]) -> None:
        await asyncio.gather(
            *(
                self._session.execute(
                    statements.RECORD,
                    (
                        *(self._queue, mail_id, each.recipient),
                        *(each.outcome.kind.value, each.outcome.text, each.at),
                    ),
                )
                for each in records
            )
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
        self, *, browse_start: datetime | None = None, content_start: datetime | None = None
    ) -> None:
        if self._incarnation is None:
            await self.limits()
        incarnation = self._incarnation = self._incarnation or uuid4()
        for statement, limit in (
            (statements.ADVANCE_BROWSE_START, browse_start),
            (statements.ADVANCE_CONTENT_START, content_start),
        ):
            if limit is not None:
                timestamp = rows.own_timestamp(limit)
                await self._session.execute(statement, (timestamp, limit, self._queue, incarnation))

    async def close_slice(self, closed: ClosedSlice) -> ClosedSlice:
        answer = await self._decide(
            statements.CLOSE_SLICE,
            *(self._queue, closed.slice_start, round(closed.window.total_seconds())),
            *(dict(closed.rows), dict(closed.live_by_domain)),
        )
        return closed if answer["[applied]"] else rows.slice_of_row(answer)

    async def mark_drained(self, slice_start: datetime) -> None:
        await self._decide(statements.MARK_DRAINED, self._queue, slice_start)

    async def closed_slices(self, first: datetime) -> AsyncIterator[ClosedSlice]:
        async for row in self._each(statements.SELECT_SLICES, self._queue, first):
            yield rows.slice_of_row(row)

    async def forget_slice(self, slice_start: datetime) -> None:
        await self._decide(statements.FORGET_SLICE, self._queue, slice_start)

    async def delete_rows(self, partition: Partition) -> None:
        await self._session.execute(statements.DELETE_ROWS, self._place(partition))

    async def delete_marks(self, partition: Partition) -> None:
        await self._session.execute(statements.DELETE_MARKS, self._place(partition))

    async def bury(self, letter: DeadLetter) -> None:
        await self._session.execute(statements.NOTE_MONTH, (self._queue, letter.month))
        await self._session.execute(statements.BURY, rows.letter_values(self._queue, letter))

    async def letter(self, month: str, enqueue_id: UUID) -> DeadLetter | None:
        found = await self._session.execute(
            statements.SELECT_LETTER, (self._queue, month, enqueue_id)
        )
        return rows.letter_of(found[0]) if found else None

    async def buried(self) -> AsyncIterator[DeadLetter]:
        for month in await self._months():
            async for row in self._each(statements.SELECT_LETTERS, self._queue, month):
                yield rows.letter_of(row)

    async def count_buried(self) -> int:
        return sum(
            [
                (await self._session.execute(statements.COUNT_LETTERS, (self._queue, month)))[0][
                    "count"
                ]
                for month in await self._months()
            ]
        )

    async def unbury(self, letter: DeadLetter) -> None:
        place = (self._queue, letter.month, letter.enqueue_id)
        for found in await self._session.execute(statements.SELECT_BURIED_AT, place):
            await self._session.execute(statements.UNBURY, (found["written"], *place))

    async def server_time(self) -> datetime:
        return await self._session.server_time()

    async def erase(self) -> None:
        # By a fresh look at the clock: what a queue made anew under this name writes must be later.
        await self._session.server_time()
        await erase_queue(self._session, self._queue)
        self._incarnation = None

    async def _months(self) -> list[str]:
        return [row["month"] async for row in self._each(statements.SELECT_MONTHS, self._queue)]

    async def _each(self, statement: Statement, *values: object) -> AsyncIterator[Row]:
        async for page in self._session.pages(statement, values):
            for row in page:
                yield row

    async def _write_together(
        self, statement: Statement, _: Partition, many: list[tuple[object, ...]]
    ) -> Sequence[None]:
        if len(many) == 1:
            await self._session.execute(statement, many[0])
        else:
            await self._session.execute_together(statement, many)
        return [None] * len(many)

    async def _marks_together(self, partition: Partition, ids: list[UUID]) -> Sequence[Mark | None]:
        place = self._place(partition)
        if len(ids) == 1:
            found = await self._session.execute(statements.SELECT_MARK, (*place, ids[0]))
            return [rows.mark_of(found[0]) if found else None]
        found = await self._session.execute(statements.SELECT_MARKED, (*place, set(ids)))
        marks = {row["enqueue_id"]: rows.mark_of(row) for row in found}
        return [marks.get(each) for each in ids]

    async def _count(
        self,
        all_of_them: Statement,
        later: Statement,
        partition: Partition,
        now: datetime | None,
    ) -> Counts:
        place = self._place(partition)
        counting = [self._session.execute(all_of_them, place)]
        if now is not None:
            counting.append(self._session.execute(later, (*place, now)))
        every, *waiting = await asyncio.gather(*counting)
        return Counts(
            total=every[0]["total"],
            delayed=sum(each[0]["total"] - each[0]["held"] for each in waiting),
            held=every[0]["held"],
        )

    async def _decide(self, statement: Statement, *values: object) -> Row:
        """Run a lightweight transaction and return its answer."""
        answer = await self._session.execute(statement, values)
        return answer[0]

    def _place(self, partition: Partition) -> tuple[object, ...]:
        return (self._queue, partition.slice_start, partition.bucket_id)


def _gathering(
    send: Callable[[Partition, list[V]], Awaitable[Sequence[R]]],
) -> Gathering[Partition, V, R]:
    return Gathering(
        send,
        lambda: ViewUnavailable("Cassandra did not answer others in time"),
        most=MOST_TOGETHER,
        patience=PATIENCE,
    )
