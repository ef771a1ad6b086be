"""Slices that can get no more rows: closed once, drained when every row has a final mark, or lies
behind a line that was swept.

Drained is decided by joining rows and marks by id, never by their numbers (invariant 6). Numbers
only guard the join: fewer rows than were counted at the close are rows that vanished, and rows that
came while the join ran make it invalid.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from operator import itemgetter

from postroad.domain.identifiers import LAST
from postroad.domain.slices import Partition, TurnKey
from postroad.domain.turns import EndingKind, Mark, Turn
from postroad.mailqueue import protocol, troubles
from postroad.mailqueue.browse import readable
from postroad.mailqueue.engine import Engine
from postroad.mailqueue.joining import with_marks
from postroad.mailqueue.sweep import sweep
from postroad.ports.view import ClosedSlice, Signs, View
from postroad.telemetry import metrics

SWEEPING = timedelta(minutes=10)
"""How long a purge may sweep a partition by itself before others do it for it."""


class State(Enum):
    """How a closed slice stands."""

    DRAINED = "every row has a final mark"
    LIVE = "a row waits"
    VANISHED = "rows that were counted are gone"


@dataclass(frozen=True, slots=True)
class Slice:
    """A slice as the present configurations divide it."""

    start: datetime
    buckets: int

    @property
    def partitions(self) -> list[Partition]:
        return [Partition(self.start, bucket) for bucket in range(self.buckets)]


def longest_window(engine: Engine) -> timedelta:
    """Return the longest window that any writer may still use. Raises: ConfigurationStale."""
    return max(each.slice_window for each in engine.configuration.effective().reading)


def closable(engine: Engine, first: datetime, now: datetime) -> list[Slice]:
    """Return the slices from `first` on that can get no more rows, in order."""
    last = now - longest_window(engine) - engine.timing.grace
    return [Slice(start, buckets) for start, buckets in readable(engine, first, last)]


async def close(engine: Engine, slice_: Slice) -> ClosedSlice | None:
    """Close a slice; return what stands, None for one without rows (nothing is written then)."""
    counts = await _counts(engine, slice_)
    rows = {bucket: count for bucket, count in counts.items() if count}
    if not rows:
        return None
    return await engine.view.close_slice(ClosedSlice(slice_.start, longest_window(engine), rows))


async def examine(engine: Engine, slice_: Slice, closed: ClosedSlice) -> State:
    """Say how a closed slice stands; finish replacements and purges that stopped half way in it.

    Raises: ServerError, ClockSkew, ConfigurationStale.
    """
    present: Counter[int] = Counter()
    for partition in slice_.partitions:
        signs = await _swept(engine, partition)
        if signs is None:
            return State.LIVE
        async for key, mark in _marks_of_rows(engine.view, partition, signs):
            if not await _is_settled(engine, key, mark):
                return State.LIVE
            present[partition.bucket_id] += 1
    missing = sum(max(count - present[bucket], 0) for bucket, count in closed.rows.items())
    metrics.VANISHED.labels(engine.label).set(missing)
    if missing:
        engine.log.error(
            "rows vanished from the view: browse start stays",
            slice=slice_.start.isoformat(),
            count=missing,
        )
        return State.VANISHED
    # A successor that lies in the same slice may have been inserted behind the join, just before
    # its predecessor became final in front of it.
    counts = await _counts(engine, slice_)
    return State.DRAINED if sum(counts.values()) == present.total() else State.LIVE


async def _swept(engine: Engine, partition: Partition) -> Signs | None:
    """Return the signs of a partition where no bytes are left of what their line ended; sweep where
    a purge stopped half way. The drained check goes by this line: one that is drawn meanwhile ends
    turns that nobody has swept."""
    signs = await engine.view.signs(partition)
    if signs.line is None or signs.is_swept:
        return signs
    if engine.clock.now() - signs.line.at < SWEEPING:
        return None
    swept = await sweep(engine, partition, signs.line)
    return signs if swept.is_whole else None


async def _counts(engine: Engine, slice_: Slice) -> dict[int, int]:
    """Count the rows of each bucket."""
    counts = await asyncio.gather(
        *(engine.view.count_rows(each, None) for each in slice_.partitions)
    )
    return {
        partition.bucket_id: count.total
        for partition, count in zip(slice_.partitions, counts, strict=True)
    }


async def _marks_of_rows(
    view: View, partition: Partition, signs: Signs
) -> AsyncIterator[tuple[TurnKey, Mark | None]]:
    """Yield the turns of a partition with their marks; of the rows only the ids are read."""
    ids = view.blob_keys(partition, LAST)
    async for (enqueue_id, _), mark in with_marks(view, partition, ids, itemgetter(0), signs=signs):
        yield TurnKey(partition.slice_start, partition.bucket_id, enqueue_id), mark


async def _is_settled(engine: Engine, key: TurnKey, mark: Mark | None) -> bool:
    """A mail that cannot be settled keeps its slice, and nothing else."""
    if mark is None or mark.is_unknown:
        return False
    if mark.is_final and mark.delivered_at is None:
        return True
    try:
        return await _settle(engine, key, mark)
    except Exception as error:
        if troubles.is_common(error):
            raise
        troubles.note(engine, key.enqueue_id)
        return False


async def _settle(engine: Engine, key: TurnKey, mark: Mark) -> bool:
    if mark.ending is None or mark.ending.kind is not EndingKind.REPLACED:
        return mark.is_final
    row = await engine.view.row(key)
    if not isinstance(row, Turn):
        return False
    if mark.is_unfinished_replacement:
        await protocol.finish(engine, row, mark)
    else:
        # It was delivered by somebody who had it in hand while it was replaced, and who may have
        # died after the mark: a held successor has no message that would ask.
        await protocol.hand_down_delivery(engine, row, mark)
    return True
