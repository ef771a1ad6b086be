"""A view in memory: what Cassandra promises, in dicts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TypeVar
from uuid import UUID

from postroad.adapters.memory.gate import Gate
from postroad.domain.slices import Partition, TurnKey
from postroad.domain.turns import Ending, Mark, Traits, Turn
from postroad.ports.clock import Clock
from postroad.ports.view import (
    ClosedSlice,
    Counts,
    DeadLetter,
    Limits,
    Record,
    TableOptions,
)

T = TypeVar("T")
PAGE = 3
"""Rows a page: small, so that every test pages."""


@dataclass(slots=True)
class Tables:
    """What one queue has in the keyspace, shared by all processes. `clock` is the server's."""

    clock: Clock
    rows: dict[TurnKey, Turn] = field(default_factory=dict)
    marks: dict[TurnKey, Mark] = field(default_factory=dict)
    traits: dict[TurnKey, Traits] = field(default_factory=dict)
    claims: dict[UUID, tuple[UUID, timedelta]] = field(default_factory=dict)
    records: dict[UUID, dict[str, Record]] = field(default_factory=lambda: defaultdict(dict))
    limits: Limits = field(default_factory=lambda: Limits(None, None))
    slices: dict[datetime, ClosedSlice] = field(default_factory=dict)
    letters: dict[UUID, DeadLetter] = field(default_factory=dict)
    row_lifetime: timedelta = timedelta(days=14)
    """Of rows that are inserted from now on."""

    expire_at: dict[TurnKey, datetime] = field(default_factory=dict)

    def insert(self, turn: Turn) -> None:
        """Insert a row that lives for `row_lifetime`."""
        self.rows[turn.key] = turn
        self.expire_at[turn.key] = self.clock.now() + self.row_lifetime

    def unexpired(self) -> dict[TurnKey, Turn]:
        """Return the rows, those that are too old removed."""
        now = self.clock.now()
        for key in [key for key, at in self.expire_at.items() if at <= now]:
            del self.expire_at[key]
            self.rows.pop(key, None)
        return self.rows

    def live(self) -> list[Turn]:
        """Return the turns that wait, in order: what a test compares with."""
        return [
            turn
            for key, turn in sorted(self.unexpired().items())
            if self.marks.get(key, Mark()).is_live
        ]


class MemoryView:
    """`View` over `Tables`, as one process sees it."""

    def __init__(self, tables: Tables, gate: Gate) -> None:
        self._tables = tables
        self._gate = gate

    async def _step(self, operation: str, effect: Callable[[], T]) -> T:
        return await self._gate("view", operation, effect)

    # Rows

    async def insert(self, turn: Turn) -> None:
        await self._step("insert", lambda: self._tables.insert(turn))

    async def row(self, key: TurnKey) -> Turn | None:
        return await self._step("row", lambda: self._tables.unexpired().get(key))

    async def rows(self, partition: Partition, after: UUID | None = None) -> AsyncIterator[Turn]:
        while page := await self._page("rows", self._tables.unexpired, partition, after):
            for key, turn in page:
                expires = self._tables.expire_at.get(key)
                now = self._tables.clock.now()
                yield replace(turn, remaining=None if expires is None else expires - now)
                after = key.enqueue_id

    async def count_rows(self, partition: Partition, now: datetime) -> Counts:
        return await self._step(
            "count_rows",
            lambda: _count(
                (turn.traits for _, turn in _within(self._tables.unexpired(), partition)), now
            ),
        )

    async def _page(
        self,
        name: str,
        table: Callable[[], Mapping[TurnKey, T]],
        partition: Partition,
        after: UUID | None,
    ) -> list[tuple[TurnKey, T]]:
        def effect() -> list[tuple[TurnKey, T]]:
            found = _within(table(), partition)
            return [each for each in found if after is None or each[0].enqueue_id > after][:PAGE]

        return await self._step(name, effect)

    # Marks

    async def mark(self, key: TurnKey) -> Mark | None:
        return await self._step("mark", lambda: self._tables.marks.get(key))

    async def marks(
        self, partition: Partition, after: UUID | None = None
    ) -> AsyncIterator[tuple[UUID, Mark]]:
        while page := await self._page("marks", lambda: self._tables.marks, partition, after):
            for key, mark in page:
                yield key.enqueue_id, mark
                after = key.enqueue_id

    async def count_marks(self, partition: Partition, now: datetime | None) -> Counts:
        return await self._step(
            "count_marks",
            lambda: _count((each for _, each in _within(self._tables.traits, partition)), now),
        )

    async def mark_delivered(self, key: TurnKey, at: datetime, traits: Traits) -> None:
        def effect() -> None:
            mark = self._tables.marks.get(key, Mark())
            self._put_mark(key, replace(mark, delivered_at=at), traits)

        await self._step("mark_delivered", effect)

    async def end(self, key: TurnKey, ending: Ending, traits: Traits) -> Mark | None:
        def effect() -> Mark | None:
            standing = self._tables.marks.get(key)
            if standing is None:
                self._put_mark(key, Mark(ending=ending), traits)
            return standing

        return await self._step("end", effect)

    async def end_together(self, ended: Sequence[tuple[TurnKey, Ending, Traits]]) -> bool:
        def effect() -> bool:
            if any(key in self._tables.marks for key, _, _ in ended):
                return False
            for key, ending, traits in ended:
                self._put_mark(key, Mark(ending=ending), traits)
            return True

        return await self._step("end", effect)

    async def mark_published(self, key: TurnKey, successor: UUID) -> bool:
        def effect() -> bool:
            mark = self._tables.marks.get(key)
            if mark is None or _successor(mark) != successor:
                return False
            self._tables.marks[key] = replace(mark, published=True)
            return True

        return await self._step("mark_published", effect)

    async def change_successor(self, key: TurnKey, old: UUID, new: TurnKey) -> bool:
        def effect() -> bool:
            mark = self._tables.marks.get(key)
            if mark is None or mark.ending is None or mark.published or _successor(mark) != old:
                return False
            self._tables.marks[key] = replace(mark, ending=replace(mark.ending, successor=new))
            return True

        return await self._step("change_successor", effect)

    def _put_mark(self, key: TurnKey, mark: Mark, traits: Traits) -> None:
        self._tables.marks[key] = mark
        self._tables.traits.setdefault(key, traits)

    # Claims and delivery records

    async def claim(self, enqueue_id: UUID, owner: UUID, lifetime: timedelta) -> bool:
        def effect() -> bool:
            now = self._tables.clock.elapsed()
            holder, until = self._tables.claims.get(enqueue_id, (owner, now))
            if holder != owner and until > now:
                return False
            self._tables.claims[enqueue_id] = (owner, now + lifetime)
            return True

        return await self._step("claim", effect)

    async def release_claim(self, enqueue_id: UUID, owner: UUID) -> None:
        def effect() -> None:
            if self._tables.claims.get(enqueue_id, (None, None))[0] == owner:
                del self._tables.claims[enqueue_id]

        await self._step("release_claim", effect)

    async def record(self, mail_id: UUID, records: tuple[Record, ...]) -> None:
        def effect() -> None:
            self._tables.records[mail_id].update({each.recipient: each for each in records})

        await self._step("record", effect)

    async def records(self, mail_id: UUID) -> Mapping[str, Record]:
        return await self._step("records", lambda: dict(self._tables.records.get(mail_id, {})))

    # Limits and slices

    async def limits(self) -> Limits:
        return await self._step("limits", lambda: self._tables.limits)

    async def advance(
        self, *, browse_start: datetime | None = None, content_start: datetime | None = None
    ) -> None:
        def effect() -> None:
            now = self._tables.limits
            self._tables.limits = Limits(
                _later(now.browse_start, browse_start), _later(now.content_start, content_start)
            )

        await self._step("advance", effect)

    async def close_slice(self, closed: ClosedSlice) -> ClosedSlice:
        return await self._step(
            "close_slice", lambda: self._tables.slices.setdefault(closed.slice_start, closed)
        )

    async def mark_drained(self, slice_start: datetime) -> None:
        def effect() -> None:
            if slice_start in self._tables.slices:
                closed = self._tables.slices[slice_start]
                self._tables.slices[slice_start] = replace(closed, drained=True)

        await self._step("mark_drained", effect)

    async def closed_slices(self, first: datetime) -> AsyncIterator[ClosedSlice]:
        found = await self._step(
            "closed_slices",
            lambda: [each for at, each in sorted(self._tables.slices.items()) if at >= first],
        )
        for each in found:
            yield each

    async def forget_slice(self, slice_start: datetime) -> None:
        await self._step("forget_slice", lambda: self._tables.slices.pop(slice_start, None))

    async def delete_rows(self, partition: Partition) -> None:
        await self._step("delete_rows", lambda: _delete(self._tables.rows, partition))

    async def delete_marks(self, partition: Partition) -> None:
        def effect() -> None:
            _delete(self._tables.marks, partition)
            _delete(self._tables.traits, partition)

        await self._step("delete_marks", effect)

    # Dead letters

    async def bury(self, letter: DeadLetter) -> None:
        await self._step(
            "bury", lambda: self._tables.letters.__setitem__(letter.enqueue_id, letter)
        )

    async def letter(self, month: str, enqueue_id: UUID) -> DeadLetter | None:
        def effect() -> DeadLetter | None:
            letter = self._tables.letters.get(enqueue_id)
            return letter if letter is not None and letter.month == month else None

        return await self._step("letter", effect)

    async def buried(self) -> AsyncIterator[DeadLetter]:
        found = await self._step(
            "buried",
            lambda: sorted(
                self._tables.letters.values(), key=lambda each: (each.month, each.enqueue_id)
            ),
        )
        for letter in found:
            yield letter

    async def count_buried(self) -> int:
        return await self._step("count_buried", lambda: len(self._tables.letters))

    async def unbury(self, letter: DeadLetter) -> None:
        await self._step("unbury", lambda: self._tables.letters.pop(letter.enqueue_id, None))

    # The whole

    async def server_time(self) -> datetime:
        return await self._step("server_time", self._tables.clock.now)

    async def erase(self) -> None:
        def effect() -> None:
            empty = Tables(self._tables.clock, row_lifetime=self._tables.row_lifetime)
            for name in Tables.__slots__:
                setattr(self._tables, name, getattr(empty, name))

        await self._step("erase", effect)


class MemoryViewStore:
    """`ViewStore` over the tables of a world."""

    def __init__(self, view: Callable[[str], MemoryView], gate: Gate) -> None:
        self._view = view
        self._gate = gate
        self.options: TableOptions | None = None

    def view(self, queue: str) -> MemoryView:
        return self._view(queue)

    async def create(self, options: TableOptions) -> None:
        def effect() -> None:
            self.options = options

        await self._gate("view", "create", effect)

    async def row_lifetime(self) -> timedelta | None:
        return self.options.row_lifetime if self.options else timedelta(days=14)

    async def check(self) -> str:
        return await self._gate("view", "check", lambda: "memory")

    async def close(self) -> None:
        """Nothing to release."""


def _within(table: Mapping[TurnKey, T], partition: Partition) -> list[tuple[TurnKey, T]]:
    return sorted(
        ((key, value) for key, value in table.items() if key.partition == partition),
        key=lambda each: each[0],
    )


def _delete(table: dict[TurnKey, T], partition: Partition) -> None:
    for key, _ in _within(table, partition):
        del table[key]


def _count(traits: Iterable[Traits], now: datetime | None) -> Counts:
    total = delayed = held = 0
    for each in traits:
        total += 1
        held += each.held
        if now is not None and not each.held and each.due_at is not None:
            delayed += each.due_at > now
    return Counts(total, delayed, held)


def _successor(mark: Mark) -> UUID | None:
    named = mark.ending.successor if mark.ending is not None else None
    return named.enqueue_id if named is not None else None


def _later(present: datetime | None, wanted: datetime | None) -> datetime | None:
    known = [each for each in (present, wanted) if each is not None]
    return max(known, default=None)
