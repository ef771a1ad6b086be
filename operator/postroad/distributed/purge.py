"""Purge: one line through each partition ends all older turns at once, however many they are.

A line may be drawn only where no more rows come, so it stays a grace period behind (invariant 7);
mails with younger turns are removed one by one. Then the bytes of all that the lines ended are
deleted, and replacements under way are followed to their successors. "Behind a line" is what it
ended: ids up to its own. Source: ADR 0014.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from uuid import UUID

from postroad.distributed.concurrency import count, each_of
from postroad.distributed.engine import Engine
from postroad.distributed.live_slices import live_slices
from postroad.distributed.purged_blobs import sweep
from postroad.distributed.remove import remove_after, remove_turn
from postroad.distributed.replacement import finish, is_removed, replacement_of
from postroad.domain.entries import PurgeLine, Turn
from postroad.domain.identifiers import id_at, moment_of
from postroad.domain.selection import Selector
from postroad.domain.slices import Partition, TurnKey


async def purge(engine: Engine) -> int:
    """Remove the mails that wait now; return how many. Raises: ViewError, ClockSkew,
    ConfigurationStale; what was removed until then stays removed."""
    engine.check_open()
    now = engine.clock.now()
    # By a clock that is ahead, rows on their way look old: it is compared after it was read.
    await engine.bearings.refresh()
    await engine.bearings.check_clock()
    line = PurgeLine(id_at(now - engine.timing.grace, 0, 0), now)
    lined = await _draw(engine, line)
    swept = await count(each_of(lined), partial(_sweep, engine, line))
    younger = await remove_after(engine, line.through, Selector.all(), now)
    return swept + younger


@dataclass(frozen=True, slots=True)
class _Lined:
    """A partition with a line through it, and up to where an earlier one went."""

    partition: Partition
    earlier: UUID | None


async def _draw(engine: Engine, line: PurgeLine) -> list[_Lined]:
    """Draw the line through every partition that has older rows."""
    lined: list[_Lined] = []

    async def draw(partition: Partition) -> int:
        if (await engine.bearings.limits()).have_passed(partition.slice_start):
            return 0
        before = await engine.view.draw_line(partition, line)
        lined.append(_Lined(partition, None if before is None else before.through))
        return 1

    await count(_with_rows(engine, line), draw)
    return lined


async def _with_rows(engine: Engine, line: PurgeLine) -> AsyncIterator[Partition]:
    first = (await engine.bearings.limits()).browse_start
    if first is None:
        return
    async for live in live_slices(engine, first, moment_of(line.through)):
        for partition in live.partitions:
            is_older = live.closed is not None  # so are all its rows
            if is_older or await _any(engine.view.blob_keys(partition, line.through)):
                yield partition


async def _sweep(engine: Engine, line: PurgeLine, lined: _Lined) -> int:
    swept = await sweep(engine, lined.partition, line, lined.earlier)
    return swept.removed + sum([await _follow(engine, key) for key in swept.unfinished])


async def _follow(engine: Engine, key: TurnKey) -> int:
    """Remove a mail whose replacement is under way, by its successor. One that lies behind a line
    is over, and the mail with it; where it has no row, no sweep meets it."""
    view = engine.view
    row, mark = await view.row(key), await view.mark(key)
    if not isinstance(row, Turn) or mark is None or not mark.is_unfinished_replacement:
        return 0
    successor, _ = replacement_of(mark)
    has_row = await view.row(successor) is not None
    if mark.delivered_at is None and not has_row and is_removed(await view.mark(successor)):
        await finish(engine, row, mark)
        return 1
    return await remove_turn(engine, row, mark)


async def _any(items: AsyncIterator[object]) -> bool:
    return await anext(items, None) is not None
