"""Entries, their endings and their replacement.

Rows are never updated: a change of a waiting mail replaces its entry by a new row under a new
`enqueue_id`, and puts an ending on the old one. A mail keeps its `mail_id` through all its entries.
The mark of an entry is one row with two independent parts: `delivered_at` (a plain write) and the
ending (the first one wins). Source: 002 (rewriting at the head); ADR 0003.

Place of an entry: the slice of time it was enqueued in, and a bucket of that slice.

Source: 000 Decision (sliceWindow, bucketCount)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

from postroad.domain.mail.mail import Envelope
from postroad.domain.mail.shapes import Shape
from postroad.domain.queues.documents import UNREADABLE
from postroad.domain.values.identifiers import EPOCH, moment_of


class Partition(NamedTuple):
    """One partition of the view: a bucket of a slice. `slice_start` is an aware UTC instant."""

    slice_start: datetime
    bucket_id: int


class EntryKey(NamedTuple):
    """The place of one entry in the view; unique, and enough to find its row and its mark."""

    slice_start: datetime
    bucket_id: int
    enqueue_id: UUID

    @property
    def partition(self) -> Partition:
        return Partition(self.slice_start, self.bucket_id)


def slice_of(moment: datetime, window: timedelta) -> datetime:
    """Return the start of the slice that holds `moment`.

    >>> from datetime import UTC
    >>> slice_of(datetime(2026, 1, 1, 10, 59, tzinfo=UTC), timedelta(hours=1)).isoformat()
    '2026-01-01T10:00:00+00:00'
    """
    return EPOCH + (moment - EPOCH) // window * window


def slices_between(first: datetime, last: datetime, window: timedelta) -> Iterator[datetime]:
    """Yield the starts of the slices from the one that holds `first` to that of `last`."""
    start = slice_of(first, window)
    while start <= last:
        yield start
        start += window


def bucket_of(enqueue_id: UUID, bucket_count: int) -> int:
    """Return the bucket of an id: the same in every process and version, evenly spread. The low 62
    bits of an id are random, so their remainder is the hash. (A hash of the mail's name would
    gather all mails of one name in one partition.)"""
    return (enqueue_id.int & ((1 << 62) - 1)) % bucket_count


def place(enqueue_id: UUID, window: timedelta, bucket_count: int) -> EntryKey:
    """Return where the entry of this id lies under a configuration."""
    slice_start = slice_of(moment_of(enqueue_id), window)
    return EntryKey(slice_start, bucket_of(enqueue_id, bucket_count), enqueue_id)


LONG_CHAIN = 8
"""Number of entries that administration replaced an entry names, before it is checked which of them
a consumer can still have in flight."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of the view: a mail's entry in the queue.

    `envelope.recipients` are those left. `due_at` is None when the mail was due at once. `attempt`
    counts the attempts already made. `blob_key` names the one object that all entries of a mail
    share.

    `previous`, oldest first: the entries that administration replaced on the way to this one since
    an item last ended, and successors that were given up for this one. A consumer may still have
    each in flight, so their claims are taken before this entry is attempted (invariant 10). Of more
    than `LONG_CHAIN`, those that no consumer can have in flight are left out (ADR 0018)."""

    key: EntryKey
    mail_id: UUID
    envelope: Envelope
    blob_key: str
    size_bytes: int
    accepted_at: datetime
    enqueued_at: datetime
    due_at: datetime | None = None
    held: bool = False
    attempt: int = 0
    last_error: str | None = None
    previous: tuple[EntryKey, ...] = ()
    shape: Shape | None = None
    """Traits of the content; None where that cannot be read."""

    remaining: timedelta | None = field(default=None, compare=False)
    """Time that the view still keeps the row, as of its reading; None where that was not read."""

    @property
    def enqueue_id(self) -> UUID:
        return self.key.enqueue_id

    @property
    def traits(self) -> Traits:
        """Values that the mark of this entry repeats of its row."""
        return Traits(self.envelope.domains, self.due_at, self.held)

    def with_change(self, key: EntryKey, change: Change) -> Entry:
        """Return the entry that replaces this one: the same in every process, so that inserting it
        twice inserts it once."""
        return replace(
            self,
            key=key,
            remaining=None,
            enqueued_at=moment_of(key.enqueue_id),
            previous=change.previous,
            envelope=replace(self.envelope, recipients=change.remaining),
            due_at=change.due_at,
            held=change.held,
            attempt=change.attempt,
            last_error=change.last_error,
        )


@dataclass(frozen=True, slots=True)
class UndecodableRow:
    """A row that this release cannot decode: another release or an administrator wrote it. It is
    set aside (ADR 0017). `reason` names the error, and no value of the row; `mail_id` is None where
    it cannot be read."""

    key: EntryKey
    reason: str
    mail_id: UUID | None
    remaining: timedelta | None = field(compare=False)
    """As `Entry.remaining`."""

    @property
    def enqueue_id(self) -> UUID:
        return self.key.enqueue_id

    @property
    def envelope(self) -> Envelope:
        """Reference that stands for the mail's."""
        return UNREADABLE

    @property
    def accepted_at(self) -> datetime:
        """When the entry began: the mail may be older."""
        return moment_of(self.enqueue_id)

    @property
    def traits(self) -> Traits:
        return Traits(self.envelope.domains)


@dataclass(frozen=True, slots=True)
class Traits:
    """Values that a mark repeats of its row, so that live mails are counted by subtraction."""

    domains: tuple[str, ...]
    due_at: datetime | None = None
    held: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """Fields that a replacement changes; stored in the mark, so that any process can finish it."""

    remaining: tuple[str, ...]
    due_at: datetime | None
    held: bool
    attempt: int
    last_error: str | None
    previous: tuple[EntryKey, ...] = ()

    @classmethod
    def nothing(cls, entry: Entry) -> Change:
        """Return the change of a roll-forward: the same entry, under a newer id. Like every
        replacement by administration it names the entry it replaces."""
        return cls(
            entry.envelope.recipients,
            entry.due_at,
            entry.held,
            entry.attempt,
            entry.last_error,
            (*entry.previous, entry.key),
        )


class EndingKind(StrEnum):
    REPLACED = "replaced"
    REMOVED = "removed"
    REJECTED = "rejected"
    EXPIRED = "expired"
    WITHDRAWN = "withdrawn"
    UNKNOWN = "unknown"
    """Read, never written: an ending that this release cannot decode. The entry is over, and
    nothing else follows from it (ADR 0017)."""


@dataclass(frozen=True, slots=True)
class Ending:
    """The first-wins part of a mark. A replacement names its successor and its change."""

    kind: EndingKind
    at: datetime
    successor: EntryKey | None = None
    change: Change | None = None

    def __post_init__(self) -> None:
        is_replacement = self.kind is EndingKind.REPLACED
        if {is_replacement} != {self.successor is not None, self.change is not None}:
            raise ValueError("a replacement, and only a replacement, has a successor and a change")


@dataclass(frozen=True, slots=True)
class Mark:
    """Facts about the end of an entry. `published` only means something for a replacement."""

    delivered_at: datetime | None = None
    ending: Ending | None = None
    published: bool = False

    @property
    def is_final(self) -> bool:
        """True if the entry needs nothing more: its slice may be drained, its message just acked. A
        delivery does not finish a replacement, because the successor's mark must get the delivery
        first. Of an unknown ending, only the release that wrote it knows whether its slice may be
        drained."""
        if self.ending is not None and self.ending.kind is EndingKind.REPLACED:
            return self.published
        return self.ending is not None or self.delivered_at is not None

    @property
    def successor(self) -> EntryKey | None:
        return self.ending.successor if self.ending is not None else None

    def is_replaced_by(self, enqueue_id: UUID) -> bool:
        return self.successor is not None and self.successor.enqueue_id == enqueue_id

    @property
    def is_unknown(self) -> bool:
        """True if the ending is one that this release cannot decode."""
        return self.ending is not None and self.ending.kind is EndingKind.UNKNOWN

    @property
    def is_live(self) -> bool:
        """True if the mail waits under this entry, by this mark alone."""
        return self.delivered_at is None and not self.is_final

    @property
    def is_unfinished_replacement(self) -> bool:
        """True if a replacement stopped between its mark and the confirm of its successor."""
        return self.ending is not None and not self.is_final


@dataclass(frozen=True, slots=True)
class PurgeWatermark:
    """The watermark that a purge sets in a partition: every entry at or below `through` that had no
    mark at `at` was removed, however many there are."""

    through: UUID
    at: datetime

    def mark_of(self, enqueue_id: UUID) -> Mark | None:
        """Return the mark of an entry at or below the watermark without its own; None above it."""
        if enqueue_id > self.through:
            return None
        return Mark(ending=Ending(EndingKind.REMOVED, self.at))
