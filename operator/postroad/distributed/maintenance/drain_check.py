"""Slices that can get no more rows: closed once, drained when every row has a final mark or was
purged.

Drained is decided by joining rows and marks by id, never by their numbers (invariant 6). Numbers
only guard the join: fewer rows than were counted at the close are rows that vanished, and rows that
came while the join ran make it invalid."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from operator import itemgetter

from postroad.distributed.administration.purge import delete_purged_blobs
from postroad.distributed.engine.engine import Engine
from postroad.distributed.entries import endings, replacement
from postroad.distributed.entries.live_slices import Ascending, Slice, with_marks
from postroad.domain.queues import entries
from postroad.domain.values.identifiers import LAST, moment_of
from postroad.errors import ViewError
from postroad.ports.marks import PartitionVersion
from postroad.ports.view import FOREVER, ClosedSlice, View
from postroad.telemetry import metrics

PURGE_TIMEOUT = timedelta(minutes=10)
"""Time that a purge may take to delete the blobs of a partition before the drain check does it."""


class SliceState(Enum):
    DRAINED = "every row has a final mark"
    LIVE = "a row waits"
    VANISHED = "rows that were counted are gone"


def longest_window(engine: Engine) -> timedelta:
    """Return the longest window that any writer may still use. Raises: ConfigurationStale."""
    return max(each.slice_window for each in engine.configuration.effective().reading)


def closable_until(engine: Engine, now: datetime) -> datetime:
    """Return the instant before which slices get no more rows. Raises: ConfigurationStale."""
    return now - longest_window(engine) - engine.timing.grace


async def close(engine: Engine, slice_: Slice) -> ClosedSlice | None:
    """Close a slice; return the stored record, None for a slice without rows, which gets none."""
    counts = await _counts(engine, slice_)
    rows = {bucket: count for bucket, count in counts.items() if count}
    if not rows:
        return None
    return await engine.view.close_slice(ClosedSlice(slice_.start, longest_window(engine), rows))


@dataclass(frozen=True, slots=True)
class DrainCheck:
    """The state of a closed slice, and what else its reading showed. `doubtful`: the slices of
    successors whose replacements could not be finished, so that their rows may still come.
    `is_unknown`: a mark may be of a replacement, but this release cannot decode it. `versions`: of
    each partition, read before its rows. These three are complete only where the slice was read
    whole."""

    state: SliceState
    missing: int = 0
    doubtful: frozenset[datetime] = frozenset()
    is_unknown: bool = False
    versions: tuple[PartitionVersion, ...] = ()


async def check_drained(
    engine: Engine, slice_: Slice, closed: ClosedSlice, *, whole: bool = False
) -> DrainCheck:
    """Return the state of a closed slice; finish replacements and purges that stopped half way in
    it. Reads up to the first row that waits, or the `whole` slice. Raises: ServerError, ClockSkew,
    ConfigurationStale."""
    reading = _SliceReading(engine)
    present: Counter[int] = Counter()
    versions: list[PartitionVersion] = []
    missing = 0
    for partition in slice_.partitions:
        found, are_blobs_deleted = await _check_blobs_deleted(engine, partition)
        versions.append(found)
        reading.waits |= not are_blobs_deleted
        if reading.waits and not whole:
            return DrainCheck(SliceState.LIVE)
        async for key, mark in _marks_of_rows(engine.view, partition, found):
            await reading.take(key, mark)
            if reading.waits and not whole:
                return DrainCheck(SliceState.LIVE)
            present[partition.bucket_id] += 1
        counted = closed.rows.get(partition.bucket_id, 0) - present[partition.bucket_id]
        if counted > 0 and not _is_purged(found.watermark, closed):
            missing += max(counted - await reading.expired(partition), 0)
    if missing:
        engine.log.error(
            "rows vanished from the view: browse start stays",
            slice=slice_.start.isoformat(),
            count=missing,
        )
        state = SliceState.VANISHED
    elif reading.waits:
        state = SliceState.LIVE
    else:
        # The join may have missed a successor in the same slice, inserted behind it just before its
        # predecessor became final in front of it.
        counts = await _counts(engine, slice_)
        state = SliceState.DRAINED if sum(counts.values()) == present.total() else SliceState.LIVE
    doubtful, is_unknown = frozenset(reading.doubtful), reading.is_unknown
    return DrainCheck(state, missing, doubtful, is_unknown, tuple(versions))


def _is_purged(watermark: entries.PurgeWatermark | None, closed: ClosedSlice) -> bool:
    """True if a purge ended every entry of a partition, so that no row that is gone is missed."""
    return (
        watermark is not None and moment_of(watermark.through) >= closed.slice_start + closed.window
    )


async def _check_blobs_deleted(
    engine: Engine, partition: entries.Partition
) -> tuple[PartitionVersion, bool]:
    """Return the version of a partition, and whether the bytes of all that its watermark ended are
    deleted; delete them where a purge stopped half way. The drain check uses this watermark: one
    that is set meanwhile ends entries whose bytes are not deleted yet. Bytes that the object store
    refuses to delete keep their slice for half of a row's lifetime, no longer: then the rows that
    name them expire."""
    version = await engine.view.version(partition)
    watermark = version.watermark
    if watermark is None or version.are_blobs_deleted:
        return version, True
    age = engine.clock.now() - watermark.at
    if age < PURGE_TIMEOUT:
        return version, False
    purged = await delete_purged_blobs(engine, partition, watermark)
    lifetime = await engine.row_lifetime() or FOREVER
    if purged.is_whole or age < lifetime / 2:
        return version, purged.is_whole
    engine.log.error(
        "the object store did not delete the bytes of purged mails: maintenance gives up on them",
        slice=partition.slice_start.isoformat(),
        bucket=partition.bucket_id,
    )
    metrics.UNDELETED.labels(*engine.labels).inc()
    await engine.view.mark_blobs_deleted(partition, watermark.through)
    return version, True


async def _counts(engine: Engine, slice_: Slice) -> dict[int, int]:
    counts = await asyncio.gather(
        *(engine.view.count_rows(each, None) for each in slice_.partitions)
    )
    return {
        partition.bucket_id: count.total
        for partition, count in zip(slice_.partitions, counts, strict=True)
    }


async def _marks_of_rows(
    view: View, partition: entries.Partition, version: PartitionVersion
) -> AsyncIterator[tuple[entries.EntryKey, entries.Mark | None]]:
    """Yield the entries of a partition with their marks; of the rows only the ids are read."""
    ids = view.blob_keys(partition, LAST)
    pairs = with_marks(view, partition, ids, itemgetter(0), version=version)
    async for (enqueue_id, _), mark in pairs:
        yield entries.EntryKey(partition.slice_start, partition.bucket_id, enqueue_id), mark


class _SliceReading:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._has_failed = False
        self.waits = False
        self.is_unknown = False
        self.doubtful: set[datetime] = set()

    async def take(self, key: entries.EntryKey, mark: entries.Mark | None) -> None:
        """Note an entry; finish its replacement, if it stopped half way."""
        if await self._is_settled(key, mark):
            return
        self.waits = True
        if mark is not None:
            self._doubt(mark)

    async def expired(self, partition: entries.Partition) -> int:
        """Return how many rows expired whose mails are over: their final marks, which expire later,
        are still there. A withdrawn entry does not count: it may have got its row after the slice
        was closed."""
        view, count = self._engine.view, 0
        rows = Ascending(view.blob_keys(partition, LAST))
        async for enqueue_id, mark in view.marks(partition):
            if await rows.at(enqueue_id) is not None:
                continue
            if not mark.is_final:
                self._doubt(mark)
            elif mark.ending is None or mark.ending.kind is not entries.EndingKind.WITHDRAWN:
                count += 1
        return count

    def _doubt(self, mark: entries.Mark) -> None:
        self.is_unknown |= mark.is_unknown
        if mark.successor is not None:
            self.doubtful.add(mark.successor.slice_start)

    async def _is_settled(self, key: entries.EntryKey, mark: entries.Mark | None) -> bool:
        """True if a mark settles its entry. A mail that fails keeps its slice, and affects no
        other. After the first error of a server no other mail is tried, because each may take as
        long."""
        if mark is None or mark.is_unknown:
            return False
        if mark.is_final and mark.delivered_at is None:
            return True
        if self._has_failed:
            return False
        try:
            return await _settle(self._engine, key, mark)
        except Exception as error:
            if isinstance(error, ViewError) and error.transient:
                raise
            self._has_failed = endings.is_common(error)
            endings.note(self._engine, key.enqueue_id)
            return False


async def _settle(engine: Engine, key: entries.EntryKey, mark: entries.Mark) -> bool:
    if mark.ending is None or mark.ending.kind is not entries.EndingKind.REPLACED:
        return mark.is_final
    row = await engine.view.row(key)
    if not isinstance(row, entries.Entry):
        return False
    if mark.is_unfinished_replacement:
        await replacement.finish(engine, row, mark)
    else:
        # A consumer that held the mail while it was replaced delivered it, and may have ended after
        # the mark; a held successor has no message that would lead a consumer to it.
        await replacement.propagate_delivery(engine, row, mark)
    return True
