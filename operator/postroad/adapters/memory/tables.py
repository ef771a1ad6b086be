"""What one queue has in the keyspace of a view in memory, shared by all processes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TypeVar
from uuid import UUID, uuid4

from postroad.domain.entries import Mark, PurgeLine, Traits, Turn, UndecodableRow
from postroad.domain.lifetimes import DEAD_LETTER_MEMORY
from postroad.domain.slices import Partition, TurnKey
from postroad.ports.clock import Clock
from postroad.ports.marks import Signs
from postroad.ports.view import FOREVER, ClosedSlice, DeadLetter, Limits, Record

T = TypeVar("T")


@dataclass(slots=True)
class Tables:
    """`clock` is what the server goes by; `hosts` are the clocks that its hosts show."""

    clock: Clock
    hosts: Mapping[str, Clock]
    rows: dict[TurnKey, Turn] = field(default_factory=dict)
    marks: dict[TurnKey, Mark] = field(default_factory=dict)
    traits: dict[TurnKey, Traits] = field(default_factory=dict)
    signs: dict[Partition, Signs] = field(default_factory=dict)
    claims: dict[UUID, tuple[UUID, timedelta]] = field(default_factory=dict)
    records: dict[UUID, dict[str, Record]] = field(default_factory=lambda: defaultdict(dict))
    limits: Limits = field(default_factory=lambda: Limits(None, None))
    incarnation: UUID = field(default_factory=uuid4)
    as_of: datetime | None = None
    slices: dict[datetime, ClosedSlice] = field(default_factory=dict)
    letters: dict[UUID, DeadLetter] = field(default_factory=dict)
    gone: dict[UUID, datetime] = field(default_factory=dict)
    """Letters that were deleted, and until when that is remembered."""

    writings: int = 0
    """Of letters, so far."""

    row_lifetime: timedelta = timedelta(days=14)
    """Of rows that are inserted from now on."""

    expire_at: dict[TurnKey, datetime] = field(default_factory=dict)
    written: dict[TurnKey, datetime] = field(default_factory=dict)
    undecodable: set[TurnKey] = field(default_factory=set)
    """Rows whose cells no reader of this release decodes; counts and names of bytes are read."""

    def insert(self, turn: Turn) -> None:
        """Insert a row that lives for `row_lifetime`."""
        self.rows[turn.key] = turn
        self.written[turn.key] = self.clock.now()
        self._age(turn.key)

    def _age(self, key: TurnKey) -> None:
        if self.row_lifetime == FOREVER:
            self.expire_at.pop(key, None)
        else:
            self.expire_at[key] = self.clock.now() + self.row_lifetime

    def unexpired(self) -> dict[TurnKey, Turn]:
        """Return the rows, those that are too old removed."""
        now = self.clock.now()
        for key in [key for key, at in self.expire_at.items() if at <= now]:
            del self.expire_at[key]
            self.rows.pop(key, None)
        return self.rows

    def read(self, key: TurnKey) -> Turn | UndecodableRow | None:
        """Return a row as a reader finds it."""
        turn = self.unexpired().get(key)
        return None if turn is None else self.decoded(turn)

    def decoded(self, turn: Turn) -> Turn | UndecodableRow:
        """Return a row, with the time it still lives, as far as it can be decoded."""
        expires = self.expire_at.get(turn.key)
        remaining = None if expires is None else expires - self.clock.now()
        if turn.key in self.undecodable:
            return UndecodableRow(turn.key, "InvalidMail", turn.mail_id, remaining)
        return replace(turn, remaining=remaining)

    def bury(self, letter: DeadLetter) -> None:
        """Write a dead letter."""
        self.writings += 1
        self.letters[letter.enqueue_id] = replace(letter, written=self.writings)

    def unbury(self, letter: DeadLetter) -> None:
        """Delete a dead letter."""
        if letter.turn is not None:
            self.gone[letter.enqueue_id] = self.clock.now() + DEAD_LETTER_MEMORY
        self.letters.pop(letter.enqueue_id, None)

    def is_gone(self, enqueue_id: UUID) -> bool:
        """Return whether it is remembered that a letter was deleted."""
        return enqueue_id in self.gone and self.clock.now() < self.gone[enqueue_id]

    def mark(self, key: TurnKey) -> Mark | None:
        """Return a turn's own mark, or what a line says of it."""
        line = self.line(key.partition)
        by_line = line.mark_of(key.enqueue_id) if line is not None else None
        return self.marks.get(key, by_line)

    def line(self, partition: Partition) -> PurgeLine | None:
        """Return how far a partition was purged."""
        return self.signs.get(partition, Signs()).line

    def live(self) -> list[Turn]:
        """Return the turns that wait, in order: what a test compares with."""
        return [
            turn
            for key, turn in sorted(self.unexpired().items())
            if (self.mark(key) or Mark()).is_live
        ]


def within(
    table: Mapping[TurnKey, T],
    partition: Partition,
    after: UUID | None = None,
    through: UUID | None = None,
) -> list[tuple[TurnKey, T]]:
    """Return what a partition has, in order."""
    return sorted(
        (
            (key, value)
            for key, value in table.items()
            if key.partition == partition
            and (after is None or key.enqueue_id > after)
            and (through is None or key.enqueue_id <= through)
        ),
        key=lambda each: each[0],
    )


def delete(table: dict[TurnKey, T], partition: Partition) -> None:
    """Empty a partition."""
    for key, _ in within(table, partition):
        del table[key]
