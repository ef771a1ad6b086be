"""Plans what a run of the archive reads, by what it has already, and names what is missing for
good: the lines of the lake's table `slices`, and how far an answer covers a stretch of time. Pure.

The records of closed slices name slice, window and buckets with rows, under whatever configuration
these were written; so no history is needed to find them. Source: ADR 0047."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from math import gcd
from typing import Any, NamedTuple
from uuid import UUID

from postroad.domain.configuration.history import ConfigurationEvent, ConfigurationRefused
from postroad.domain.queues.entries import Partition, PurgeWatermark
from postroad.domain.values.instants import instant, optional_instant, rfc3339
from postroad.ports.marks import PartitionVersion
from postroad.ports.view import ClosedSlice, Limits


class Stretch(NamedTuple):
    """The moments from `first` on and before `before`."""

    first: datetime
    before: datetime

    def before_it(self, length: timedelta) -> Stretch:
        """Return the stretch of this length that ends where this one begins."""
        return Stretch(self.first - length, self.first)


@dataclass(frozen=True, slots=True)
class Coverage:
    """Subject of an answer. `lacking`: of which slices the lake does not have all entries, so that
    what happened to these is missing in the answer. `as_of`: when what it has was last read from
    the view; None: never, or the answer has all of the stretch."""

    stretch: Stretch
    lacking: tuple[Gap, ...] = ()
    as_of: datetime | None = None

    def sentences(self) -> tuple[str, ...]:
        """Return one line for each part that is lacking."""
        lines = [
            f"the answer lacks mail that was queued from {rfc3339(first)} on and before "
            f"{rfc3339(before)}: the lake does not have it"
            for first, before in self.lacking
        ]
        if self.as_of is not None and self.as_of < self.stretch.before:
            lines.append(
                f"the answer lacks what happened since {rfc3339(self.as_of)}: the lake was written"
                " then"
            )
        return tuple(lines)


def coverage_of(
    stretch: Stretch,
    gaps: Iterable[Gap],
    begun: datetime | None,
    through: datetime | None,
    as_of: datetime | None = None,
) -> Coverage:
    """Return how far the lake covers a stretch. `begun` is its first slice, `through` the instant
    before which the lake has all slices; None: there is none yet. `as_of`: as of a coverage."""
    outside = [
        Gap(stretch.first, begun or stretch.before),
        Gap(through or stretch.first, stretch.before),
    ]
    clipped = (
        Gap(max(first, stretch.first), min(before, stretch.before))
        for first, before in (*gaps, *outside)
    )
    lacking = merged(each for each in clipped if each.first < each.before)
    return Coverage(stretch, lacking, as_of)


_SECOND = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class ArchivedPartition:
    """A partition as the lake has it. `window`: of its slice. `is_settled`: while its version stays
    the same, so do its entries. `is_over`: each of them has a final mark. `is_final`: it is not
    read again. `rows`, `undecodable`: as its last reading counted. One whose last reading was
    discarded is none of these, and has none."""

    partition: Partition
    version: PartitionVersion
    window: timedelta
    is_settled: bool = False
    is_over: bool = False
    is_final: bool = False
    rows: int = 0
    undecodable: int = 0


class ReadCounts(NamedTuple):
    """Counts of a reading of a partition: rows, decodable or not; those of them without a final
    mark; replacements under way, which are counted among these; undecodable rows."""

    rows: int
    live: int
    unfinished: int
    undecodable: int = 0


class Gap(NamedTuple):
    """Slices that start from `first` to before `before`, and are not in the lake as they ended."""

    first: datetime
    before: datetime


def to_ask(
    closed: Iterable[ClosedSlice], archived: Mapping[Partition, ArchivedPartition]
) -> list[Partition]:
    """Return the partitions with rows that are not final."""
    return [
        partition
        for each in closed
        for partition in partitions_of(each)
        if partition not in archived or not archived[partition].is_final
    ]


def partitions_of(closed: ClosedSlice) -> list[Partition]:
    """Return the partitions of a slice that had rows when it was closed."""
    return [Partition(closed.slice_start, bucket) for bucket in sorted(closed.rows)]


def without_reading(
    had: ArchivedPartition | None, closed: ClosedSlice, version: PartitionVersion
) -> ArchivedPartition | None:
    """Return what the lake has of a partition that did not change since it was read, except that
    its slice may be drained by now; None when it must be read. A drained partition in which mail
    waited has changed, whatever its version is: cleanup deletes versions too."""
    if had is None or not had.is_settled or had.version != version:
        return None
    if closed.drained and not had.is_over:
        return None
    return replace(had, is_final=closed.drained)


def after_reading(
    had: ArchivedPartition,
    closed: ClosedSlice,
    counts: ReadCounts,
    limits: Limits,
    settled_before: datetime,
) -> ArchivedPartition | None:
    """Return what the lake has of a partition after a reading; None where cleanup may have
    overtaken it, so that its entries are not to be kept. `had` has the version, which was read
    before the rows, as `closed` was; `limits` were read after the marks."""
    is_missing = counts.rows < closed.rows.get(had.partition.bucket_id, 0)
    if is_missing or (closed.drained and counts.live):
        return None
    if limits.have_passed(closed.slice_start) and not closed.drained:
        return None
    is_settled = had.version.settled(settled_before) and not counts.unfinished
    return replace(
        had,
        is_settled=is_settled,
        is_over=not counts.live,
        is_final=closed.drained,
        rows=counts.rows,
        undecodable=counts.undecodable,
    )


def archived_through(
    limits: Limits, closed: Iterable[ClosedSlice], final: Collection[Partition]
) -> datetime | None:
    """Return the instant before which all slices are archived that were not cleaned before: the
    first closed slice that is not final, and never after browse start, before which every slice
    with rows is closed. None: nothing is known yet."""
    waiting = (
        each.slice_start
        for each in closed
        if any(partition not in final for partition in partitions_of(each))
    )
    if limits.browse_start is None:
        return None
    return min([limits.browse_start, *waiting])


def new_gaps(
    limits: Limits,
    closed: Iterable[ClosedSlice],
    archived: Iterable[ArchivedPartition],
    *,
    step: timedelta,
    waits: bool,
) -> tuple[Gap, ...]:
    """Return what was cleaned since the last run and is not in the lake as it ended. `step` is the
    smallest slice window that the queue ever had, which divides all others. `waits`: cleanup was
    still waiting for the archive when the slices were listed. Otherwise it may be under way: it has
    deleted the records of slices in order, and not moved content start yet, so the gap reaches to
    the first record that is left. A gap may hold slices without rows."""
    first, before = limits.archived_through, limits.content_start
    if first is None or limits.browse_start is None:
        return ()
    if not waits:
        before = min((each.slice_start for each in closed), default=limits.browse_start)
    if before is None:
        return ()
    found: dict[datetime, bool] = {}
    for each in archived:
        start = each.partition.slice_start
        if first <= start < before:
            found[start] = found.get(start, True) and each.is_final
    gaps: list[Gap] = []
    for start in sorted(start for start, is_whole in found.items() if is_whole):
        gaps.append(Gap(first, start))
        first = start + step
    gaps.append(Gap(first, before))
    return tuple(gap for gap in gaps if gap.first < gap.before)


def finest_window(events: Iterable[ConfigurationEvent]) -> timedelta:
    """Return the longest window that divides all that a queue ever had. It has an event."""
    seconds = (
        each.configuration.slice_window // _SECOND
        for each in events
        if not isinstance(each, ConfigurationRefused)
    )
    return gcd(*seconds) * _SECOND


def merged(gaps: Iterable[Gap]) -> tuple[Gap, ...]:
    """Return the same gaps in order, those that meet or overlap as one."""
    found: list[Gap] = []
    for gap in sorted(gaps):
        if found and gap.first <= found[-1].before:
            found[-1] = Gap(found[-1].first, max(found[-1].before, gap.before))
        else:
            found.append(gap)
    return tuple(found)


def line_of(archived: ArchivedPartition) -> tuple[Any, ...]:
    """Return a partition as a line, in the order of the table's columns."""
    version = archived.version
    return (
        *archived.partition,
        archived.window // _SECOND,
        _text(version.purged),
        None if version.watermark is None else version.watermark.at,
        _text(version.blobs_deleted_through),
        version.delivered,
        version.ended,
        archived.is_settled,
        archived.is_over,
        archived.is_final,
        archived.rows,
        archived.undecodable,
    )


def archived_of(line: Mapping[str, Any]) -> ArchivedPartition:
    """Return the partition of a line whose moments are in microseconds."""
    purged_at = line["purged_at"]
    return ArchivedPartition(
        Partition(instant(line["slice_start"]), line["bucket_id"]),
        PartitionVersion(
            None
            if purged_at is None
            else PurgeWatermark(UUID(line["purged_through"]), instant(purged_at)),
            _id(line["blobs_deleted_through"]),
            optional_instant(line["last_delivered"]),
            optional_instant(line["last_ended"]),
        ),
        line["window_seconds"] * _SECOND,
        is_settled=line["is_settled"],
        is_over=line["is_over"],
        is_final=line["is_final"],
        rows=line["row_count"],
        undecodable=line["undecodable_count"],
    )


def _text(identifier: UUID | None) -> str | None:
    return None if identifier is None else str(identifier)


def _id(text: str | None) -> UUID | None:
    return None if text is None else UUID(text)
