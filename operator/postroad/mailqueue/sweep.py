"""Sweeping: the bytes of what only the line of a purge ended are deleted, by the hundreds.

No slice is drained before it is swept, so whoever judges one sweeps what a purge left that stopped
half way. Safe to run several times at once. Source: ADR 0014.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from uuid import UUID

from postroad.domain.slices import Partition, TurnKey
from postroad.domain.turns import PurgeLine
from postroad.mailqueue.endings import delete_bytes
from postroad.mailqueue.engine import Engine
from postroad.mailqueue.joining import Ascending

TOGETHER = 500
"""Objects that one request deletes."""


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
    swept, keys = Swept(), list[str]()
    async for enqueue_id, blob_key in _unmarked(engine, partition, line, swept):
        swept.removed += earlier is None or enqueue_id > earlier
        if blob_key is not None:
            keys.append(blob_key)
        if len(keys) == TOGETHER:
            swept.is_whole &= await _let_go(engine, keys)
            keys = []
    swept.is_whole &= await _let_go(engine, keys)
    if swept.is_whole:
        await engine.view.mark_swept(partition, line.through)
    return swept


async def _unmarked(
    engine: Engine, partition: Partition, line: PurgeLine, swept: Swept
) -> AsyncIterator[tuple[UUID, str | None]]:
    """Yield the turns up to a line that have no mark, with the names of their bytes."""
    marked = Ascending(engine.view.marked(partition, line.through))
    async for enqueue_id, blob_key in engine.view.blob_keys(partition, line.through):
        is_unfinished = await marked.at(enqueue_id)
        if is_unfinished is None:
            yield enqueue_id, blob_key
        elif is_unfinished:
            swept.unfinished.append(TurnKey(partition.slice_start, partition.bucket_id, enqueue_id))


async def _let_go(engine: Engine, keys: list[str]) -> bool:
    """Delete bytes. Returns whether they are gone."""
    for _ in keys:
        engine.on_ending()
    return not keys or await delete_bytes(engine, keys)
