"""Marks: the half of `View` that records how entries ended, and which ending was first.

What `ports.view` documents for all its methods holds here too."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol
from uuid import UUID

from postroad.domain.delivery.attempts import AttemptOutcomes
from postroad.domain.queues.entries import Ending, EntryKey, Mark, Partition, PurgeWatermark, Traits


@dataclass(frozen=True, slots=True)
class Counts:
    """Rows or marks of one partition: all; those with a `due_at` after the moment asked about and
    not held; those held; of marks, those that an attempt left its outcomes in."""

    total: int
    delayed: int
    held: int
    attempted: int = 0

    @classmethod
    def of(cls, traits: Iterable[Traits], now: datetime | None) -> Counts:
        total = delayed = held = 0
        for each in traits:
            total += 1
            held += each.held
            if now is not None and not each.held and each.due_at is not None:
                delayed += each.due_at > now
        return cls(total, delayed, held)


@dataclass(frozen=True, slots=True)
class PartitionVersion:
    """Version that shows, without reading them, whether a partition got marks: the watermark of the
    last purge, up to where its blobs are deleted, and when a delivery and another ending were last
    written, by the view's clock. Between two readings with equal versions no mark was written, if
    the version was `settled` at the first one and no writer's clock was further off than clocks may
    be."""

    watermark: PurgeWatermark | None = None
    blobs_deleted_through: UUID | None = None
    delivered: datetime | None = None
    ended: datetime | None = None

    @property
    def purged(self) -> UUID | None:
        """Up to which id all entries are over; None: none is by a purge."""
        return None if self.watermark is None else self.watermark.through

    @property
    def are_blobs_deleted(self) -> bool:
        """Return whether the bytes of all entries at or below the watermark are deleted."""
        return self.watermark is None or (
            self.blobs_deleted_through is not None
            and self.blobs_deleted_through >= self.watermark.through
        )

    def settled(self, before: datetime) -> bool:
        """Return whether all marks were written before a moment."""
        return all(at is None or at < before for at in (self.delivered, self.ended))


class Marks(Protocol):
    async def mark(self, key: EntryKey) -> Mark | None:
        """Return the mark of an entry, its own or else that of a purge watermark, or None. An
        ending that cannot be decoded is of the kind `UNKNOWN`. Linearizable with `end` on the same
        key only for what `end` itself returned; otherwise a quorum read."""

    def marks(
        self, partition: Partition, after: UUID | None = None
    ) -> AsyncIterator[tuple[UUID, Mark]]:
        """Yield a partition's own marks, none of a watermark, by their ids, page by page."""

    def marked(self, partition: Partition, through: UUID) -> AsyncIterator[tuple[UUID, bool]]:
        """Yield the ids up to `through` that have a mark of their own, in order, page by page, and
        whether it is of a replacement under way."""

    async def count_marks(
        self, partition: Partition, now: datetime, after: UUID | None = None
    ) -> Counts:
        """Count the marks by the traits of their rows, on the server."""

    def withdrawn_without_rows(
        self, partition: Partition, after: UUID | None = None
    ) -> AsyncIterator[Traits]:
        """Yield what the marks of withdrawn entries repeat of rows that are not there, page by
        page: such a mark is written before its row, and `count_marks` counts it all the same."""

    def unfinished(
        self, partition: Partition, after: UUID | None = None
    ) -> AsyncIterator[tuple[Mark, Traits]]:
        """Yield the marks of replacements under way, with their rows' traits, page by page."""

    async def version(self, partition: Partition) -> PartitionVersion:
        """Return the partition's version: one small read."""

    async def mark_delivered(
        self,
        key: EntryKey,
        at: datetime,
        traits: Traits,
        outcomes: AttemptOutcomes | None = None,
    ) -> None:
        """Write `delivered_at`: plain, cheap, durable, idempotent; never refused. `outcomes` are
        kept in the same mark, in the same request; None leaves those that are there."""

    async def end(
        self,
        key: EntryKey,
        ending: Ending,
        traits: Traits,
        outcomes: AttemptOutcomes | None = None,
    ) -> Mark | None:
        """Write an ending if the entry has no mark at all, with the outcomes of the attempt that it
        ends. Durable. Outcomes make no ending another one; those of an ending that is not written
        are not kept. Returns None when it was written, else the mark that was there first (nothing
        changed). A caller unsure after ViewUnavailable calls again, which settles the outcome: an
        equal ending that is there is its own."""

    async def end_together(self, ended: Sequence[tuple[EntryKey, Ending, Traits]]) -> bool:
        """Write the endings of different entries of one partition if none of them has a mark: all
        of them or, returning False, none. Durable. Unsure after ViewUnavailable, as `end`."""

    async def set_watermark(
        self, partition: Partition, watermark: PurgeWatermark
    ) -> PurgeWatermark | None:
        """Remove every entry up to `watermark.through` that has no mark, all at once, as if `end`
        had been called for each. No row may be inserted there later but those that replacements
        repeat. Durable, idempotent; a watermark that is not further on than the present one changes
        nothing. Returns the watermark that was there before."""

    async def mark_blobs_deleted(self, partition: Partition, through: UUID) -> None:
        """Record that the bytes of all entries that the watermark ended, up to an id, are deleted.
        Idempotent."""

    async def mark_published(self, key: EntryKey, successor: UUID) -> bool:
        """Record that the successor's message is confirmed, if the mark still names this successor.
        Idempotent. Returns whether it does."""

    async def change_successor(
        self, key: EntryKey, old: UUID, new: EntryKey, previous: tuple[EntryKey, ...]
    ) -> bool:
        """Give an unfinished replacement another successor, and its change other predecessors, if
        it still names `old` and is not published. Returns whether it did."""
