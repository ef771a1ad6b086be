"""Size: rows less marks, counted on the servers, partition by partition; no mail is read."""

from __future__ import annotations

import asyncio
from datetime import datetime

from postroad.domain.slices import Partition
from postroad.mailqueue.browse import readable
from postroad.mailqueue.engine import Engine
from postroad.ports.queue import Sizes
from postroad.ports.view import Counts

AT_ONCE = 16
"""Partitions counted at the same time."""


async def size(engine: Engine) -> Sizes:
    """Count the mails that wait. Raises: ViewError, ConfigurationStale."""
    now = engine.clock.now()
    first = (await engine.bearings.refresh()).browse_start
    if first is None:
        return Sizes(0, 0, 0, await engine.view.count_buried())
    closed = {each.slice_start: each async for each in engine.view.closed_slices(first)}
    _forget_before(engine, first)
    turnstile = asyncio.Semaphore(AT_ONCE)
    counting = [
        _live(engine, Partition(start, bucket), now, turnstile, is_closed=start in closed)
        for start, buckets in readable(engine, first, now + engine.timing.skew)
        if start not in closed or not closed[start].drained
        for bucket in range(buckets)
    ]
    counted, dead_letters = await asyncio.gather(
        asyncio.gather(*counting), engine.view.count_buried()
    )
    return Sizes(
        size=sum(each.total for each in counted),
        delayed=sum(each.delayed for each in counted),
        held=sum(each.held for each in counted),
        dead_letters=dead_letters,
    )


async def _live(
    engine: Engine,
    partition: Partition,
    now: datetime,
    turnstile: asyncio.Semaphore,
    *,
    is_closed: bool,
) -> Counts:
    """Marks are counted first: every mark has its row by then, so no count is ever negative.

    The rows of a closed slice are counted again only when its marks became more, as soon as none of
    them is delayed any more: a successor that was given up gets its row and its mark at any time.
    """
    async with turnstile:
        counted_at, rows = engine.closed_rows.get(partition, (None, None))
        # Where no row is delayed, nobody asks how many of the ended ones were.
        marks = await engine.view.count_marks(partition, now if rows is None else None)
        if rows is None or counted_at != marks.total:
            rows = await engine.view.count_rows(partition, now)
            if is_closed and rows.delayed == 0:
                engine.closed_rows[partition] = (marks.total, rows)
    # Only rows that are older than their lifetime can be fewer than their marks, which are younger.
    return Counts(
        total=max(rows.total - marks.total, 0),
        delayed=max(rows.delayed - marks.delayed, 0),
        held=max(rows.held - marks.held, 0),
    )


def _forget_before(engine: Engine, first: datetime) -> None:
    for partition in [each for each in engine.closed_rows if each.slice_start < first]:
        del engine.closed_rows[partition]
