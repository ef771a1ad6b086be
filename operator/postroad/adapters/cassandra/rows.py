"""Entries, marks, slices and dead letters as rows of the tables, and back.

A column whose value is None is left unbound. Instants lose what is finer than a millisecond.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from types import MappingProxyType
from typing import Any
from uuid import UUID

from postroad.adapters.cassandra.loop_bridge import Row
from postroad.adapters.cassandra.session import UNSET
from postroad.domain import instants
from postroad.domain.documents import extras_in, with_extras
from postroad.domain.entries import (
    Change,
    Ending,
    EndingKind,
    EnqueuedMail,
    Mark,
    PurgeWatermark,
    Traits,
    UndecodableRow,
)
from postroad.domain.identifiers import EPOCH
from postroad.domain.mail import DsnOptions, Envelope, Origin, Outcome, OutcomeKind, RecipientDsn
from postroad.domain.ownership import Identity
from postroad.domain.slices import EntryKey
from postroad.errors import Undecodable
from postroad.ports.marks import PartitionStamp
from postroad.ports.view import ClosedSlice, DeadLetter, Limits, Record

SMALL = 20
"""Recipients, or their domains, of a mail that may share a request with others: Cassandra refuses
what does not fit half a segment of its commit log (16 MiB by default)."""

SMALL_ATTRIBUTES = 4096
"""Characters of such a mail's attributes."""


def is_small(entry: EnqueuedMail) -> bool:
    """Whether a row may share a request with others."""
    envelope = entry.envelope
    length = sum(len(name) + len(value) for name, value in envelope.attributes.items())
    return len(envelope.recipients) <= SMALL and length <= SMALL_ATTRIBUTES


def is_small_ending(ending: Ending, traits: Traits) -> bool:
    """Whether a mark may share a request with others."""
    remaining = () if ending.change is None else ending.change.remaining
    return max(len(remaining), len(traits.domains)) <= SMALL


def bound(value: object) -> object:
    """Return what is bound for a value that may be missing."""
    return UNSET if value is None else value


def key_values(queue: str, key: EntryKey) -> tuple[object, ...]:
    """Return an entry's place as the tables' key."""
    return (queue, key.slice_start, key.bucket_id, key.enqueue_id)


def entry_values(entry: EnqueuedMail) -> tuple[object, ...]:
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
        with_extras(envelope, entry.shape, entry.mail_id) or UNSET,
        bound(origin.host),
        bound(origin.address),
        bound(origin.protocol),
        bound(dsn.ret),
        bound(dsn.envid),
        UNSET if envelope.dsn is None else _dsn_values(dsn),
        entry.blob_key,
        entry.size_bytes,
        0,  # header_size: unread; releases before this one set a row without it aside
        entry.accepted_at,
        entry.enqueued_at,
        bound(entry.due_at),
        entry.held or UNSET,
        entry.attempt,
        bound(entry.last_error),
        chain_value(entry.previous),
    )


def row_of(row: Row) -> EnqueuedMail | UndecodableRow:
    """Return the entry of a row, as far as this release can decode it."""
    try:
        return entry_of(row)
    except Exception as error:  # whatever it is, it must not fail the rows beside it
        return UndecodableRow(
            _place_of(row),
            type(error).__name__,
            row["mail_id"],
            _seconds(row.get("remaining_seconds")),
        )


def entry_of(row: Row) -> EnqueuedMail:
    """Return the entry of a row. Raises: whatever its decoding raises."""
    if None in [row[column] for column in _NEVER_MISSING]:
        raise Undecodable("a column without which there is no entry is missing")
    extras, shape = extras_in(row["attributes"] or _EMPTY, row["mail_id"])
    return EnqueuedMail(
        key=_place_of(row),
        mail_id=row["mail_id"],
        envelope=Envelope(
            sender=row["sender"],
            recipients=tuple(row["recipients"]),
            name=row["name"],
            origin=_origin_of(row),
            dsn=_dsn_of(row),
            **extras,
        ),
        blob_key=row["blob_key"],
        size_bytes=row["size_bytes"],
        accepted_at=instant(row["accepted_at"]),
        enqueued_at=instant(row["enqueued_at"]),
        due_at=optional_instant(row["due_at"]),
        held=bool(row["held"]),
        attempt=row["attempt"],
        last_error=row["last_error"],
        previous=_keys_of(row["previous"]),
        shape=shape,
        remaining=_seconds(row.get("remaining_seconds")),
    )


def trait_values(traits: Traits) -> tuple[object, ...]:
    """Return what a mark repeats of its row, in the order of TRAIT_COLUMNS."""
    return (traits.domains, bound(traits.due_at), traits.held or UNSET)


def traits_of(row: Row) -> Traits:
    """Return what a mark repeats of its row."""
    return Traits(
        tuple(row["domains"] or ()), optional_instant(row["due_at"]), held=bool(row["held"])
    )


def ending_values(ending: Ending) -> tuple[object, ...]:
    """Return an ending in the order of MARK_COLUMNS, without `delivered_at`."""
    successor, change = ending.successor, ending.change
    if successor is None or change is None:
        return (ending.kind.value, ending.at, *(UNSET,) * 10)
    return (
        ending.kind.value,
        ending.at,
        successor.enqueue_id,
        successor.slice_start,
        successor.bucket_id,
        False,
        change.remaining,
        bound(change.due_at),
        change.held or UNSET,
        change.attempt,
        bound(change.last_error),
        chain_value(change.previous),
    )


def chain_value(previous: Sequence[EntryKey]) -> object:
    """Return what is bound for the predecessors of an entry."""
    return [_tuple_of(key) for key in previous] or UNSET


def mark_of(row: Row) -> Mark:
    """Return the mark of a row. An ending that cannot be decoded is unknown, not absent: its entry
    must not be handed out again."""
    ending: Ending | None = None
    if row["ending"] is not None:
        try:
            ending = _ending_of(row)
        except Exception:  # whatever it is, it must not fail the marks beside it
            ending = Ending(EndingKind.UNKNOWN, optional_instant(row["ended_at"]) or EPOCH)
    return Mark(
        delivered_at=optional_instant(row["delivered_at"]),
        ending=ending,
        published=bool(row["published"]),
    )


def watermark_of(row: Row) -> PurgeWatermark | None:
    """Return the line of the partition that a mark was read from."""
    through = row["purged_through"]
    return None if through is None else PurgeWatermark(through, instant(row["purged_at"]))


def stamp_of(row: Row) -> PartitionStamp:
    """Return a partition's signs."""
    return PartitionStamp(
        watermark_of(row),
        row["swept_through"],
        instants.optional_instant(row["delivered"]),
        instants.optional_instant(row["ended"]),
    )


def slice_of_row(row: Row) -> ClosedSlice:
    """Return a closed slice."""
    return ClosedSlice(
        slice_start=instant(row["slice_start"]),
        window=timedelta(seconds=row["window_seconds"] or 0),
        rows=_mapping(row["rows_by_bucket"]),
        drained=bool(row["drained"]),
    )


def letter_values(queue: str, letter: DeadLetter) -> tuple[object, ...]:
    """Return a dead letter in the order of LETTER_COLUMNS."""
    entry = letter.entry
    return (
        queue,
        letter.month,
        letter.died_at,
        letter.reason,
        bound(letter.body),
        UNSET if letter.requeued_as is None else _tuple_of(letter.requeued_as),
        *(
            (UNSET, UNSET, letter.enqueue_id, *(UNSET,) * 21)
            if entry is None
            else entry_values(entry)
        ),
    )


def letter_of(row: Row) -> DeadLetter:
    """Return the dead letter of a row, as far as this release can decode it."""
    try:
        return _letter_of(row)
    except Exception:  # whatever it is, it must not fail the letters beside it
        return DeadLetter(
            enqueue_id=row["enqueue_id"],
            month=row["month"],
            died_at=optional_instant(row["died_at"]) or EPOCH,
            reason=row["reason"] or "",
            entry=None,
            is_decoded=False,
        )


def _letter_of(row: Row) -> DeadLetter:
    if row["reason"] is None:
        raise Undecodable("a letter without a reason does not say when it was written")
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
        outcome = Outcome(OutcomeKind(row["outcome"]), row["reply"] or "")
    except ValueError as error:
        raise Undecodable("a delivery record has an outcome unknown to this release") from error
    return Record(row["recipient"], outcome, instant(row["recorded_at"]))


def instant(stored: datetime) -> datetime:
    """Return an aware instant for the naive one of the driver, which is in UTC. An addition takes
    a sixth of the time of `replace`, and rows are full of instants."""
    return EPOCH + (stored - _NAIVE_EPOCH)


def optional_instant(stored: datetime | None) -> datetime | None:
    """Return `instant` of what may be missing."""
    return None if stored is None else instant(stored)


def limits_of(found: Sequence[Row]) -> Limits:
    """Return the latest of each limit."""
    latest = [
        max((instant(row[column]) for row in found if row[column] is not None), default=None)
        for column in ("browse_start", "content_start")
    ]
    return Limits(*latest)


def identity_of(limits: Sequence[Row], ownership: Sequence[Row]) -> Identity:
    """Return what tells a view from others; what an erased incarnation left does not count."""
    incarnations = {row["incarnation"] for row in limits}
    raised = (
        instant(row["as_of"])
        for row in ownership
        if row["incarnation"] in incarnations and row["as_of"] is not None
    )
    return Identity(incarnations, max(raised, default=None))


def own_timestamp(limit: datetime) -> int:
    """Return a limit's own value as the timestamp of its write, in microseconds."""
    return instants.microseconds(limit)


def _place_of(row: Row) -> EntryKey:
    return EntryKey(_start_of(row["slice_start"]), row["bucket_id"], row["enqueue_id"])


@lru_cache(maxsize=64)
def _start_of(stored: datetime) -> datetime:
    """Return a slice's start: one and the same object for all rows of the slice."""
    return instant(stored)


def _seconds(stored: int | None) -> timedelta | None:
    return None if stored is None else timedelta(seconds=stored)


def _ending_of(row: Row) -> Ending:
    kind, at = EndingKind(row["ending"]), instant(row["ended_at"])
    if kind is not EndingKind.REPLACED:
        return Ending(kind, at)
    return Ending(
        kind,
        at,
        successor=EntryKey(
            instant(row["replaced_by_slice"]), row["replaced_by_bucket"], row["replaced_by"]
        ),
        change=Change(
            remaining=tuple(row["remaining"]),
            due_at=optional_instant(row["new_due_at"]),
            held=bool(row["new_held"]),
            attempt=int(row["new_attempt"]),
            last_error=row["new_last_error"],
            previous=_keys_of(row["new_previous"]),
        ),
    )


def _origin_of(row: Row) -> Origin | None:
    origin = row["origin_host"], row["origin_address"], row["origin_protocol"]
    return None if origin == _NOWHERE else Origin(*origin)


def _dsn_values(dsn: DsnOptions) -> dict[str, tuple[list[str], str | None]]:
    """An empty map is kept, so that options without any value come back as such."""
    return {
        recipient: (list(each.notify), each.orcpt) for recipient, each in dsn.recipients.items()
    }


def _dsn_of(row: Row) -> DsnOptions | None:
    if row["dsn_recipients"] is None:
        return None
    return DsnOptions(
        ret=row["dsn_ret"],
        envid=row["dsn_envid"],
        recipients={
            recipient: RecipientDsn(tuple(notify or ()), orcpt)
            for recipient, (notify, orcpt) in row["dsn_recipients"].items()
        },
    )


def _tuple_of(key: EntryKey) -> tuple[datetime, int, UUID]:
    return (key.slice_start, key.bucket_id, key.enqueue_id)


def _key_of(stored: tuple[datetime, int, UUID] | None) -> EntryKey | None:
    return None if stored is None else EntryKey(instant(stored[0]), *stored[1:])


def _keys_of(stored: Sequence[tuple[datetime, int, UUID]] | None) -> tuple[EntryKey, ...]:
    return tuple(EntryKey(instant(each[0]), *each[1:]) for each in stored) if stored else ()


def _mapping(stored: Mapping[Any, Any] | None) -> Mapping[Any, Any]:
    return MappingProxyType(dict(stored)) if stored else _EMPTY


_NEVER_MISSING = ("mail_id", "blob_key", "size_bytes", "attempt")
_NAIVE_EPOCH = EPOCH.replace(tzinfo=None)
_EMPTY: Mapping[Any, Any] = MappingProxyType({})
_NO_ORIGIN = Origin()
_NOWHERE = (None, None, None)
_NO_DSN = DsnOptions()
