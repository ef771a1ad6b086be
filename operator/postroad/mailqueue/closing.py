"""Slices that can get no more rows: closed once, drained when every row has a final mark.

Drained is decided by joining rows and marks by id, never by their numbers (invariant 6). Numbers
only guard the join: fewer rows than were counted at the close are rows that vanished, and rows that
came while the join ran make it invalid.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from postroad.domain.slices import Partition
from postroad.domain.turns import Mark, Turn
from postroad.mailqueue import protocol, troubles
from postroad.mailqueue.browse import joined, readable
from postroad.mailqueue.engine import Engine
from postroad.ports.view import ClosedSlice
from postroad.telemetry import metrics


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


def closable(engine: Engine, first: datetime) -> list[Slice]:
    """Return the slices from `first` on that can get no more rows, in order."""
    last = engine.clock.now() - longest_window(engine) - engine.timing.grace
    return [Slice(start, buckets) for start, buckets in readable(engine, first, last)]


async def close(engine: Engine, slice_: Slice) -> ClosedSlice | None:
    """Close a slice; return what stands, None for one without rows (nothing is written then)."""
    rows: Counter[int] = Counter()
    live: Counter[str] = Counter()
    async for row, mark in joined(engine.view, slice_.partitions):
        rows[row.key.bucket_id] += 1
        if mark is None or mark.is_live:
            live.update(row.envelope.domains)
    if not rows:
        return None
    window = longest_window(engine)
    return await engine.view.close_slice(ClosedSlice(slice_.start, window, dict(rows), dict(live)))


async def examine(engine: Engine, slice_: Slice, closed: ClosedSlice) -> State:
    """Say how a closed slice stands; finish replacements that stopped half way in it.

    Raises: ServerError, ClockSkew, ConfigurationStale.
    """
    present: Counter[int] = Counter()
    async for row, mark in joined(engine.view, slice_.partitions):
        if not await _is_settled(engine, row, mark):
            return State.LIVE
        present[row.key.bucket_id] += 1
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
    now = engine.clock.now()
    counts = await asyncio.gather(
        *(engine.view.count_rows(each, now) for each in slice_.partitions)
    )
    return State.DRAINED if sum(each.total for each in counts) == present.total() else State.LIVE


async def _is_settled(engine: Engine, row: Turn, mark: Mark | None) -> bool:
    """A mail that cannot be settled keeps its slice, and nothing else."""
    try:
        return await _is_final(engine, row, mark)
    except Exception as error:
        if troubles.is_common(error):
            raise
        troubles.note(engine, row.enqueue_id)
        return False


async def _is_final(engine: Engine, row: Turn, mark: Mark | None) -> bool:
    if mark is None:
        return False
    if mark.is_unfinished_replacement:
        await protocol.finish(engine, row, mark)
        return True
    if mark.delivered_at is not None:
        # It was delivered by somebody who had it in hand while it was replaced, and who may have
        # died after the mark: a held successor has no message that would ask.
        await protocol.hand_down_delivery(engine, row, mark)
    return mark.is_final
