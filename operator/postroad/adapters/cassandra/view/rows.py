"""Entries, slices and dead letters as rows of the tables, and back.

A column whose value is None is left unbound. Times are rounded down to milliseconds.

Reads the dead letters of a queue, however many were deleted.

The dead letters of a month are one partition, and each that is requeued or discarded leaves a
tombstone there until `gc_grace_seconds` are over. Cassandra refuses a request that meets more than
100,000 of them (`tombstone_failure_threshold`). So the reader reads a month in ranges of ids, and
halves a range that is refused. Source: ADR 0025."""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import pairwise
from types import MappingProxyType
from typing import Any
from uuid import UUID

from postroad.adapters.cassandra import statements
from postroad.adapters.cassandra.connection import TooManyTombstones
from postroad.adapters.cassandra.session import UNSET, Row, Session
from postroad.adapters.cassandra.statements import ROW_COLUMNS
from postroad.domain.mail import mail
from postroad.domain.mail.shapes import Shape
from postroad.domain.queues.entries import Entry, EntryKey, UndecodableRow
from postroad.domain.queues.ownership import Identity
from postroad.domain.values import instants
from postroad.domain.values.identifiers import EPOCH, FIRST, LAST, id_at
from postroad.errors import Undecodable
from postroad.ports.view import ClosedSlice, DeadLetter, Limits, Record

SMALL = 20
"""Recipients, or their domains, of a mail that may share a request with others: Cassandra refuses a
request of more than half a segment of its commit log (16 MiB by default)."""

SMALL_ATTRIBUTES = 4096
"""Characters of such a mail's attributes."""


def is_small(entry: Entry) -> bool:
    """True if a row may share a request with others."""
    envelope = entry.envelope
    length = sum(len(name) + len(value) for name, value in envelope.attributes.items())
    return len(envelope.recipients) <= SMALL and length <= SMALL_ATTRIBUTES


def bound(value: object) -> object:
    """Return what is bound for a value, UNSET for None."""
    return UNSET if value is None else value


def key_values(queue: str, key: EntryKey) -> tuple[object, ...]:
    return (queue, key.slice_start, key.bucket_id, key.enqueue_id)


def entry_values(entry: Entry) -> tuple[object, ...]:
    """Return an entry in the order of ROW_COLUMNS."""
    envelope, key = entry.envelope, entry.key
    origin = envelope.origin or _NO_ORIGIN
    dsn = envelope.dsn or _NO_DSN
    return (
        key.slice_start,
        key.bucket_id,
        key.enqueue_id,
        entry.mail_id,
        bound(envelope.name),
        bound(envelope.sender),
        envelope.recipients,
        envelope.attributes or UNSET,
        bound(origin.host),
        bound(origin.address),
        bound(origin.protocol),
        bound(dsn.ret),
        bound(dsn.envid),
        UNSET if envelope.dsn is None else _dsn_values(dsn),
        envelope.priority or UNSET,
        UNSET if entry.shape is None else entry.shape.as_text(),
        entry.blob_key,
        entry.size_bytes,
        entry.accepted_at,
        entry.enqueued_at,
        bound(entry.due_at),
        entry.held or UNSET,
        entry.attempt,
        bound(entry.last_error),
        chain_value(entry.previous),
    )


def chain_value(previous: Sequence[EntryKey]) -> object:
    """Return what is bound for the predecessors of an entry."""
    return [_tuple_of(key) for key in previous] or UNSET


def row_of(row: Row) -> Entry | UndecodableRow:
    """Return the entry of a row, as far as this release can decode it."""
    try:
        return entry_of(row)
    except Exception as error:  # any error: one bad row must not fail the page
        return UndecodableRow(
            _place_of(row),
            type(error).__name__,
            row["mail_id"],
            _seconds(row.get("remaining_seconds")),
        )


def entry_of(row: Row) -> Entry:
    """Return the entry of a row. Raises: any error of its decoding."""
    if None in [row[column] for column in _NEVER_MISSING]:
        raise Undecodable("a row lacks a column that every entry has")
    return Entry(
        key=_place_of(row),
        mail_id=row["mail_id"],
        envelope=mail.Envelope(
            sender=row["sender"],
            recipients=tuple(row["recipients"]),
            name=row["name"],
            attributes=_mapping(row["attributes"]),
            origin=_origin_of(row),
            dsn=_dsn_of(row),
            priority=row["priority"] or 0,
        ),
        blob_key=row["blob_key"],
        size_bytes=row["size_bytes"],
        accepted_at=instant(row["accepted_at"]),
        enqueued_at=instant(row["enqueued_at"]),
        due_at=optional_instant(row["due_at"]),
        held=bool(row["held"]),
        attempt=row["attempt"],
        last_error=row["last_error"],
        previous=keys_of(row["previous"]),
        shape=None if row["shape"] is None else Shape.from_text(row["shape"]),
        remaining=_seconds(row.get("remaining_seconds")),
    )


def slice_of_row(row: Row) -> ClosedSlice:
    return ClosedSlice(
        slice_start=instant(row["slice_start"]),
        window=timedelta(seconds=row["window_seconds"] or 0),
        rows=_mapping(row["rows_by_bucket"]),
        drained=bool(row["drained"]),
    )


def dead_letter_values(queue: str, dead_letter: DeadLetter) -> tuple[object, ...]:
    """Return a dead letter in the order of LETTER_COLUMNS."""
    entry = dead_letter.entry
    values = _values_of_id(dead_letter.enqueue_id) if entry is None else entry_values(entry)
    return (
        queue,
        dead_letter.month,
        dead_letter.died_at,
        dead_letter.reason,
        bound(dead_letter.body),
        UNSET if dead_letter.requeued_as is None else _tuple_of(dead_letter.requeued_as),
        *values,
    )


def _values_of_id(enqueue_id: UUID) -> tuple[object, ...]:
    """Return the values of an entry of which only the id is known, in the order of ROW_COLUMNS."""
    return tuple(enqueue_id if column == "enqueue_id" else UNSET for column in ROW_COLUMNS)


def dead_letter_of(row: Row) -> DeadLetter:
    """Return the dead letter of a row, as far as this release can decode it."""
    try:
        return _dead_letter_of(row)
    except Exception:  # any error: one bad dead letter must not fail the page
        return DeadLetter(
            enqueue_id=row["enqueue_id"],
            month=row["month"],
            died_at=optional_instant(row["died_at"]) or EPOCH,
            reason=row["reason"] or "",
            entry=None,
            is_decoded=False,
        )


def _dead_letter_of(row: Row) -> DeadLetter:
    if row["reason"] is None:
        raise Undecodable("a dead letter without a reason has no write time")
    return DeadLetter(
        enqueue_id=row["enqueue_id"],
        month=row["month"],
        died_at=instant(row["died_at"]),
        reason=row["reason"],
        entry=None if row["mail_id"] is None else entry_of(row),
        body=row["body"],
        requeued_as=_key_of(row["requeued_as"]),
        written=row.get("written"),
    )


def record_of(row: Row) -> Record:
    """Return a delivery record. Raises: Undecodable."""
    try:
        outcome = mail.Outcome(mail.OutcomeKind(row["outcome"]), row["reply"] or "")
    except ValueError as error:
        raise Undecodable("a delivery record has an outcome unknown to this release") from error
    return Record(row["recipient"], outcome, instant(row["recorded_at"]))


def instant(stored: datetime) -> datetime:
    """Return the driver's naive UTC time as an aware one. By addition, which takes a sixth of the
    time of `replace`: a row has several times."""
    return EPOCH + (stored - _NAIVE_EPOCH)


def optional_instant(stored: datetime | None) -> datetime | None:
    return None if stored is None else instant(stored)


def limits_of(found: Sequence[Row]) -> Limits:
    """Return the latest of each limit."""
    latest = [
        max((instant(row[column]) for row in found if row.get(column) is not None), default=None)
        for column in ("browse_start", "content_start", "archived_through")
    ]
    return Limits(*latest)


def identity_of(limits: Sequence[Row], ownership: Sequence[Row]) -> Identity:
    """Return a view's identity, without what erased incarnations left."""
    incarnations = {row["incarnation"] for row in limits}
    raised = (
        instant(row["as_of"])
        for row in ownership
        if row["incarnation"] in incarnations and row["as_of"] is not None
    )
    return Identity(incarnations, max(raised, default=None))


def own_timestamp(limit: datetime) -> int:
    """Return a limit as the timestamp of its write, in microseconds."""
    return instants.microseconds(limit)


def _place_of(row: Row) -> EntryKey:
    return EntryKey(_start_of(row["slice_start"]), row["bucket_id"], row["enqueue_id"])


@lru_cache(maxsize=64)
def _start_of(stored: datetime) -> datetime:
    """Return a slice's start, cached: the rows of a slice share one object."""
    return instant(stored)


def _seconds(stored: int | None) -> timedelta | None:
    return None if stored is None else timedelta(seconds=stored)


def _origin_of(row: Row) -> mail.Origin | None:
    origin = row["origin_host"], row["origin_address"], row["origin_protocol"]
    return None if origin == _NOWHERE else mail.Origin(*origin)


def _dsn_values(dsn: mail.DsnOptions) -> dict[str, tuple[list[str], str | None]]:
    """Return the options of recipients; an empty map where there are none, because an absent one
    means no DSN options at all."""
    return {
        recipient: (list(each.notify), each.orcpt) for recipient, each in dsn.recipients.items()
    }


def _dsn_of(row: Row) -> mail.DsnOptions | None:
    if row["dsn_recipients"] is None:
        return None
    return mail.DsnOptions(
        ret=row["dsn_ret"],
        envid=row["dsn_envid"],
        recipients={
            recipient: mail.RecipientDsn(tuple(notify or ()), orcpt)
            for recipient, (notify, orcpt) in row["dsn_recipients"].items()
        },
    )


def _tuple_of(key: EntryKey) -> tuple[datetime, int, UUID]:
    return (key.slice_start, key.bucket_id, key.enqueue_id)


def _key_of(stored: tuple[datetime, int, UUID] | None) -> EntryKey | None:
    return None if stored is None else EntryKey(instant(stored[0]), *stored[1:])


def keys_of(stored: Sequence[tuple[datetime, int, UUID]] | None) -> tuple[EntryKey, ...]:
    return tuple(EntryKey(instant(each[0]), *each[1:]) for each in stored) if stored else ()


def _mapping(stored: Mapping[Any, Any] | None) -> Mapping[Any, Any]:
    return MappingProxyType(dict(stored)) if stored else _EMPTY


_NEVER_MISSING = ("mail_id", "blob_key", "size_bytes", "attempt")
_NAIVE_EPOCH = EPOCH.replace(tzinfo=None)
_EMPTY: Mapping[Any, Any] = MappingProxyType({})
_NO_ORIGIN = mail.Origin()
_NOWHERE = (None, None, None)
_NO_DSN = mail.DsnOptions()


Range = tuple[UUID, UUID]
"""Ids after the first, up to the second inclusive."""


def month_of_gone(month: str) -> str:
    """Return the partition of the notes about dead letters of a month that were deleted."""
    return f"{month} gone"


class DeadLetterReader:
    """Reads the dead letters of one queue. It remembers the ranges of a month, so that it requests
    a refused one only once."""

    def __init__(self, session: Session, queue: str) -> None:
        self._session = session
        self._queue = queue
        self._bounds: dict[str, set[UUID]] = {}

    async def months(self) -> list[str]:
        """Return the months that may hold dead letters, in order."""
        found = self._session.pages(statements.SELECT_MONTHS, (self._queue,))
        return [row["month"] async for page in found for row in page]

    async def dead_letters(self, month: str) -> AsyncIterator[Row]:
        """Yield the dead letters of a month in the order of their ids, page by page."""
        ranges = self._ranges(month)
        while ranges:
            after, through = ranges.pop()
            try:
                place = (self._queue, month, after, through)
                async for page in self._session.pages(statements.SELECT_DEAD_LETTERS, place):
                    for row in page:
                        yield row
                        after = row["enqueue_id"]
            except TooManyTombstones as error:
                ranges += self._halves(month, after, through, error)

    async def count(self, month: str) -> int:
        """Count the dead letters of a month, on the server."""
        total, ranges = 0, self._ranges(month)
        while ranges:
            after, through = ranges.pop()
            try:
                place = (self._queue, month, after, through)
                [row] = await self._session.execute(statements.COUNT_DEAD_LETTERS, place)
                total += row["count"]
            except TooManyTombstones as error:
                ranges += self._halves(month, after, through, error)
        return total

    def _ranges(self, month: str) -> list[Range]:
        """Return the ranges of a month, the first one last: they are popped."""
        bounds = sorted(self._bounds.get(month, ()))
        return list(pairwise([FIRST, *bounds, LAST]))[::-1]

    def _halves(
        self, month: str, after: UUID, through: UUID, refusal: TooManyTombstones
    ) -> list[Range]:
        """Halve a refused range; the first half comes last."""
        bound = middle(month, after, through)
        if bound is None:
            raise refusal
        self._bounds.setdefault(month, set()).add(bound)
        return [(bound, through), (after, bound)]


def middle(month: str, after: UUID, through: UUID) -> UUID | None:
    """Return the id that halves a range: the begin or the end of the month, because nearly all its
    ids are in between, else the middle in time. None: the range is within a millisecond.

    >>> str(middle("2026-01", FIRST, LAST))
    '019b76da-a800-7000-8000-000000000000'
    """
    first, last = after.int >> 80, through.int >> 80
    for edge in _edges(month):
        if first < edge < last:
            return _id(edge)
    half = (first + last) // 2
    return _id(half) if first < half else None


def _edges(month: str) -> Iterator[int]:
    """Yield where a month begins and where it ends, in milliseconds."""
    start = datetime.strptime(month, "%Y-%m").replace(tzinfo=UTC)
    for edge in (start, (start + timedelta(days=31)).replace(day=1)):
        yield (edge - EPOCH) // timedelta(milliseconds=1)


def _id(millisecond: int) -> UUID:
    return id_at(EPOCH + timedelta(milliseconds=millisecond), 0, 0)
