"""What the view shows of the configurations that its rows were written under, and of how well they
suit the mail. Adoptions and advice go by it. Only reads."""

from __future__ import annotations

from dataclasses import replace
from statistics import mean

from postroad.domain.configuration.advice import Seen, SliceCount
from postroad.domain.configuration.rules import ViewConfiguration
from postroad.domain.queues.entries import Entry
from postroad.domain.queues.slices import Partition
from postroad.domain.queues.wire import size_of
from postroad.ports.view import ClosedSlice, View

SAMPLE = 100
"""Rows whose sizes are averaged: the oldest of the fullest bucket of the busiest slice."""


async def has_rows(view: View) -> bool:
    """Return whether the view holds anything of this queue. Raises: ViewError."""
    return (await view.limits()).browse_start is not None


async def used_configurations(view: View) -> tuple[ViewConfiguration, ...]:
    """Return what the recorded closed slices were written under, at least. Raises: ViewError."""
    start = (await view.limits()).content_start
    if start is None:
        return ()
    found = {
        ViewConfiguration(closed.window, max(closed.rows, default=0) + 1): None
        async for closed in view.closed_slices(start)
    }
    return tuple(found)


async def observe(view: View) -> Seen:
    """Return what advice goes by: the recorded closed slices, one small read for some thousands,
    and one page of rows of the busiest. Raises: ViewError, CredentialsRefused."""
    seen = Seen(hosts=await view.hosts())
    start = (await view.limits()).content_start
    if start is None:
        return seen
    fullest: Partition | None = None
    async for closed in view.closed_slices(start):
        before = seen.busiest
        rows = sum(closed.rows.values())
        seen = seen.with_slice(SliceCount(closed.slice_start, closed.window, rows))
        if seen.busiest is not before:
            fullest = _fullest(closed)
    return seen if fullest is None else await _with_row_size(view, seen, fullest)


def _fullest(closed: ClosedSlice) -> Partition:
    bucket = max(closed.rows, key=lambda each: closed.rows[each], default=0)
    return Partition(closed.slice_start, bucket)


async def _with_row_size(view: View, seen: Seen, partition: Partition) -> Seen:
    sizes: list[int] = []
    async for row in view.rows(partition):
        if isinstance(row, Entry):
            sizes.append(size_of(row))
        if len(sizes) == SAMPLE:
            break
    return replace(seen, row_bytes=round(mean(sizes))) if sizes else seen
