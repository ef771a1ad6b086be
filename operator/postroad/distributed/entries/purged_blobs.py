"""Deletes the bytes of entries that ended by a purge watermark alone, by the hundreds.

A slice can only be drained after its purged blobs are deleted, so the drain check completes
interrupted purges. Safe to run several times at once. Source: ADR 0014.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from uuid import UUID

from postroad.distributed.engine.engine import Engine
from postroad.distributed.entries.endings import delete_bytes
from postroad.distributed.entries.live_slices import Ascending
from postroad.domain.queues.entries import EntryKey, Partition, PurgeWatermark

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
