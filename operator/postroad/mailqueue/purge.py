"""Purge: one line through each partition ends all older turns at once, however many they are.

A line may be drawn only where no more rows come, so it stays a grace period behind (invariant 7);
mails with younger turns are removed one by one. Replacements under way are followed to their
successors. Then the bytes of all that the lines ended are deleted; where that stops
half way, messages delete them when they come and find the line. Source: ADR 0014.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

from postroad.domain.identifiers import id_at, moment_of
from postroad.domain.selectors import Selector
from postroad.domain.slices import Partition, TurnKey
from postroad.domain.turns import PurgeLine
from postroad.mailqueue.browse import readable
from postroad.mailqueue.bulk import count
from postroad.mailqueue.engine import Engine
from postroad.mailqueue.remove import delete_bytes, remove_after, remove_turn
from postroad.ports.view import View

T = TypeVar("T")

TOGETHER = 500
"""Objects that one request deletes."""


@dataclass(frozen=True, slots=True)
class _Lined:
    """A partition with a line through it, and up to where an earlier one had ended its turns."""

    partition: Partition
    line: PurgeLine
    before: UUID | None


async def purge(engine: Engine) -> int:
    """Remove the mails that wait now; return how many. Raises: ViewError, ClockSkew,
    ConfigurationStale; what was removed until then stays removed."""
    engine.check_open()
    await engine.bearings.check_clock()  # by one that is ahead, rows on their way look old
    now = engine.clock.now()
    line = PurgeLine(id_at(now - engine.timing.grace, 0, 0), now)
    lined = await _draw(engine, line)
    followed = await count(_each(lined), lambda each: _follow(engine, each))
    swept = await count(_each(lined), lambda each: _sweep(engine, each))
    younger = await remove_after(engine, line.through, Selector.all(), now)
    return followed + swept + younger


async def _draw(engine: Engine, line: PurgeLine) -> list[_Lined]:
    """Draw the line through every partition that has older rows."""
    lined: list[_Lined] = []

    async def one(partition: Partition) -> int:
        if (await engine.bearings.limits()).have_passed(partition.slice_start):
            return 0
        before = await engine.view.draw_line(partition, line)
        lined.append(_Lined(partition, line, None if before is None else before.through))
        return 1

    await count(_with_rows(engine, line), one)
    return lined


async def _with_rows(engine: Engine, line: PurgeLine) -> AsyncIterator[Partition]:
    first = (await engine.bearings.refresh()).browse_start
    if first is None:
        return
    closed = {each.slice_start: each async for each in engine.view.closed_slices(first)}
    for start, buckets in readable(engine, first, moment_of(line.through)):
        known = closed.get(start)
        for partition in (Partition(start, bucket) for bucket in range(buckets)):
            if known is None:
                has_rows = await _any(engine.view.blob_keys(partition, line.through))
            else:
                has_rows = not known.drained and known.rows.get(partition.bucket_id, 0) > 0
            if has_rows:
                yield partition


async def _follow(engine: Engine, lined: _Lined) -> int:
    """Remove the successors of turns whose replacement is under way. They get their rows first:
    what lies behind a line too is swept with the others. (Successors that have their rows are
    swept, or met among the younger turns.)"""
    removed = 0
    async for enqueue_id, mark in engine.view.unfinished(lined.partition):
        key = TurnKey(lined.partition.slice_start, lined.partition.bucket_id, enqueue_id)
        row = await engine.view.row(key)
        if row is not None:
            removed += await remove_turn(engine, row, mark)
    return removed


async def _sweep(engine: Engine, lined: _Lined) -> int:
    """Delete the bytes of all that only a line ended; count what this one did."""
    removed, keys = 0, list[str]()
    async for enqueue_id, blob_key in _unmarked(engine.view, lined):
        removed += lined.before is None or enqueue_id > lined.before
        keys.append(blob_key)
        if len(keys) == TOGETHER:
            await _let_go(engine, keys)
            keys = []
    await _let_go(engine, keys)
    return removed


async def _let_go(engine: Engine, keys: list[str]) -> None:
    if keys:
        await delete_bytes(engine, keys)
    for _ in keys:
        engine.on_ending()


async def _unmarked(view: View, lined: _Lined) -> AsyncIterator[tuple[UUID, str]]:
    """Yield the turns behind a line that have no mark, with the names of their bytes."""
    through = lined.line.through
    marked = view.marked(lined.partition, through)
    head = await anext(marked, None)
    async for enqueue_id, blob_key in view.blob_keys(lined.partition, through):
        while head is not None and head < enqueue_id:
            head = await anext(marked, None)
        if head != enqueue_id:
            yield enqueue_id, blob_key


async def _any(items: AsyncIterator[object]) -> bool:
    return await anext(items, None) is not None


async def _each(items: list[T]) -> AsyncIterator[T]:
    for each in items:
        yield each
