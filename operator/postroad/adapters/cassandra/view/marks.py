"""Marks in Cassandra: how entries ended. The half of `View` that decides which ending is first.

Marks, traits and watermarks as rows of the table of marks, and back.

Lightweight transactions of one partition that wait at the same time go as one. Cassandra runs those
of a partition one after the other, with a few rounds between replicas each, and all mails of a
slice share a few partitions. A conditional batch costs as much as one of them and takes effect
wholly or not at all: where the condition of one write does not hold, its caller gets the mark that
refused it, and the others are sent again. When the answer to a batch is lost, each caller gets
ViewUnavailable, as for a lone transaction. Source: ADR 0012."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar
from uuid import UUID

from postroad.adapters.cassandra import mark_statements
from postroad.adapters.cassandra.session import UNSET, Row, Session, Statement
from postroad.adapters.cassandra.statements import SELECT_PRESENT
from postroad.adapters.cassandra.view import rows
from postroad.batching import Batcher
from postroad.domain.delivery.attempts import AttemptOutcomes
from postroad.domain.queues.entries import (
    Change,
    Ending,
    EndingKind,
    EntryKey,
    Mark,
    Partition,
    PurgeWatermark,
    Traits,
)
from postroad.domain.values import instants
from postroad.domain.values.identifiers import EPOCH, FIRST
from postroad.errors import ViewUnavailable
from postroad.ports.marks import Counts, PartitionVersion


def is_small_ending(ending: Ending, traits: Traits) -> bool:
    """True if a mark may share a request with others."""
    remaining = () if ending.change is None else ending.change.remaining
    return max(len(remaining), len(traits.domains)) <= rows.SMALL


def trait_values(traits: Traits) -> tuple[object, ...]:
    """Return the traits that a mark repeats, in the order of TRAIT_COLUMNS."""
    return (traits.domains, rows.bound(traits.due_at), traits.held or UNSET)


def outcome_values(outcomes: AttemptOutcomes | None) -> tuple[object, ...]:
    """Return what is kept of an attempt, in the order of OUTCOME_COLUMNS: nothing of none."""
    if outcomes is None:
        return ()
    counts = [
        (
            *(each.domain, each.site, each.kind.value, each.code),
            None if each.reason is None else each.reason.value,
            *(each.words, each.count),
        )
        for each in outcomes.counts
    ]
    return counts, outcomes.seconds


def traits_of(row: Row) -> Traits:
    """Return the traits that a mark repeats."""
    return Traits(
        tuple(row["domains"] or ()), rows.optional_instant(row["due_at"]), held=bool(row["held"])
    )


def ending_values(ending: Ending) -> tuple[object, ...]:
    """Return an ending in the order of MARK_COLUMNS, without `delivered_at`."""
    successor, change = ending.successor, ending.change
    if successor is None or change is None:
        return (ending.kind.value, ending.at, *(UNSET,) * 10)
    return (
        ending.kind.value,
        ending.at,
        successor.enqueue_id,
        successor.slice_start,
        successor.bucket_id,
        False,
        change.remaining,
        rows.bound(change.due_at),
        change.held or UNSET,
        change.attempt,
        rows.bound(change.last_error),
        rows.chain_value(change.previous),
    )


def mark_of(row: Row) -> Mark:
    """Return the mark of a row. An ending that cannot be decoded becomes UNKNOWN, because without
    an ending its entry would be delivered again."""
    ending: Ending | None = None
    if row["ending"] is not None:
        try:
            ending = _ending_of(row)
        except Exception:  # any error: one bad mark must not fail the page
            ending = Ending(EndingKind.UNKNOWN, rows.optional_instant(row["ended_at"]) or EPOCH)
    return Mark(
        delivered_at=rows.optional_instant(row["delivered_at"]),
        ending=ending,
        published=bool(row["published"]),
    )


def watermark_of(row: Row) -> PurgeWatermark | None:
    """Return the watermark of the partition that a mark was read from."""
    through = row["purged_through"]
    return None if through is None else PurgeWatermark(through, rows.instant(row["purged_at"]))


def version_of(row: Row) -> PartitionVersion:
    return PartitionVersion(
        watermark_of(row),
        row["swept_through"],
        instants.optional_instant(row["delivered"]),
        instants.optional_instant(row["ended"]),
    )


def _ending_of(row: Row) -> Ending:
    kind, at = EndingKind(row["ending"]), rows.instant(row["ended_at"])
    if kind is not EndingKind.REPLACED:
        return Ending(kind, at)
    return Ending(
        kind,
        at,
        successor=EntryKey(
            rows.instant(row["replaced_by_slice"]), row["replaced_by_bucket"], row["replaced_by"]
        ),
        change=Change(
            remaining=tuple(row["remaining"]),
            due_at=rows.optional_instant(row["new_due_at"]),
            held=bool(row["new_held"]),
            attempt=int(row["new_attempt"]),
            last_error=row["new_last_error"],
            previous=rows.keys_of(row["new_previous"]),
        ),
    )


V = TypeVar("V")
R = TypeVar("R")

MAX_TOGETHER = 50
"""Rows or marks of one partition in one request."""

MAX_WAIT = timedelta(seconds=5)
"""Time that a request may wait for the one before it: as long as one request may take."""


class CassandraMarks:
    def __init__(self, session: Session, queue: str) -> None:
        self._session = session
        self._queue = queue
        self._marking = batcher(self._write_together)
        self._reading = batcher(self._marks_together)
        transactions = Transactions(session, self._found)
        self._deciding = batcher(transactions.together)
        self._alone = transactions.together

    # Reads

    async def mark(self, key: EntryKey) -> Mark | None:
        return await self._reading(key.partition, key.enqueue_id)

    async def marks(
        self, partition: Partition, after: UUID | None = None
    ) -> AsyncIterator[tuple[UUID, Mark]]:
        place = self._place(partition)
        async for row in self._each(mark_statements.SELECT_MARKS, *place, after or FIRST):
            yield row["enqueue_id"], mark_of(row)

    async def marked(self, partition: Partition, through: UUID) -> AsyncIterator[tuple[UUID, bool]]:
        place = self._place(partition)
        async for row in self._each(mark_statements.SELECT_MARKED_IDS, *place, FIRST, through):
            yield row["enqueue_id"], row["published"] is False

    async def count_marks(
        self, partition: Partition, now: datetime, after: UUID | None = None
    ) -> Counts:
        place = (*self._place(partition), after or FIRST)
        return await self._count(
            mark_statements.COUNT_MARKS, mark_statements.COUNT_LATER_MARKS, place, now
        )

    async def withdrawn_without_rows(
        self, partition: Partition, after: UUID | None = None
    ) -> AsyncIterator[Traits]:
        place = self._place(partition)
        async for page in self._session.pages(
            mark_statements.SELECT_WITHDRAWN, (*place, after or FIRST)
        ):
            if not page:
                continue
            ids = [row["enqueue_id"] for row in page]
            found = await self._session.execute(SELECT_PRESENT, (*place, ids))
            present = {row["enqueue_id"] for row in found}
            for row in page:
                if row["enqueue_id"] not in present:
                    yield traits_of(row)

    async def unfinished(
        self, partition: Partition, after: UUID | None = None
    ) -> AsyncIterator[tuple[Mark, Traits]]:
        place = self._place(partition)
        async for row in self._each(mark_statements.SELECT_UNFINISHED, *place, after or FIRST):
            yield mark_of(row), traits_of(row)

    async def version(self, partition: Partition) -> PartitionVersion:
        found = await self._session.execute(mark_statements.SELECT_VERSION, self._place(partition))
        return version_of(found[0]) if found else PartitionVersion()

    # How entries end

    async def mark_delivered(
        self,
        key: EntryKey,
        at: datetime,
        traits: Traits,
        outcomes: AttemptOutcomes | None = None,
    ) -> None:
        kept = outcome_values(outcomes)
        statement = (
            mark_statements.MARK_DELIVERED_KEEPING if kept else mark_statements.MARK_DELIVERED
        )
        values = (*rows.key_values(self._queue, key), *trait_values(traits), at, *kept)
        if len(traits.domains) <= rows.SMALL:
            await self._marking(key.partition, (statement, values))
        else:
            await self._session.execute(statement, values)

    async def end(
        self,
        key: EntryKey,
        ending: Ending,
        traits: Traits,
        outcomes: AttemptOutcomes | None = None,
    ) -> Mark | None:
        kept = outcome_values(outcomes)
        statement = mark_statements.END_KEEPING if kept else mark_statements.END
        values = self._end_values(key, ending, traits, kept)
        write = Write(key, statement, values, _is_open, wants_watermark=True)
        if is_small_ending(ending, traits):
            return await self._deciding(key.partition, write)
        [standing] = await self._alone(key.partition, [write])
        return standing

    async def end_together(self, ended: Sequence[tuple[EntryKey, Ending, Traits]]) -> bool:
        partition = ended[0][0].partition
        watermark = (await self.version(partition)).watermark
        if watermark is not None and any(watermark.mark_of(key.enqueue_id) for key, _, _ in ended):
            return False
        through = None if watermark is None else watermark.through
        values = [(*self._end_values(*each), through) for each in ended]
        answer = await self._session.execute_together(mark_statements.END, values)
        return bool(answer[0]["[applied]"])

    async def set_watermark(
        self, partition: Partition, watermark: PurgeWatermark
    ) -> PurgeWatermark | None:
        while True:
            before = (await self.version(partition)).watermark
            if before is not None and before.through >= watermark.through:
                return before
            answer = await self._decide(
                mark_statements.SET_WATERMARK,
                *(watermark.through, watermark.at, watermark.at),
                *self._place(partition),
                None if before is None else before.through,
            )
            if answer["[applied]"]:
                return before

    async def mark_blobs_deleted(self, partition: Partition, through: UUID) -> None:
        await self._session.execute(
            mark_statements.MARK_BLOBS_DELETED, (through, *self._place(partition))
        )

    async def mark_published(self, key: EntryKey, successor: UUID) -> bool:
        values = (*rows.key_values(self._queue, key), successor)
        write = Write(
            key,
            mark_statements.MARK_PUBLISHED,
            values,
            lambda mark: mark is not None and mark.is_replaced_by(successor),
        )
        return await self._deciding(key.partition, write) is None

    async def change_successor(
        self, key: EntryKey, old: UUID, new: EntryKey, previous: tuple[EntryKey, ...]
    ) -> bool:
        values = (
            *(new.enqueue_id, new.slice_start, new.bucket_id),
            rows.chain_value(previous),
            *rows.key_values(self._queue, key),
            old,
        )

        def holds(mark: Mark | None) -> bool:
            return mark is not None and not mark.published and mark.is_replaced_by(old)

        write = Write(key, mark_statements.CHANGE_SUCCESSOR, values, holds)
        return await self._deciding(key.partition, write) is None

    async def delete_marks(self, partition: Partition) -> None:
        await self._session.execute(mark_statements.DELETE_MARKS, self._place(partition))

    # Shared by requests

    def _end_values(
        self, key: EntryKey, ending: Ending, traits: Traits, kept: tuple[object, ...] = ()
    ) -> tuple[object, ...]:
        """Return what END or END_KEEPING binds, without the watermark."""
        return (
            *trait_values(traits),
            *ending_values(ending),
            *kept,
            *rows.key_values(self._queue, key),
        )

    async def _marks_together(self, partition: Partition, ids: list[UUID]) -> Sequence[Mark | None]:
        marks = await self._found(partition, ids)
        return [marks.get(each) for each in ids]

    async def _found(self, partition: Partition, ids: Sequence[UUID]) -> Mapping[UUID, Mark]:
        place = self._place(partition)
        if len(ids) == 1:
            found = await self._session.execute(mark_statements.SELECT_MARK, (*place, ids[0]))
        else:
            named = {*ids, mark_statements.WATERMARK_ID}
            found = await self._session.execute(mark_statements.SELECT_MARKED, (*place, named))
        watermark = watermark_of(found[0]) if found else None
        marks = {row["enqueue_id"]: mark_of(row) for row in found}
        if watermark is not None:
            by_watermark = {each: watermark.mark_of(each) for each in ids}
            marks = {each: mark for each, mark in by_watermark.items() if mark is not None} | marks
        return marks

    async def _count(
        self,
        all_of_them: Statement,
        later: Statement,
        place: tuple[object, ...],
        now: datetime | None,
    ) -> Counts:
        counting = [self._session.execute(all_of_them, place)]
        if now is not None:
            counting.append(self._session.execute(later, (*place, now)))
        every, *waiting = await asyncio.gather(*counting)
        return Counts(
            total=every[0]["total"],
            delayed=sum(each[0]["total"] - each[0]["held"] for each in waiting),
            held=every[0]["held"],
            attempted=every[0].get("attempted", 0),
        )

    async def _each(self, statement: Statement, *values: object) -> AsyncIterator[Row]:
        async for page in self._session.pages(statement, values):
            for row in page:
                yield row

    async def _write_together(
        self, _: Partition, many: list[tuple[Statement, tuple[object, ...]]]
    ) -> Sequence[None]:
        if len(many) == 1:
            await self._session.execute(*many[0])
        else:
            await self._session.execute_batch(many)
        return [None] * len(many)

    async def _decide(self, statement: Statement, *values: object) -> Row:
        """Run a lightweight transaction and return its answer."""
        answer = await self._session.execute(statement, values)
        return answer[0]

    def _place(self, partition: Partition) -> tuple[object, ...]:
        return (self._queue, partition.slice_start, partition.bucket_id)


def _is_open(mark: Mark | None) -> bool:
    return mark is None or (mark.ending is None and mark.delivered_at is None)


def batcher(
    send: Callable[[Partition, list[V]], Awaitable[Sequence[R]]],
) -> Batcher[Partition, V, R]:
    return Batcher(
        send,
        lambda: ViewUnavailable("Cassandra did not answer others in time"),
        most=MAX_TOGETHER,
        max_wait=MAX_WAIT,
    )


NOTHING = Mark()
"""Refuses a write that needs a mark where there is none."""


@dataclass(frozen=True, slots=True)
class Write:
    """A conditional write on the mark of one entry. `holds` is its CQL condition in Python.
    `wants_watermark`: the watermark that its caller knows is bound last."""

    key: EntryKey
    statement: Statement
    values: tuple[object, ...]
    holds: Callable[[Mark | None], bool]
    wants_watermark: bool = False

    def bound(self, through: UUID | None) -> tuple[Statement, tuple[object, ...]]:
        return self.statement, ((*self.values, through) if self.wants_watermark else self.values)


class Transactions:
    """Carries out writes of one partition. `read` returns the marks of entries, from their own rows
    or by the watermark."""

    def __init__(
        self,
        session: Session,
        read: Callable[[Partition, Sequence[UUID]], Awaitable[Mapping[UUID, Mark]]],
    ) -> None:
        self._session = session
        self._read = read

    async def together(self, partition: Partition, writes: Sequence[Write]) -> list[Mark | None]:
        """Return for each write None, or the mark that refused it. Raises: ViewError."""
        answers: dict[int, Mark | None] = {}
        waiting = dict(enumerate(writes))
        through: UUID | None = None
        most = len(waiting)
        while waiting:
            going = _first_of_each(waiting, most)
            answer = await self._decide([each.bound(through) for each in going.values()])
            if answer[0]["[applied]"]:
                refusals: dict[int, Mark | None] = dict.fromkeys(going)
                most = len(waiting)
            else:
                ids = [each.key.enqueue_id for each in going.values()]
                refusals = _refused(going, await self._read(partition, ids))
                before, through = through, _watermark_id(answer) or through
                if not refusals and through == before:
                    # The transaction met a mark that the read does not return yet. From now on each
                    # write goes alone, so that only that mark's caller waits for the read.
                    most = 1
            answers |= refusals
            for number in refusals:
                del waiting[number]
        return [answers[number] for number in range(len(writes))]

    async def _decide(self, bound: list[tuple[Statement, tuple[object, ...]]]) -> list[Row]:
        if len(bound) == 1:
            return await self._session.execute(*bound[0])
        return await self._session.execute_batch(bound)


def _watermark_id(answer: list[Row]) -> UUID | None:
    """Return the watermark that refused writes met, if their conditions read it."""
    return next((row["purged_through"] for row in answer if row.get("purged_through")), None)


def _first_of_each(waiting: Mapping[int, Write], most: int) -> dict[int, Write]:
    """Return the first write of each entry, in their order: of two in a batch, the second one's
    condition would not see the first."""
    going: dict[int, Write] = {}
    entries: set[UUID] = set()
    for number, write in waiting.items():
        if write.key.enqueue_id not in entries and len(going) < most:
            going[number] = write
        entries.add(write.key.enqueue_id)
    return going


def _refused(going: Mapping[int, Write], marks: Mapping[UUID, Mark]) -> dict[int, Mark | None]:
    standing = {number: marks.get(each.key.enqueue_id) for number, each in going.items()}
    return {
        number: mark or NOTHING
        for number, mark in standing.items()
        if not going[number].holds(mark)
    }
