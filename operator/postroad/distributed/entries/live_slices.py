"""The slices in which mail may wait: those from browse start on that are not drained and not empty.

Reads of waiting mail go over these alone, so they cost requests for the slices in which mail waits,
not for the time since the oldest of them: a record marks a drained slice, and one request finds the
empty ones among many. Nothing here holds more than `TOGETHER` partitions, however long ago browse
start is.
"""

from __future__ import annotations

import heapq
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import NamedTuple

from postroad.distributed.engine.engine import Engine
from postroad.distributed.engine.limits_cache import Beginning
from postroad.domain.configuration.rules import ViewConfiguration
from postroad.domain.queues.entries import Partition, slices_between
from postroad.ports.view import ClosedSlice, View

TOGETHER = 100
"""Partitions that one request asks about. Cassandra reads each of them, nearly always without the
disk, and holds the replies of all together."""


SLICES = 50
"""Slices whose rows one request of `occupied` looks for."""


class Slice(NamedTuple):
    """A slice as the present configurations divide it, and the record of its close."""

    start: datetime
    buckets: int
    closed: ClosedSlice | None = None

    @property
    def partitions(self) -> list[Partition]:
        return [Partition(self.start, bucket) for bucket in range(self.buckets)]


@dataclass(frozen=True, slots=True)
class LiveSlice:
    """A slice that is not drained, and its partitions that have rows, in order."""

    start: datetime
    partitions: list[Partition]
    closed: ClosedSlice | None


def readable(engine: Engine, first: datetime, last: datetime) -> Iterator[tuple[datetime, int]]:
    """Yield the slices from `first` to `last` with their numbers of buckets, in order, under every
    configuration that rows may have been written with. Raises: ConfigurationStale."""
    return slices_under(engine.configuration.effective().reading, first, last)


def slices_under(
    configurations: Iterable[ViewConfiguration], first: datetime, last: datetime
) -> Iterator[tuple[datetime, int]]:
    """Yield the slices from `first` to `last` with their numbers of buckets, in order, under some
    configurations."""
    streams = [
        _sliced(first, last, each.slice_window, each.bucket_count) for each in configurations
    ]
    return streams[0] if len(streams) == 1 else _merged(streams)


def _sliced(
    first: datetime, last: datetime, window: timedelta, buckets: int
) -> Iterator[tuple[datetime, int]]:
    return ((start, buckets) for start in slices_between(first, last, window))


def _merged(streams: list[Iterator[tuple[datetime, int]]]) -> Iterator[tuple[datetime, int]]:
    """Merge streams of slices; a start that several configurations share has the most of their
    buckets."""
    known: tuple[datetime, int] | None = None
    for start, buckets in heapq.merge(*streams):
        if known is not None and known[0] != start:
            yield known
        known = (start, buckets)  # of equal starts the one with the most buckets comes last
    if known is not None:
        yield known


async def occupied(
    view: View, configurations: Iterable[ViewConfiguration], first: datetime, last: datetime
) -> AsyncIterator[Partition]:
    """Yield the partitions from `first` to `last` that have rows, slice by slice, under some
    configurations. Raises: ViewError."""
    slices = slices_under(configurations, first, last)
    while together := list(islice(slices, SLICES)):
        buckets = max(each for _, each in together)
        for partition in sorted(await view.occupied([start for start, _ in together], buckets)):
            yield partition


async def standing(engine: Engine, first: datetime, last: datetime) -> AsyncIterator[Slice]:
    """Yield every slice from `first` to `last`, in order, with the record of its close.
    Raises: ViewError, ConfigurationStale."""
    records = engine.view.closed_slices(first)
    record = await anext(records, None)
    for start, buckets in readable(engine, first, last):
        while record is not None and record.slice_start < start:
            record = await anext(records, None)
        is_closed = record is not None and record.slice_start == start
        yield Slice(start, buckets, record if is_closed else None)


async def live_slices(engine: Engine, first: datetime, last: datetime) -> AsyncIterator[LiveSlice]:
    """Yield the slices from `first` to `last` in which mail may wait, in order: not drained, and
    with rows when they were read, which is after the call. A row that comes later is that of a mail
    which was not there yet, or which waited under another row. Raises: ViewError,
    ConfigurationStale."""
    together: list[Slice] = []
    asked = 0
    async for each in standing(engine, first, last):
        if each.closed is not None and each.closed.drained:
            continue
        together.append(each)
        asked = max(asked, each.buckets)
        if len(together) * asked >= TOGETHER:
            for live in await with_rows(engine, together):
                yield live
            together, asked = [], 0
    for live in await with_rows(engine, together):
        yield live


async def with_rows(engine: Engine, slices: Sequence[Slice]) -> list[LiveSlice]:
    """Return those of a few slices that have rows, in their order. Raises: ViewError."""
    if not slices:
        return []
    buckets = max(each.buckets for each in slices)
    occupied = await engine.view.occupied([each.start for each in slices], buckets)
    with_rows = {part.slice_start for part in occupied}
    found = (
        LiveSlice(each.start, [part for part in each.partitions if part in occupied], each.closed)
        for each in slices
        if each.start in with_rows
    )
    return [each for each in found if each.partitions]


async def live_partitions(
    engine: Engine, began: Beginning
) -> AsyncIterator[tuple[Partition, ClosedSlice | None]]:
    """Yield the partitions in which mail may wait when an operation begins, each with the record of
    its slice's close. Raises: as `live_slices`."""
    if began.browse_start is None:
        return
    async for live in live_slices(engine, began.browse_start, began.latest):
        for partition in live.partitions:
            yield partition, live.closed
