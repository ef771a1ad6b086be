"""The tables of one queue in memory, shared by all processes: the view with its marks, the shared
state, the suppression lists."""

from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID, uuid4

from postroad.adapters.memory.steps import ProcessSteps, step
from postroad.domain.delivery.attempts import AttemptOutcomes
from postroad.domain.delivery.suppressed import SuppressedAddress, SuppressedBy, strongest
from postroad.domain.queues.entries import (
    Ending,
    EndingKind,
    Entry,
    EntryKey,
    Mark,
    Partition,
    PurgeWatermark,
    Traits,
    UndecodableRow,
)
from postroad.domain.queues.lifetimes import DEAD_LETTER_MEMORY
from postroad.ports.clock import Clock
from postroad.ports.delivery import Topic
from postroad.ports.marks import Counts, PartitionVersion
from postroad.ports.view import FOREVER, ClosedSlice, DeadLetter, KeyedEntry, Limits, Record

Entries = dict[tuple[Topic, str], tuple[str, timedelta]]
"""By topic and name: the text, and when its lifetime is over by the server's clock."""


class MemorySharedState:
    """The shared state of one queue (see the port). `clock` is the server's."""

    def __init__(self, entries: Entries, clock: Clock, steps: ProcessSteps) -> None:
        self._entries, self._clock, self.steps = entries, clock, steps

    @step("view", "publish_entry")
    def publish(self, topic: Topic, name: str, text: str, lifetime: timedelta) -> None:
        self._entries[topic, name] = text, self._clock.elapsed() + lifetime

    async def take_down(self, topic: Topic, name: str) -> None:
        await self.steps("view", "take_down", lambda: self._entries.pop((topic, name), None))

    async def published(self, topic: Topic) -> Mapping[str, str]:
        return (await self.published_about((topic,)))[topic]

    @step("view", "published")
    def published_about(self, topics: Collection[Topic]) -> Mapping[Topic, Mapping[str, str]]:
        now = self._clock.elapsed()
        found = {topic: dict[str, str]() for topic in topics}
        for (topic, name), (text, until) in self._entries.items():
            if topic in found and until > now:
                found[topic][name] = text
        return found


Lists = dict[tuple[str, bytes, SuppressedBy], SuppressedAddress]
"""By tenant, token and what put the address there."""


class MemorySuppressionList:
    """The lists of one queue (see the port)."""

    def __init__(self, lists: Lists, steps: ProcessSteps) -> None:
        self._lists, self.steps = lists, steps

    @step("view", "suppress")
    def add(self, tenant: str, entries: Sequence[SuppressedAddress]) -> None:
        self._lists.update({(tenant, each.token, each.by): each for each in entries})

    @step("view", "unsuppress")
    def remove(self, tenant: str, tokens: Collection[bytes]) -> None:
        for token in tokens:
            for by in SuppressedBy:
                self._lists.pop((tenant, token, by), None)

    @step("view", "suppressed")
    def find(self, tenant: str, tokens: Collection[bytes]) -> Mapping[bytes, SuppressedAddress]:
        keys = ((tenant, token, by) for token in tokens for by in SuppressedBy)
        return strongest(self._lists[key] for key in keys if key in self._lists)

    async def entries(self, tenant: str, after: bytes = b"") -> AsyncIterator[SuppressedAddress]:
        def effect() -> list[SuppressedAddress]:
            return [
                each
                for (of, token, _), each in sorted(self._lists.items())
                if of == tenant and token > after
            ]

        for each in await self.steps("view", "suppressed_entries", effect):
            yield each


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
    version: dict[Partition, PartitionVersion] = field(default_factory=dict)
    claims: dict[UUID, tuple[UUID, timedelta]] = field(default_factory=dict)
    enqueue_keys: dict[bytes, tuple[KeyedEntry, timedelta]] = field(default_factory=dict)
    entries: Entries = field(default_factory=dict)
    suppressed: Lists = field(default_factory=dict)
    records: dict[UUID, dict[str, Record]] = field(default_factory=lambda: defaultdict(dict))
    limits: Limits = field(default_factory=lambda: Limits(None, None))
    incarnation: UUID = field(default_factory=uuid4)
    as_of: datetime | None = None
    slices: dict[datetime, ClosedSlice] = field(default_factory=dict)
    dead_letters: dict[UUID, DeadLetter] = field(default_factory=dict)
    gone: dict[UUID, datetime] = field(default_factory=dict)
    """Records of deleted dead letters, and when each expires."""

    writings: int = 0
    """Writes of dead letters so far."""

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

    def write_dead_letter(self, dead_letter: DeadLetter) -> None:
        self.writings += 1
        self.dead_letters[dead_letter.enqueue_id] = replace(dead_letter, written=self.writings)

    def delete_dead_letter(self, dead_letter: DeadLetter) -> None:
        if dead_letter.entry is not None:
            self.gone[dead_letter.enqueue_id] = self.clock.now() + DEAD_LETTER_MEMORY
        self.dead_letters.pop(dead_letter.enqueue_id, None)

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
        return {key.partition for key in (*self.marks, *self.traits)} | set(self.version)

    def erase_marks(self, partition: Partition) -> None:
        self.version.pop(partition, None)
        delete(self.marks, partition)
        delete(self.traits, partition)
        delete(self.outcomes, partition)

    def erase_dead_letters(self, page: Sequence[UUID]) -> int:
        """Delete dead letters, and the delivery records of their mails."""
        for enqueue_id in page:
            dead_letter = self.dead_letters.pop(enqueue_id)
            if dead_letter.entry is not None:
                self.records.pop(dead_letter.entry.mail_id, None)
        return len(page)

    def erase_rest(self) -> None:
        """Delete what is not in a slice and no dead letter."""
        self.slices.clear()
        self.entries.clear()
        self.suppressed.clear()
        self.limits, self.incarnation, self.as_of = Limits(None, None), uuid4(), None

    def is_gone(self, enqueue_id: UUID) -> bool:
        """Return whether a record of the dead letter's deletion exists."""
        return enqueue_id in self.gone and self.clock.now() < self.gone[enqueue_id]

    def mark(self, key: EntryKey) -> Mark | None:
        """Return an entry's own mark, or that of the watermark."""
        watermark = self.watermark(key.partition)
        by_watermark = watermark.mark_of(key.enqueue_id) if watermark is not None else None
        return self.marks.get(key, by_watermark)

    def watermark(self, partition: Partition) -> PurgeWatermark | None:
        """Return how far a partition was purged."""
        return self.version.get(partition, PartitionVersion()).watermark

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
    for key, _ in within(table, partition):
        del table[key]


PAGE = 3
"""Rows a page: small, so that every test pages."""


class MemoryMarks:
    """The half of `View` on marks, over `Tables`."""

    def __init__(self, tables: Tables, steps: ProcessSteps) -> None:
        self._tables = tables
        self.steps = steps

    async def _step(self, operation: str, effect: Callable[[], T]) -> T:
        return await self.steps("view", operation, effect)

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

    @step("view")
    def count_marks(self, partition: Partition, now: datetime, after: UUID | None = None) -> Counts:
        found = within(self._tables.traits, partition, after)
        counts = Counts.of((traits for _, traits in found), now)
        return replace(counts, attempted=len(within(self._tables.outcomes, partition, after)))

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

    async def version(self, partition: Partition) -> PartitionVersion:
        return await self._step(
            "version", lambda: self._tables.version.get(partition, PartitionVersion())
        )

    @step("view")
    def mark_delivered(
        self,
        key: EntryKey,
        at: datetime,
        traits: Traits,
        outcomes: AttemptOutcomes | None = None,
    ) -> None:
        mark = self._tables.marks.get(key, Mark())
        self._put_mark(key, replace(mark, delivered_at=at), traits, outcomes)
        self._change(key.partition, delivered=self._tables.clock.now())

    @step("view")
    def end(
        self,
        key: EntryKey,
        ending: Ending,
        traits: Traits,
        outcomes: AttemptOutcomes | None = None,
    ) -> Mark | None:
        standing = self._tables.mark(key)
        if standing is None:
            self._end(key, ending, traits, outcomes)
        return standing

    @step("view", "end")
    def end_together(self, ended: Sequence[tuple[EntryKey, Ending, Traits]]) -> bool:
        if any(self._tables.mark(key) is not None for key, _, _ in ended):
            return False
        for each in ended:
            self._end(*each)
        return True

    @step("view")
    def set_watermark(
        self, partition: Partition, watermark: PurgeWatermark
    ) -> PurgeWatermark | None:
        before = self._tables.watermark(partition)
        if before is None or before.through < watermark.through:
            self._change(partition, watermark=watermark)
        return before

    async def mark_blobs_deleted(self, partition: Partition, through: UUID) -> None:
        await self._step(
            "mark_blobs_deleted", lambda: self._change(partition, blobs_deleted_through=through)
        )

    @step("view")
    def mark_published(self, key: EntryKey, successor: UUID) -> bool:
        mark = self._tables.marks.get(key)
        if mark is None or not mark.is_replaced_by(successor):
            return False
        self._tables.marks[key] = replace(mark, published=True)
        return True

    @step("view")
    def change_successor(
        self, key: EntryKey, old: UUID, new: EntryKey, previous: tuple[EntryKey, ...]
    ) -> bool:
        mark = self._tables.marks.get(key)
        ending = mark.ending if mark is not None else None
        if mark is None or ending is None or mark.published or not mark.is_replaced_by(old):
            return False
        assert ending.change is not None
        change = replace(ending.change, previous=previous)
        ending = replace(ending, successor=new, change=change)
        self._tables.marks[key] = replace(mark, ending=ending)
        return True

    @step("view")
    def delete_marks(self, partition: Partition) -> None:
        delete(self._tables.marks, partition)
        delete(self._tables.traits, partition)
        delete(self._tables.outcomes, partition)
        self._tables.version.pop(partition, None)

    def _end(
        self,
        key: EntryKey,
        ending: Ending,
        traits: Traits,
        outcomes: AttemptOutcomes | None = None,
    ) -> None:
        self._put_mark(key, Mark(ending=ending), traits, outcomes)
        self._change(key.partition, ended=self._tables.clock.now())

    def _put_mark(
        self, key: EntryKey, mark: Mark, traits: Traits, outcomes: AttemptOutcomes | None
    ) -> None:
        self._tables.marks[key] = mark
        self._tables.traits.setdefault(key, traits)
        if outcomes is not None:
            self._tables.outcomes[key] = outcomes

    def _change(self, partition: Partition, **changes: Any) -> None:
        known = self._tables.version.get(partition, PartitionVersion())
        self._tables.version[partition] = replace(known, **changes)


def _is_withdrawn(mark: Mark) -> bool:
    return mark.ending is not None and mark.ending.kind is EndingKind.WITHDRAWN
