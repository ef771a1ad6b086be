"""The time-series view: rows, marks, enqueue keys and what is derived from them, per queue.

One `View` serves one queue. Reads and writes are quorum reads and writes: every read sees what an
earlier write returned for. Instants are kept to the millisecond, rounded down. All methods are safe
to run concurrently. Every method may raise ViewUnavailable, ViewRefused or CredentialsRefused;
*idempotent* ones may be repeated after ViewUnavailable. Rows, marks and letters are decoded one by
one: what this release cannot decode is returned as such, and fails no call for the others (ADR
0017).
Source: 000 Decision; 001; ADR 0004, 0045."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol
from uuid import UUID

from postroad.domain.configuration.history import ConfigurationEvent, Rollout
from postroad.domain.configuration.rules import ViewConfiguration
from postroad.domain.mail.mail import Outcome
from postroad.domain.queues.entries import Entry, EntryKey, Partition, UndecodableRow
from postroad.domain.queues.ownership import Identity
from postroad.domain.values.instants import Readings
from postroad.ports.delivery import SharedState, SuppressionList
from postroad.ports.marks import Counts, Marks


@dataclass(frozen=True, slots=True)
class KeyedEntry:
    """The entry that an enqueue key stands for, with the digest of its mail. `is_accepted`: the
    mail was queued; else it may be, or be on its way, or the process stopped before."""

    key: EntryKey
    mail_id: UUID
    blob_key: str
    accepted_at: datetime
    digest: bytes
    is_accepted: bool = False


class EnqueueKeys(Protocol):
    """The enqueue keys of one queue, by their tokens. Each write decides alone, and lasts for
    `KEY_LIFETIME`. After ViewUnavailable it may have taken effect, and may be repeated."""

    async def take_key(self, token: bytes, keyed: KeyedEntry) -> KeyedEntry:
        """Let a key stand for an entry, unless it does for one. Returns that of now."""

    async def change_key(self, token: bytes, before: KeyedEntry, after: KeyedEntry) -> bool:
        """Let a key that stands for `before`, as accepted as that, stand for `after`. Returns
        whether it did."""


NOT_READ = "a dead letter can be written anew only as `dead_letter` returned it"
"""The error of `View.rewrite_dead_letter` for any other dead letter."""

FOREVER = timedelta.max
"""The lifetime of what never expires."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Everything before `browse_start` is finished; rows before `content_start` are deleted; slices
    before `archived_through` are archived. All only ever move forward. None: never written; a queue
    without `archived_through` is not archived."""

    browse_start: datetime | None
    content_start: datetime | None
    archived_through: datetime | None = None

    def have_passed(self, slice_start: datetime) -> bool:
        """Return whether everything in a slice is finished, and its marks may be gone."""
        return self.browse_start is not None and slice_start < self.browse_start


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A mail that was given up, complete enough to be requeued. `body` holds the raw message when
    it could not be decoded as a reference; `entry` is None then. `requeued_as` is written before
    the new entry of a requeue, so that a requeue that stopped half way continues with the same one;
    `body` then holds the new entry's message, once its row came in time. A dead letter that cannot
    be decoded has neither entry nor body, and is not `is_decoded`: it is listed, and stays as it
    is. `written`: the timestamp of the state that `View.dead_letter` read."""

    enqueue_id: UUID
    month: str
    died_at: datetime
    reason: str
    entry: Entry | None
    body: bytes | None = None
    requeued_as: EntryKey | None = None
    is_decoded: bool = True
    written: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class ClosedSlice:
    """Written once when a slice is closed: no row can be added to it any more. `rows` by bucket;
    `drained` once all rows have final marks."""

    slice_start: datetime
    window: timedelta
    rows: Mapping[int, int]
    drained: bool = False


@dataclass(frozen=True, slots=True)
class Record:
    """A delivery record: what became of one recipient of a mail."""

    recipient: str
    outcome: Outcome
    at: datetime


class View(Marks, EnqueueKeys, Protocol):
    # Rows

    async def insert(self, entry: Entry) -> None:
        """Insert a row. Durable. Idempotent: the same row again changes nothing."""

    async def row(self, key: EntryKey) -> Entry | UndecodableRow | None: ...

    def rows(
        self, partition: Partition, after: UUID | None = None
    ) -> AsyncIterator[Entry | UndecodableRow]:
        """Yield a partition's rows in the order of their ids, page by page, each with its remaining
        lifetime (`Entry.remaining`)."""

    async def renew_row(self, key: EntryKey) -> None:
        """Write a row again as it is stored, without decoding it, so that its lifetime begins anew.
        Idempotent; a row that is not there stays away, but one that is deleted meanwhile may come
        back."""

    async def count_rows(
        self, partition: Partition, now: datetime | None, after: UUID | None = None
    ) -> Counts:
        """Count the rows, on the server; without `now`, `delayed` is 0."""

    async def occupied(self, starts: Sequence[datetime], buckets: int) -> Collection[Partition]:
        """Return which of the first `buckets` partitions of these slices have rows: one request,
        for some hundred partitions at most."""

    def blob_keys(
        self, partition: Partition, through: UUID
    ) -> AsyncIterator[tuple[UUID, str | None]]:
        """Yield ids up to `through` with the keys of their bytes, in order, page by page, without
        the rest of the row. None: the row names no bytes, because it is undecodable."""

    # Claims and delivery records

    async def claim(self, enqueue_id: UUID, owner: UUID, lifetime: timedelta) -> bool:
        """Take the right to transmit this entry for `lifetime` from now. Returns whether this owner
        has it; an owner that already had it has it longer."""

    async def release_claim(self, enqueue_id: UUID, owner: UUID) -> None:
        """Give a claim back early, when nothing was transmitted. Idempotent."""

    async def record(self, mail_id: UUID, records: tuple[Record, ...]) -> None:
        """Write delivery records, by one request as far as they are not large. Durable, idempotent,
        the last outcome of a recipient wins. After an error, some may be written."""

    async def records(self, mail_id: UUID) -> Mapping[str, Record]:
        """Return the delivery records of a mail by recipient. Raises: Undecodable."""

    # Limits and slices

    async def limits(self) -> Limits: ...

    async def advance(
        self,
        *,
        browse_start: datetime | None = None,
        content_start: datetime | None = None,
        archived_through: datetime | None = None,
    ) -> None:
        """Move limits forward. An older value than the present one changes nothing. Idempotent.
        The first `archived_through` lets cleanup wait for the archive from then on."""

    async def identity(self) -> Identity: ...

    async def raise_as_of(self, incarnation: UUID, as_of: datetime) -> None:
        """Move the identity's `as_of` forward, for one of its incarnations. An older value than the
        present one changes nothing. Idempotent."""

    async def close_slice(self, closed: ClosedSlice) -> ClosedSlice:
        """Write the close of a slice if it is not closed yet; return the stored record."""

    async def mark_drained(self, slice_start: datetime) -> None:
        """Record that a closed slice is drained. Idempotent."""

    def closed_slices(self, first: datetime) -> AsyncIterator[ClosedSlice]:
        """Yield closed slices from `first` on, in order."""

    async def forget_slice(self, slice_start: datetime) -> None:
        """Delete the record of a slice that was cleaned. Idempotent."""

    async def delete_rows(self, partition: Partition, written_before: datetime) -> None:
        """Delete a partition's rows that were written before a moment of the view's time: one
        statement. A row that comes later stays, whatever clock its writer has. Idempotent."""

    async def delete_marks(self, partition: Partition) -> None:
        """Delete a partition's marks: one statement. Idempotent."""

    # Dead letters

    async def write_dead_letter(self, dead_letter: DeadLetter) -> None:
        """Write a dead letter. Durable, idempotent."""

    async def rewrite_dead_letter(self, dead_letter: DeadLetter) -> None:
        """Write anew a dead letter that `dead_letter` returned, changed. No effect where it was
        written or deleted since it was read; only reading it shows that. Durable, idempotent.
        Raises: ValueError for a dead letter without `written`."""

    async def dead_letter(self, month: str, enqueue_id: UUID) -> DeadLetter | None:
        """Return one dead letter; None if deleted, even if `dead_letters` still yields it."""

    def dead_letters(self) -> AsyncIterator[DeadLetter]:
        """Yield dead letters, oldest month first, in the order of their ids. A server that missed a
        deletion may bring a dead letter back: this and `count_dead_letters` include it,
        `dead_letter` does not."""

    async def count_dead_letters(self) -> int:
        """Return how many dead letters there are, counted on the server."""

    async def delete_dead_letter(self, dead_letter: DeadLetter) -> None:
        """Delete a dead letter; one with an entry for good: `dead_letter` does not return it for
        `DEAD_LETTER_MEMORY`, even if it is there again. Idempotent."""

    # The whole

    @property
    def shared_state(self) -> SharedState:
        """The shared state of the queue's processes."""

    @property
    def suppression_list(self) -> SuppressionList:
        """The addresses that the queue does not mail."""

    async def server_times(self) -> Readings:
        """Read the clocks of the hosts that are up, as of the moment this returns. A host that does
        not answer within seconds is counted and left out; at least one has answered."""

    async def hosts(self) -> int:
        """Return how many hosts, including those down, could share this view's partitions."""

    def erase_slices(self, starts: Sequence[datetime], buckets: int) -> AsyncIterator[int]:
        """Delete the rows of the first `buckets` partitions of these slices, some hundred
        partitions at most, then their marks, and the delivery records of their mails. Yield after
        each step of about a second how many rows it deleted; an erasure that stopped goes on by
        another call. Idempotent. What another queue of this name writes from now on stays."""

    def erase_dead_letters(self) -> AsyncIterator[int]:
        """Delete the dead letters, and the delivery records of their mails, in steps as
        `erase_slices`; yield how many dead letters. Idempotent."""

    async def erase(self) -> None:
        """Delete what is left of the queue when its slices and letters are erased: the records of
        closed slices, limits and identity. Idempotent. `History.erase` comes after it: rows without
        their configuration history could not be found."""


class ViewStore(Protocol):
    """The keyspace that the views of many queues share."""

    def view(self, queue: str) -> View:
        """Return the view of one queue. Cheap; no I/O."""

    async def create(self, options: TableOptions) -> SchemaChanges:
        """Create the keyspace, and the tables and columns that are missing, and alter the options
        that differ; return what it changed. Idempotent; several may run at once. Rows that are
        there keep the lifetime that they were written with. Marks and delivery records never get a
        shorter one than before: a mark that goes before its row would bring the mail back. Raises:
        ViewRefused, before anything is altered, where processes of another data center use the
        keyspace; ViewError."""

    async def row_lifetime(self) -> timedelta | None:
        """Return how long tables keep a row, `FOREVER` where none expires; None: never created."""

    async def check(self) -> str:
        """The server's version, given a quorum. Raises: ViewUnavailable, CredentialsRefused."""

    async def close(self) -> None:
        """Release connections. Idempotent."""


@dataclass(frozen=True, slots=True)
class SchemaChanges:
    """The tables that were created, and those whose options were altered."""

    created: tuple[str, ...] = ()
    altered: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TableOptions:
    """Options that the tables need, over the queues of a cluster (`domain.queues.lifetimes`).
    `replication` as CQL has it, e.g. {"class": "NetworkTopologyStrategy", "dc1": "3"}."""

    replication: Mapping[str, str]
    row_lifetime: timedelta
    compaction_window: timedelta
    gc_grace: timedelta


@dataclass(frozen=True, slots=True)
class Recorded:
    """All events in order, and how far the newest ones have spread (None: never recorded)."""

    events: tuple[ConfigurationEvent, ...] = ()
    rollout: Rollout | None = None


class History(Protocol):
    """The events of one queue, in order of their sequence, without gaps, and their rollout."""

    async def load(self) -> Recorded:
        """Return everything in one linearizable read. Empty when nothing was ever recorded.
        Raises: ViewError."""

    async def append(self, event: ConfigurationEvent) -> None:
        """Append one event under its sequence, if that is free (linearizable). Durable. Appending
        the same event again changes nothing, so a caller unsure after ViewUnavailable repeats.
        Raises: ConfigurationConflict when another event is there; ViewError."""

    async def advance(self, before: Rollout | None, after: Rollout) -> bool:
        """Move the rollout, if it still is `before` (linearizable). Durable. Returns whether it
        moved; when not, another process was first. Raises: ViewError."""

    async def erase(self) -> None:
        """Forget everything, newest first, so that what a crash leaves is a history still. Only
        after the queue's rows are erased: a history without rows is harmless, rows without a
        history cannot be read. Idempotent. Raises: ViewError."""


@dataclass(frozen=True, slots=True)
class Effective:
    """Configuration that holds now: write under `writing`; read under every one of `reading`
    (newest first)."""

    writing: ViewConfiguration
    reading: tuple[ViewConfiguration, ...]


class ConfigurationSource(Protocol):
    """Answers from memory; its owner refreshes it from the history (readers first: ADR 0005)."""

    def effective(self) -> Effective:
        """Return what holds now. Raises: ConfigurationStale past the lease, QueueNotFound. Ask once
        per operation, and again before a write that depends on what was read (closing, advancing,
        cleaning), because the process may have been suspended since."""
