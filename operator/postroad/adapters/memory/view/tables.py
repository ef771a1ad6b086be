"""The tables of one queue's view in memory, shared by all processes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TypeVar
from uuid import UUID, uuid4

from postroad.adapters.memory.board import Notes
from postroad.adapters.memory.suppression_list import Lists
from postroad.domain.delivery.attempts import AttemptOutcomes
from postroad.domain.queues.entries import Entry, Mark, PurgeWatermark, Traits, UndecodableRow
from postroad.domain.queues.lifetimes import DEAD_LETTER_MEMORY
from postroad.domain.queues.slices import EntryKey, Partition
from postroad.ports.clock import Clock
from postroad.ports.enqueue_keys import KeyedEntry
from postroad.ports.marks import PartitionStamp
from postroad.ports.view import FOREVER, ClosedSlice, DeadLetter, Limits, Record

T = TypeVar("T")

LAST = UUID(int=2**128 - 1)


@dataclass(slots=True)
class Tables:
    """`clock` is the server's, for expiry; `hosts` are the clocks that its hosts show."""

    clock: Clock
    hosts: Mapping[str, Clock]
    rows: dict[EntryKey, Entry] = field(default_factory=dict)
    marks: dict[EntryKey, Mark] = field(default_factory=dict)
    traits: dict[EntryKey, Traits] = field(default_factory=dict)
    outcomes: dict[EntryKey, AttemptOutcomes] = field(default_factory=dict)
    stamp: dict[Partition, PartitionStamp] = field(default_factory=dict)
    claims: dict[UUID, tuple[UUID, timedelta]] = field(default_factory=dict)
    enqueue_keys: dict[bytes, tuple[KeyedEntry, timedelta]] = field(default_factory=dict)
    notes: Notes = field(default_factory=dict)
    suppressed: Lists = field(default_factory=dict)
    records: dict[UUID, dict[str, Record]] = field(default_factory=lambda: defaultdict(dict))
    limits: Limits = field(default_factory=lambda: Limits(None, None))
    incarnation: UUID = field(default_factory=uuid4)
    as_of: datetime | None = None
    slices: dict[datetime, ClosedSlice] = field(default_factory=dict)
    letters: dict[UUID, DeadLetter] = field(default_factory=dict)
    gone: dict[UUID, datetime] = field(default_factory=dict)
    """Notes of deleted letters, and when each expires."""

    writings: int = 0
    """Writes of letters so far."""

    row_lifetime: timedelta = timedelta(days=14)
    """Of rows that are inserted from now on."""

    expire_at: dict[EntryKey, datetime] = field(default_factory=dict)
    written: dict[EntryKey, datetime] = field(default_factory=dict)
    undecodable: set[EntryKey] = field(default_factory=set)
    """Rows whose cells this release does not decode; counts and blob keys are read."""

    def insert(self, entry: Entry) -> None:
        """Insert a row that lives for `row_lifetime`."""
        self.rows[entry.key] = entry
        self.written[entry.key] = self.clock.now()
        self._age(entry.key)

    def _age(self, key: EntryKey) -> None:
        if self.row_lifetime == FOREVER:
            self.expire_at.pop(key, None)
        else:
            self.expire_at[key] = self.clock.now() + self.row_lifetime

    def unexpired(self) -> dict[EntryKey, Entry]:
        """Remove expired rows; return the others."""
        now = self.clock.now()
        for key in [key for key, at in self.expire_at.items() if at <= now]:
            del self.expire_at[key]
            self.rows.pop(key, None)
        return self.rows

    def read(self, key: EntryKey) -> Entry | UndecodableRow | None:
        """Return a row as a reader finds it."""
        entry = self.unexpired().get(key)
        return None if entry is None else self.decoded(entry)

    def decoded(self, entry: Entry) -> Entry | UndecodableRow:
        """Return a row with its remaining lifetime, as far as it can be decoded."""
        expires = self.expire_at.get(entry.key)
        remaining = None if expires is None else expires - self.clock.now()
        if entry.key in self.undecodable:
            return UndecodableRow(entry.key, "InvalidMail", entry.mail_id, remaining)
        return replace(entry, remaining=remaining)

    def write_letter(self, letter: DeadLetter) -> None:
        """Write a dead letter."""
        self.writings += 1
        self.letters[letter.enqueue_id] = replace(letter, written=self.writings)

    def delete_letter(self, letter: DeadLetter) -> None:
        """Delete a dead letter."""
        if letter.entry is not None:
            self.gone[letter.enqueue_id] = self.clock.now() + DEAD_LETTER_MEMORY
        self.letters.pop(letter.enqueue_id, None)

    def erase_rows(self, page: Sequence[tuple[EntryKey, Entry]]) -> int:
        """Delete rows, and the delivery records of their mails."""
        for key, entry in page:
            self.records.pop(entry.mail_id, None)
            del self.rows[key]
            self.expire_at.pop(key, None)
            self.written.pop(key, None)
            self.undecodable.discard(key)
        return len(page)

    def marked(self) -> set[Partition]:
        """Return the partitions that have marks, or a watermark."""
        return {key.partition for key in (*self.marks, *self.traits)} | set(self.stamp)

    def erase_marks(self, partition: Partition) -> None:
        """Delete all marks of a partition."""
        self.stamp.pop(partition, None)
        delete(self.marks, partition)
        delete(self.traits, partition)
        delete(self.outcomes, partition)

    def erase_letters(self, page: Sequence[UUID]) -> int:
        """Delete letters, and the delivery records of their mails."""
        for enqueue_id in page:
            letter = self.letters.pop(enqueue_id)
            if letter.entry is not None:
                self.records.pop(letter.entry.mail_id, None)
        return len(page)

    def erase_rest(self) -> None:
        """Delete what is not in a slice and no letter."""
        self.slices.clear()
        self.notes.clear()
        self.suppressed.clear()
        self.limits, self.incarnation, self.as_of = Limits(None, None), uuid4(), None

    def is_gone(self, enqueue_id: UUID) -> bool:
        """Return whether a note of the letter's deletion exists."""
        return enqueue_id in self.gone and self.clock.now() < self.gone[enqueue_id]

    def mark(self, key: EntryKey) -> Mark | None:
        """Return an entry's own mark, or that of the watermark."""
        watermark = self.watermark(key.partition)
        by_watermark = watermark.mark_of(key.enqueue_id) if watermark is not None else None
        return self.marks.get(key, by_watermark)

    def watermark(self, partition: Partition) -> PurgeWatermark | None:
        """Return how far a partition was purged."""
        return self.stamp.get(partition, PartitionStamp()).watermark

    def live(self) -> list[Entry]:
        """Return the waiting entries in order, for tests to compare with."""
        return [
            entry
            for key, entry in sorted(self.unexpired().items())
            if (self.mark(key) or Mark()).is_live
        ]


def within(
    table: Mapping[EntryKey, T],
    partition: Partition,
    after: UUID | None = None,
    through: UUID | None = None,
) -> list[tuple[EntryKey, T]]:
    """Return what a table has in a partition, in order."""
    first = -1 if after is None else after.int
    last = LAST.int if through is None else through.int
    start, bucket = partition
    found = [
        (key, value)
        for key, value in table.items()
        if key[1] == bucket and key[0] == start and first < key[2].int <= last
    ]
    if len(found) > 1:
        found.sort(key=lambda each: each[0].enqueue_id.int)
    return found


def delete(table: dict[EntryKey, T], partition: Partition) -> None:
    """Empty a partition of a table."""
    for key, _ in within(table, partition):
        del table[key]
