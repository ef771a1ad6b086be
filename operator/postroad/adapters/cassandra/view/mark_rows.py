"""Marks, traits and watermarks as rows of the table of marks, and back."""

from __future__ import annotations

from postroad.adapters.cassandra.connection.loop_bridge import Row
from postroad.adapters.cassandra.connection.session import UNSET
from postroad.adapters.cassandra.view import rows
from postroad.domain.delivery.attempts import AttemptOutcomes
from postroad.domain.queues.entries import Change, Ending, EndingKind, Mark, PurgeWatermark, Traits
from postroad.domain.queues.slices import EntryKey
from postroad.domain.values import instants
from postroad.domain.values.identifiers import EPOCH
from postroad.ports.marks import PartitionStamp


def is_small_ending(ending: Ending, traits: Traits) -> bool:
    """Whether a mark may share a request with others."""
    remaining = () if ending.change is None else ending.change.remaining
    return max(len(remaining), len(traits.domains)) <= rows.SMALL


def trait_values(traits: Traits) -> tuple[object, ...]:
    """Return the traits that a mark repeats, in the order of TRAIT_COLUMNS."""
    return (traits.domains, rows.bound(traits.due_at), traits.held or UNSET)


def outcome_values(outcomes: AttemptOutcomes | None) -> tuple[object, ...]:
    """Return what is kept of an attempt, in the order of OUTCOME_COLUMNS: nothing of none."""
    if outcomes is None:
        return ()
    counts = [
        (
            *(each.domain, each.site, each.kind.value, each.code),
            None if each.reason is None else each.reason.value,
            *(each.words, each.count),
        )
        for each in outcomes.counts
    ]
    return counts, outcomes.seconds


def traits_of(row: Row) -> Traits:
    """Return the traits that a mark repeats."""
    return Traits(
        tuple(row["domains"] or ()), rows.optional_instant(row["due_at"]), held=bool(row["held"])
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
        rows.bound(change.due_at),
        change.held or UNSET,
        change.attempt,
        rows.bound(change.last_error),
        rows.chain_value(change.previous),
    )


def mark_of(row: Row) -> Mark:
    """Return the mark of a row. An ending that cannot be decoded becomes UNKNOWN, because without
    an ending its entry would be delivered again."""
    ending: Ending | None = None
    if row["ending"] is not None:
        try:
            ending = _ending_of(row)
        except Exception:  # any error: one bad mark must not fail the page
            ending = Ending(EndingKind.UNKNOWN, rows.optional_instant(row["ended_at"]) or EPOCH)
    return Mark(
        delivered_at=rows.optional_instant(row["delivered_at"]),
        ending=ending,
        published=bool(row["published"]),
    )


def watermark_of(row: Row) -> PurgeWatermark | None:
    """Return the watermark of the partition that a mark was read from."""
    through = row["purged_through"]
    return None if through is None else PurgeWatermark(through, rows.instant(row["purged_at"]))


def stamp_of(row: Row) -> PartitionStamp:
    """Return a partition's stamp."""
    return PartitionStamp(
        watermark_of(row),
        row["swept_through"],
        instants.optional_instant(row["delivered"]),
        instants.optional_instant(row["ended"]),
    )


def _ending_of(row: Row) -> Ending:
    kind, at = EndingKind(row["ending"]), rows.instant(row["ended_at"])
    if kind is not EndingKind.REPLACED:
        return Ending(kind, at)
    return Ending(
        kind,
        at,
        successor=EntryKey(
            rows.instant(row["replaced_by_slice"]), row["replaced_by_bucket"], row["replaced_by"]
        ),
        change=Change(
            remaining=tuple(row["remaining"]),
            due_at=rows.optional_instant(row["new_due_at"]),
            held=bool(row["new_held"]),
            attempt=int(row["new_attempt"]),
            last_error=row["new_last_error"],
            previous=rows.keys_of(row["new_previous"]),
        ),
    )
