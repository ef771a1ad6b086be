"""Purge: one watermark in each partition ends all older entries at once, however many they are.

A watermark may be set only where no more rows come, so it stays a grace period behind now
(invariant 7); mails with younger entries are removed one by one. Then the bytes of all entries at
or below the watermarks are deleted, by the hundreds, and replacements under way are followed to
their successors. A slice can only be drained after its purged blobs are deleted, so the drain check
completes interrupted purges. Safe to run several times at once. Source: ADR 0014."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from uuid import UUID

from postroad.distributed.administration.remove import remove_after, remove_entry
from postroad.distributed.engine.engine import Engine
from postroad.distributed.engine.timing import count, each_of, results
from postroad.distributed.entries.endings import delete_bytes
from postroad.distributed.entries.live_slices import Ascending, live_slices
from postroad.distributed.entries.replacement import finish, is_removed, replacement_of
from postroad.domain.queues.entries import Entry, EntryKey, Partition, PurgeWatermark
from postroad.domain.queues.selection import Selector
from postroad.domain.values.identifiers import id_at, moment_of

TOGETHER = 500
"""Objects that one request deletes."""


_Ended = tuple[UUID, str | None]
"""An entry's id, and the key of its bytes where the row has one."""


@dataclass(slots=True)
class PurgedBlobs:
    """Number of entries that ended by the watermark alone, which replacements are under way, and
    whether all bytes are deleted."""

    removed: int = 0
    unfinished: list[EntryKey] = field(default_factory=list)
    is_whole: bool = True


async def delete_purged_blobs(
    engine: Engine, partition: Partition, watermark: PurgeWatermark, earlier: UUID | None = None
) -> PurgedBlobs:
    """Delete the bytes of entries at or below a watermark, and record in the view when all are
    deleted. Entries up to the `earlier` watermark are not counted; a replacement under way keeps
    its slice until it is finished. Raises: ViewError."""
    purged, batch = PurgedBlobs(), list[_Ended]()
    async for each in _unmarked(engine, partition, watermark, purged):
        batch.append(each)
        if len(batch) == TOGETHER:
            await _delete(engine, partition, batch, earlier, purged)
            batch = []
    await _delete(engine, partition, batch, earlier, purged)
    if purged.is_whole:
        await engine.view.mark_blobs_deleted(partition, watermark.through)
    return purged


async def _unmarked(
    engine: Engine, partition: Partition, watermark: PurgeWatermark, purged: PurgedBlobs
) -> AsyncIterator[_Ended]:
    """Yield the entries at or below a watermark that have no mark, with the keys of their bytes."""
    marked = Ascending(engine.view.marked(partition, watermark.through))
    async for enqueue_id, blob_key in engine.view.blob_keys(partition, watermark.through):
        is_unfinished = await marked.at(enqueue_id)
        if is_unfinished is None:
            yield enqueue_id, blob_key
        elif is_unfinished:
            purged.unfinished.append(
                EntryKey(partition.slice_start, partition.bucket_id, enqueue_id)
            )


async def _delete(
    engine: Engine,
    partition: Partition,
    ended: list[_Ended],
    earlier: UUID | None,
    purged: PurgedBlobs,
) -> None:
    """Delete the bytes of a batch, unless browse start has passed the slice: then cleanup may have
    deleted marks between two pages, also those of entries whose successors need the bytes. The
    limits are read from the view, as in `endings.was_cleaned`."""
    if not ended:
        return
    if (await engine.view.limits()).have_passed(partition.slice_start):
        purged.is_whole = False
        return
    purged.removed += sum(earlier is None or enqueue_id > earlier for enqueue_id, _ in ended)
    keys = [blob_key for _, blob_key in ended if blob_key is not None]
    for _ in keys:
        engine.on_ending()
    purged.is_whole &= not keys or await delete_bytes(engine, keys)


async def purge(engine: Engine, accepted_before: datetime | None = None) -> int:
    """Remove the mails that wait now, or those of them that were accepted before a moment; return
    how many. Raises: ViewError, ClockSkew, ConfigurationStale; what was removed until then stays
    removed."""
    engine.check_open()
    now = engine.clock.now()
    # To a clock that is ahead, rows on their way look old: check it after reading it.
    began = await engine.limits_cache.begin()
    await engine.limits_cache.check_clock()
    until = now if accepted_before is None else min(now, accepted_before)
    watermark = PurgeWatermark(id_at(until - engine.timing.grace, 0, 0), now)
    partitions = await _set_watermarks(engine, watermark, repeats=accepted_before is not None)
    delete = partial(_delete_blobs, engine, watermark)
    removed = await count(each_of(partitions), delete, is_repeated=accepted_before is not None)
    # Read anew: mails that changed their entries while bytes were deleted lie in later slices.
    later = await engine.limits_cache.begin()
    younger = Selector(everything=True, accepted_before=accepted_before)
    removed += await remove_after(engine, later, watermark.through, younger, began.latest)
    return removed


@dataclass(frozen=True, slots=True)
class _PurgedPartition:
    """A partition with a watermark, and the watermark it had before."""

    partition: Partition
    earlier: UUID | None


async def _set_watermarks(
    engine: Engine, watermark: PurgeWatermark, *, repeats: bool
) -> list[_PurgedPartition]:
    """Set the watermark in every partition that has older rows. `repeats`: where it is set already,
    this purge did it before it was killed, and counts all that it removed."""
    partitions: list[_PurgedPartition] = []

    async def set_one(partition: Partition) -> None:
        if (await engine.limits_cache.limits()).have_passed(partition.slice_start):
            return
        before = await engine.view.set_watermark(partition, watermark)
        if repeats and before is not None and before.through == watermark.through:
            before = None
        partitions.append(_PurgedPartition(partition, None if before is None else before.through))

    async for _ in results(_with_rows(engine, watermark), set_one):
        pass
    return partitions


async def _with_rows(engine: Engine, watermark: PurgeWatermark) -> AsyncIterator[Partition]:
    first = (await engine.limits_cache.limits()).browse_start
    if first is None:
        return
    async for live in live_slices(engine, first, moment_of(watermark.through)):
        for partition in live.partitions:
            is_older = live.closed is not None  # so are all its rows
            if is_older or await _any(engine.view.blob_keys(partition, watermark.through)):
                yield partition


async def _delete_blobs(engine: Engine, watermark: PurgeWatermark, purged: _PurgedPartition) -> int:
    deleted = await delete_purged_blobs(engine, purged.partition, watermark, purged.earlier)
    return deleted.removed + sum([await _follow(engine, key) for key in deleted.unfinished])


async def _follow(engine: Engine, key: EntryKey) -> int:
    """Remove a mail whose replacement is under way, through its successor. A successor at or below
    a watermark is over, and the mail with it; where it has no row, `delete_purged_blobs` does not
    meet it."""
    view = engine.view
    row, mark = await view.row(key), await view.mark(key)
    if not isinstance(row, Entry) or mark is None or not mark.is_unfinished_replacement:
        return 0
    successor, _ = replacement_of(mark)
    has_row = await view.row(successor) is not None
    if mark.delivered_at is None and not has_row and is_removed(await view.mark(successor)):
        await finish(engine, row, mark)
        return 1
    return await remove_entry(engine, row, mark)


async def _any(items: AsyncIterator[object]) -> bool:
    return await anext(items, None) is not None
