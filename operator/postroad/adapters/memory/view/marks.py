"""The marks of a view in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

from postroad.adapters.memory.fault_injection import FaultInjector
from postroad.adapters.memory.view.tables import Tables, delete, within
from postroad.domain.delivery.attempts import AttemptOutcomes
from postroad.domain.queues.entries import Ending, EndingKind, Mark, PurgeWatermark, Traits
from postroad.domain.queues.slices import EntryKey, Partition
from postroad.ports.marks import Counts, PartitionStamp

T = TypeVar("T")

PAGE = 3
"""Rows a page: small, so that every test pages."""


class MemoryMarks:
    """The half of `View` on marks, over `Tables`."""

    def __init__(self, tables: Tables, faults: FaultInjector) -> None:
        self._tables = tables
        self._faults = faults

    async def _step(self, operation: str, effect: Callable[[], T]) -> T:
        return await self._faults("view", operation, effect)

    async def _page(
        self,
        name: str,
        table: Callable[[], Mapping[EntryKey, T]],
        partition: Partition,
        after: UUID | None,
        through: UUID | None = None,
    ) -> list[tuple[EntryKey, T]]:
        return await self._step(name, lambda: within(table(), partition, after, through)[:PAGE])

    async def mark(self, key: EntryKey) -> Mark | None:
        return await self._step("mark", lambda: self._tables.mark(key))

    async def marks(
        self, partition: Partition, after: UUID | None = None
    ) -> AsyncIterator[tuple[UUID, Mark]]:
        while page := await self._page("marks", lambda: self._tables.marks, partition, after):
            for key, mark in page:
                yield key.enqueue_id, mark
                after = key.enqueue_id

    async def marked(self, partition: Partition, through: UUID) -> AsyncIterator[tuple[UUID, bool]]:
        after: UUID | None = None
        marks = self._tables.marks
        while page := await self._page("marked", lambda: marks, partition, after, through):
            for key, mark in page:
                yield key.enqueue_id, mark.is_unfinished_replacement
                after = key.enqueue_id

    async def count_marks(
        self, partition: Partition, now: datetime, after: UUID | None = None
    ) -> Counts:
        def effect() -> Counts:
            found = within(self._tables.traits, partition, after)
            return Counts.of((traits for _, traits in found), now)

        return await self._step("count_marks", effect)

    async def withdrawn_without_rows(
        self, partition: Partition, after: UUID | None = None
    ) -> AsyncIterator[Traits]:
        def effect() -> list[Traits]:
            rows = self._tables.unexpired()
            return [
                self._tables.traits[key]
                for key, mark in within(self._tables.marks, partition, after)
                if _is_withdrawn(mark) and key not in rows
            ]

        for traits in await self._step("withdrawn_without_rows", effect):
            yield traits

    async def unfinished(
        self, partition: Partition, after: UUID | None = None
    ) -> AsyncIterator[tuple[Mark, Traits]]:
        def effect() -> list[tuple[Mark, Traits]]:
            return [
                (mark, self._tables.traits[key])
                for key, mark in within(self._tables.marks, partition, after)
                if mark.is_unfinished_replacement
            ]

        for found in await self._step("unfinished", effect):
            yield found

    async def stamp(self, partition: Partition) -> PartitionStamp:
        return await self._step(
            "stamp", lambda: self._tables.stamp.get(partition, PartitionStamp())
        )

    async def mark_delivered(
        self,
        key: EntryKey,
        at: datetime,
        traits: Traits,
        outcomes: AttemptOutcomes | None = None,
    ) -> None:
        def effect() -> None:
            mark = self._tables.marks.get(key, Mark())
            self._put_mark(key, replace(mark, delivered_at=at), traits, outcomes)
            self._stamp(key.partition, delivered=self._tables.clock.now())

        await self._step("mark_delivered", effect)

    async def end(
        self,
        key: EntryKey,
        ending: Ending,
        traits: Traits,
        outcomes: AttemptOutcomes | None = None,
    ) -> Mark | None:
        def effect() -> Mark | None:
            standing = self._tables.mark(key)
            if standing is None:
                self._end(key, ending, traits, outcomes)
            return standing

        return await self._step("end", effect)

    async def end_together(self, ended: Sequence[tuple[EntryKey, Ending, Traits]]) -> bool:
        def effect() -> bool:
            if any(self._tables.mark(key) is not None for key, _, _ in ended):
                return False
            for each in ended:
                self._end(*each)
            return True

        return await self._step("end", effect)

    async def set_watermark(
        self, partition: Partition, watermark: PurgeWatermark
    ) -> PurgeWatermark | None:
        def effect() -> PurgeWatermark | None:
            before = self._tables.watermark(partition)
            if before is None or before.through < watermark.through:
                self._stamp(partition, watermark=watermark)
            return before

        return await self._step("set_watermark", effect)

    async def mark_blobs_deleted(self, partition: Partition, through: UUID) -> None:
        await self._step(
            "mark_blobs_deleted", lambda: self._stamp(partition, blobs_deleted_through=through)
        )

    async def mark_published(self, key: EntryKey, successor: UUID) -> bool:
        def effect() -> bool:
            mark = self._tables.marks.get(key)
            if mark is None or not mark.is_replaced_by(successor):
                return False
            self._tables.marks[key] = replace(mark, published=True)
            return True

        return await self._step("mark_published", effect)

    async def change_successor(
        self, key: EntryKey, old: UUID, new: EntryKey, previous: tuple[EntryKey, ...]
    ) -> bool:
        def effect() -> bool:
            mark = self._tables.marks.get(key)
            ending = mark.ending if mark is not None else None
            if mark is None or ending is None or mark.published or not mark.is_replaced_by(old):
                return False
            assert ending.change is not None
            change = replace(ending.change, previous=previous)
            ending = replace(ending, successor=new, change=change)
            self._tables.marks[key] = replace(mark, ending=ending)
            return True

        return await self._step("change_successor", effect)

    async def delete_marks(self, partition: Partition) -> None:
        def effect() -> None:
            delete(self._tables.marks, partition)
            delete(self._tables.traits, partition)
            delete(self._tables.outcomes, partition)
            self._tables.stamp.pop(partition, None)

        await self._step("delete_marks", effect)

    def _end(
        self,
        key: EntryKey,
        ending: Ending,
        traits: Traits,
        outcomes: AttemptOutcomes | None = None,
    ) -> None:
        self._put_mark(key, Mark(ending=ending), traits, outcomes)
        self._stamp(key.partition, ended=self._tables.clock.now())

    def _put_mark(
        self, key: EntryKey, mark: Mark, traits: Traits, outcomes: AttemptOutcomes | None
    ) -> None:
        self._tables.marks[key] = mark
        self._tables.traits.setdefault(key, traits)
        if outcomes is not None:
            self._tables.outcomes[key] = outcomes

    def _stamp(self, partition: Partition, **changes: Any) -> None:
        known = self._tables.stamp.get(partition, PartitionStamp())
        self._tables.stamp[partition] = replace(known, **changes)


def _is_withdrawn(mark: Mark) -> bool:
    return mark.ending is not None and mark.ending.kind is EndingKind.WITHDRAWN
