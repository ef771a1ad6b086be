"""Sweeping: the bytes of what only the line of a purge ended are deleted, by the hundreds.

No slice is drained before it is swept, so whoever judges one sweeps what a purge left that stopped
half way. Safe to run several times at once. Source: ADR 0014.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from uuid import UUID

from postroad.distributed.endings import delete_bytes
from postroad.distributed.engine import Engine
from postroad.distributed.merge_join import Ascending
from postroad.domain.entries import PurgeLine
from postroad.domain.slices import Partition, TurnKey

TOGETHER = 500
"""Objects that one request deletes."""


_Ended = tuple[UUID, str | None]
"""A turn's id, and the name of its bytes where the row has one."""


@dataclass(slots=True)
class Swept:
    """What a sweep met: how many turns ended by nothing but a line, and replacements under way;
    and whether all bytes are gone."""

    removed: int = 0
    unfinished: list[TurnKey] = field(default_factory=list)
    is_whole: bool = True


async def sweep(
    engine: Engine, partition: Partition, line: PurgeLine, earlier: UUID | None = None
) -> Swept:
    """Delete the bytes of what a line ended, and say so in the view when all of them are gone.
    What an earlier line ended is not counted; a replacement under way keeps its slice until it is
    finished. Raises: ViewError."""
    swept, batch = Swept(), list[_Ended]()
    async for each in _unmarked(engine, partition, line, swept):
        batch.append(each)
        if len(batch) == TOGETHER:
            await _let_go(engine, partition, batch, earlier, swept)
            batch = []
    await _let_go(engine, partition, batch, earlier, swept)
    if swept.is_whole:
        await engine.view.mark_swept(partition, line.through)
    return swept


async def _unmarked(
    engine: Engine, partition: Partition, line: PurgeLine, swept: Swept
) -> AsyncIterator[_Ended]:
    """Yield the turns up to a line that have no mark, with the names of their bytes."""
    marked = Ascending(engine.view.marked(partition, line.through))
    async for enqueue_id, blob_key in engine.view.blob_keys(partition, line.through):
        is_unfinished = await marked.at(enqueue_id)
        if is_unfinished is None:
            yield enqueue_id, blob_key
        elif is_unfinished:
            swept.unfinished.append(TurnKey(partition.slice_start, partition.bucket_id, enqueue_id))


async def _let_go(
    engine: Engine, partition: Partition, ended: list[_Ended], earlier: UUID | None, swept: Swept
) -> None:
    """Delete the bytes of what a line ended, unless browse start has passed the slice: then marks
    may be missing because they were cleaned away between two pages, those of turns whose successors
    live on the bytes. The limits are read from the view, as in `endings.was_cleaned`."""
    if not ended:
        return
    if (await engine.view.limits()).have_passed(partition.slice_start):
        swept.is_whole = False
        return
    swept.removed += sum(earlier is None or enqueue_id > earlier for enqueue_id, _ in ended)
    keys = [blob_key for _, blob_key in ended if blob_key is not None]
    for _ in keys:
        engine.on_ending()
    swept.is_whole &= not keys or await delete_bytes(engine, keys)
