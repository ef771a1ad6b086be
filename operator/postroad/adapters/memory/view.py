"""A view in memory: Cassandra's guarantees over dicts."""

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from uuid import UUID

from postroad.adapters.memory import tables
from postroad.adapters.memory.broker import ClaimedObject
from postroad.adapters.memory.steps import ProcessSteps, step
from postroad.domain.queues.entries import Entry, EntryKey, Partition, UndecodableRow
from postroad.domain.queues.ownership import Identity
from postroad.domain.queues.references import KEY_LIFETIME
from postroad.domain.values.instants import HostTime, Readings
from postroad.ports.marks import Counts
from postroad.ports.view import (
    NOT_READ,
    ClosedSlice,
    DeadLetter,
    KeyedEntry,
    Limits,
    Record,
    SchemaChanges,
    TableOptions,
)


class MemoryView(tables.MemoryMarks):
    """`View` of one process over `Tables`."""

    # Rows

    async def insert(self, entry: Entry) -> None:
        await self._step("insert", lambda: self._tables.insert(entry))

    async def row(self, key: EntryKey) -> Entry | UndecodableRow | None:
        return await self._step("row", lambda: self._tables.read(key))

    async def rows(
        self, partition: Partition, after: UUID | None = None
    ) -> AsyncIterator[Entry | UndecodableRow]:
        while page := await self._page("rows", self._tables.unexpired, partition, after):
            for key, entry in page:
                yield self._tables.decoded(entry)
                after = key.enqueue_id

    async def renew_row(self, key: EntryKey) -> None:
        """Renew a row in two steps, because a client of Cassandra reads the row and writes it."""
        row = await self._step("read_row", lambda: self._tables.unexpired().get(key))
        if row is not None:
            await self._step("renew_row", lambda: self._tables.insert(row))

    @step("view")
    def count_rows(
        self, partition: Partition, now: datetime | None, after: UUID | None = None
    ) -> Counts:
        found = tables.within(self._tables.unexpired(), partition, after)
        return Counts.of((entry.traits for _, entry in found), now)

    @step("view")
    def occupied(self, starts: Sequence[datetime], buckets: int) -> Collection[Partition]:
        asked = set(starts)
        return {
            key.partition
            for key in self._tables.unexpired()
            if key.slice_start in asked and key.bucket_id < buckets
        }

    async def blob_keys(
        self, partition: Partition, through: UUID
    ) -> AsyncIterator[tuple[UUID, str | None]]:
        after: UUID | None = None
        rows = self._tables.unexpired
        while page := await self._page("blob_keys", rows, partition, after, through):
            for key, entry in page:
                yield key.enqueue_id, entry.blob_key
                after = key.enqueue_id

    # Claims and delivery records

    @step("view")
    def claim(self, enqueue_id: UUID, owner: UUID, lifetime: timedelta) -> bool:
        now = self._tables.clock.elapsed()
        holder, until = self._tables.claims.get(enqueue_id, (owner, now))
        if holder != owner and until > now:
            return False
        self._tables.claims[enqueue_id] = (owner, now + lifetime)
        return True

    @step("view")
    def release_claim(self, enqueue_id: UUID, owner: UUID) -> None:
        if self._tables.claims.get(enqueue_id, (None, None))[0] == owner:
            del self._tables.claims[enqueue_id]

    @step("view")
    def record(self, mail_id: UUID, records: tuple[Record, ...]) -> None:
        self._tables.records[mail_id].update({each.recipient: each for each in records})

    async def records(self, mail_id: UUID) -> Mapping[str, Record]:
        return await self._step("records", lambda: dict(self._tables.records.get(mail_id, {})))

    # Enqueue keys

    @step("view")
    def take_key(self, token: bytes, keyed: KeyedEntry) -> KeyedEntry:
        standing = self._standing(token)
        return self._write_key(token, keyed) if standing is None else standing

    @step("view")
    def change_key(self, token: bytes, before: KeyedEntry, after: KeyedEntry) -> bool:
        standing = self._standing(token)
        if standing is None or _identity_of(standing) != _identity_of(before):
            return False
        self._write_key(token, after)
        return True

    def _standing(self, token: bytes) -> KeyedEntry | None:
        found, until = self._tables.enqueue_keys.get(token, (None, timedelta(0)))
        return found if until > self._tables.clock.elapsed() else None

    def _write_key(self, token: bytes, keyed: KeyedEntry) -> KeyedEntry:
        until = self._tables.clock.elapsed() + KEY_LIFETIME
        self._tables.enqueue_keys[token] = keyed, until
        return keyed

    @property
    def shared_state(self) -> tables.MemorySharedState:
        return tables.MemorySharedState(self._tables.entries, self._tables.clock, self.steps)

    @property
    def suppression_list(self) -> tables.MemorySuppressionList:
        return tables.MemorySuppressionList(self._tables.suppressed, self.steps)

    # Limits and slices

    async def limits(self) -> Limits:
        return await self._step("limits", lambda: self._tables.limits)

    @step("view")
    def advance(
        self,
        *,
        browse_start: datetime | None = None,
        content_start: datetime | None = None,
        archived_through: datetime | None = None,
    ) -> None:
        now = self._tables.limits
        self._tables.limits = Limits(
            _later(now.browse_start, browse_start),
            _later(now.content_start, content_start),
            _later(now.archived_through, archived_through),
        )

    @step("view")
    def identity(self) -> Identity:
        exists = self._tables.limits != Limits(None, None)
        incarnations = {self._tables.incarnation} if exists else set[UUID]()
        return Identity(incarnations, self._tables.as_of)

    @step("view")
    def raise_as_of(self, incarnation: UUID, as_of: datetime) -> None:
        if incarnation == self._tables.incarnation:
            self._tables.as_of = _later(self._tables.as_of, as_of)

    async def close_slice(self, closed: ClosedSlice) -> ClosedSlice:
        return await self._step(
            "close_slice", lambda: self._tables.slices.setdefault(closed.slice_start, closed)
        )

    @step("view")
    def mark_drained(self, slice_start: datetime) -> None:
        if slice_start in self._tables.slices:
            closed = self._tables.slices[slice_start]
            self._tables.slices[slice_start] = replace(closed, drained=True)

    async def closed_slices(self, first: datetime) -> AsyncIterator[ClosedSlice]:
        found = await self._step(
            "closed_slices",
            lambda: [each for at, each in sorted(self._tables.slices.items()) if at >= first],
        )
        for each in found:
            yield each

    async def forget_slice(self, slice_start: datetime) -> None:
        await self._step("forget_slice", lambda: self._tables.slices.pop(slice_start, None))

    @step("view")
    def delete_rows(self, partition: Partition, written_before: datetime) -> None:
        for key, _ in tables.within(self._tables.rows, partition):
            if self._tables.written.get(key, written_before) <= written_before:
                del self._tables.rows[key]

    # Dead letters

    async def write_dead_letter(self, dead_letter: DeadLetter) -> None:
        await self._step("write_dead_letter", lambda: self._tables.write_dead_letter(dead_letter))

    @step("view")
    def rewrite_dead_letter(self, dead_letter: DeadLetter) -> None:
        found = self._tables.dead_letters.get(dead_letter.enqueue_id)
        if dead_letter.written is None:
            raise ValueError(NOT_READ)
        if found is not None and found.written == dead_letter.written:
            self._tables.write_dead_letter(dead_letter)

    @step("view", "read_dead_letter")
    def dead_letter(self, month: str, enqueue_id: UUID) -> DeadLetter | None:
        dead_letter = self._tables.dead_letters.get(enqueue_id)
        if dead_letter is None or dead_letter.month != month or self._tables.is_gone(enqueue_id):
            return None
        return dead_letter

    async def dead_letters(self) -> AsyncIterator[DeadLetter]:
        last = ("", UUID(int=0))
        while True:
            page = await self._step("dead_letters", partial(self._dead_letters_after, last))
            for dead_letter in page:
                yield dead_letter
                last = dead_letter.month, dead_letter.enqueue_id
            if len(page) < tables.PAGE:
                return

    def _dead_letters_after(self, last: tuple[str, UUID]) -> list[DeadLetter]:
        """Return the next page as it is now: a listing meets what came since it began."""
        found = {(each.month, each.enqueue_id): each for each in self._tables.dead_letters.values()}
        return [found[each] for each in sorted(found) if each > last][: tables.PAGE]

    async def count_dead_letters(self) -> int:
        return await self._step("count_dead_letters", lambda: len(self._tables.dead_letters))

    async def delete_dead_letter(self, dead_letter: DeadLetter) -> None:
        await self._step("delete_dead_letter", lambda: self._tables.delete_dead_letter(dead_letter))

    # The whole

    @step("view")
    def server_times(self) -> Readings:
        hosts = self._tables.hosts
        times = tuple(HostTime(name, clock.now()) for name, clock in hosts.items())
        return Readings(times, len(hosts))

    async def hosts(self) -> int:
        return await self._step("hosts", lambda: len(self._tables.hosts))

    async def erase_slices(self, starts: Sequence[datetime], buckets: int) -> AsyncIterator[int]:
        partitions = [Partition(start, bucket) for start in starts for bucket in range(buckets)]
        for each in partitions:
            while page := tables.within(self._tables.rows, each)[: tables.PAGE]:
                yield await self._step("erase_rows", partial(self._tables.erase_rows, page))
        for each in self._tables.marked().intersection(partitions):
            await self._step("erase_marks", partial(self._tables.erase_marks, each))
            yield 0

    async def erase_dead_letters(self) -> AsyncIterator[int]:
        while page := sorted(self._tables.dead_letters)[: tables.PAGE]:
            yield await self._step(
                "erase_dead_letters", partial(self._tables.erase_dead_letters, page)
            )
        await self._step("erase_notes", self._tables.gone.clear)

    async def erase(self) -> None:
        await self._step("erase", self._tables.erase_rest)


class Schema:
    """The tables' options, and the tables that are missing: at first all."""

    def __init__(self) -> None:
        self.options: TableOptions | None = None
        self.claimed = ClaimedObject()
        self.missing = {"deleted_mails", "deliveries", "enqueued_mails", "limits"}

    def create(self, options: TableOptions) -> SchemaChanges:
        created, self.missing = tuple(sorted(self.missing)), set()
        differs = self.options not in (None, options)
        self.options = options
        return SchemaChanges(created, ("enqueued_mails",) if differs else ())


class MemoryViewStore:
    """`ViewStore` over the tables of a world."""

    def __init__(
        self, view: Callable[[str], MemoryView], steps: ProcessSteps, schema: Schema
    ) -> None:
        self._view = view
        self.steps = steps
        self._schema = schema

    def view(self, queue: str) -> MemoryView:
        return self._view(queue)

    async def create(self, options: TableOptions) -> SchemaChanges:
        return await self.steps("view", "create", lambda: self._schema.create(options))

    async def row_lifetime(self) -> timedelta | None:
        options = self._schema.options
        return options.row_lifetime if options else timedelta(days=14)

    async def check(self) -> str:
        return await self.steps("view", "check", lambda: "memory")

    async def close(self) -> None:
        """Nothing to release."""


def _identity_of(keyed: KeyedEntry) -> tuple[UUID, bool]:
    return keyed.key.enqueue_id, keyed.is_accepted


def _later(present: datetime | None, wanted: datetime | None) -> datetime | None:
    known = [each for each in (present, wanted) if each is not None]
    return max(known, default=None)
