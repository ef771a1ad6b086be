"""The slices in which mail may wait: those from browse start on that are not drained and not empty.

Reads of waiting mail go over these alone, so they cost requests for the slices in which mail waits,
not for the time since the oldest of them: a record marks a drained slice, and one request finds the
empty ones among many. Nothing here holds more than `TOGETHER` partitions, however long ago browse
start is.

Late mail: an entry before browse start that has a row and no final mark.

No entry that was over looks like this: cleanup deletes rows before marks, and a process that brings
a row back, after it was suspended or its machine paused, marks it before it publishes a message
(`replacement.insert_successor`). So the row came after its slice was passed, from a process whose
clock stood still (a virtual machine that its hypervisor paused) or was wrong in a way that no
comparison of clocks shows. The mail was acknowledged, so it gets a new entry. Source: ADR 0016;
invariant 7.

The rows of a partition joined with the marks of their entries."""

import heapq
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Generic, NamedTuple, TypeVar
from uuid import UUID

from postroad.distributed.engine.engine import Engine
from postroad.distributed.engine.limits_cache import Beginning
from postroad.distributed.entries import replacement
from postroad.domain.configuration.rules import ViewConfiguration
from postroad.domain.queues import entries
from postroad.domain.values.identifiers import FIRST
from postroad.errors import Undecodable
from postroad.ports.marks import PartitionVersion
from postroad.ports.view import ClosedSlice, View
from postroad.telemetry import metrics

TOGETHER = 100
"""Partitions that one request asks about. Cassandra reads each of them, nearly always without the
disk, and holds the replies of all together."""


class Slice(NamedTuple):
    """A slice as the present configurations divide it, and the record of its close."""

    start: datetime
    buckets: int
    closed: ClosedSlice | None = None

    @property
    def partitions(self) -> list[entries.Partition]:
        return [entries.Partition(self.start, bucket) for bucket in range(self.buckets)]


@dataclass(frozen=True, slots=True)
class LiveSlice:
    """A slice that is not drained, and its partitions that have rows, in order."""

    start: datetime
    partitions: list[entries.Partition]
    closed: ClosedSlice | None


def readable(engine: Engine, first: datetime, last: datetime) -> Iterator[tuple[datetime, int]]:
    """Yield the slices from `first` to `last` with their numbers of buckets, in order, under every
    configuration that rows may have been written with. Raises: ConfigurationStale."""
    return slices_under(engine.configuration.effective().reading, first, last)


def slices_under(
    configurations: Iterable[ViewConfiguration], first: datetime, last: datetime
) -> Iterator[tuple[datetime, int]]:
    """Yield in order the slices from `first` to `last`, with their buckets, under these."""
    streams = [
        _sliced(first, last, each.slice_window, each.bucket_count) for each in configurations
    ]
    return streams[0] if len(streams) == 1 else _merged(streams)


def _sliced(
    first: datetime, last: datetime, window: timedelta, buckets: int
) -> Iterator[tuple[datetime, int]]:
    return ((start, buckets) for start in entries.slices_between(first, last, window))


def _merged(streams: list[Iterator[tuple[datetime, int]]]) -> Iterator[tuple[datetime, int]]:
    """Merge streams of slices; a start that several have gets the most of their buckets."""
    known: tuple[datetime, int] | None = None
    for start, buckets in heapq.merge(*streams):
        if known is not None and known[0] != start:
            yield known
        known = (start, buckets)  # of equal starts the one with the most buckets comes last
    if known is not None:
        yield known


async def occupied(
    view: View, configurations: Iterable[ViewConfiguration], first: datetime, last: datetime
) -> AsyncIterator[entries.Partition]:
    """Yield the partitions from `first` to `last` that have rows, slice by slice, under some
    configurations. Raises: ViewError."""
    known = tuple(configurations)
    slices = slices_under(known, first, last)
    at_once = max(1, TOGETHER // max(each.bucket_count for each in known))
    while together := list(islice(slices, at_once)):
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
) -> AsyncIterator[tuple[entries.Partition, ClosedSlice | None]]:
    """Yield the partitions in which mail may wait when an operation begins, each with the record of
    its slice's close. Raises: as `live_slices`."""
    if began.browse_start is None:
        return
    async for live in live_slices(engine, began.browse_start, began.latest):
        for partition in live.partitions:
            yield partition, live.closed


async def rescue_if_late(engine: Engine, key: entries.EntryKey) -> bool:
    """Give a new entry to an entry before browse start that had no final mark when it was read, if
    its row is there. Returns whether it was. Raises: as `replacement.replace`, Undecodable."""
    row = await engine.view.row(key)
    if row is None:
        return False
    if isinstance(row, entries.UndecodableRow):
        raise Undecodable(f"row {key.enqueue_id} cannot be decoded: {row.reason}")
    await rescue(engine, row)
    return True


async def rescue(engine: Engine, entry: entries.Entry) -> None:
    """Replace a late entry, as administration replaces one. The first of several processes to do so
    wins; the others finish its replacement. Raises: as `replacement.replace`."""
    successor = await engine.new_key(after=entry.enqueue_id)
    ending = entries.Ending(
        entries.EndingKind.REPLACED, engine.clock.now(), successor, entries.Change.nothing(entry)
    )
    standing = await engine.view.end(entry.key, ending, entry.traits)
    if standing is None:
        metrics.LATE.labels(*engine.labels).inc()
        engine.log.error(
            "a mail came too late for its slice and gets a new entry: a clock is wrong",
            enqueue_id=str(entry.enqueue_id),
            slice=entry.key.slice_start.isoformat(),
        )
    await replacement.finish(engine, entry, standing or entries.Mark(ending=ending))


V = TypeVar("V")


async def with_marks(
    view: View,
    partition: entries.Partition,
    rows: AsyncIterator[V],
    id_of: Callable[[V], UUID],
    after: UUID | None = None,
    version: PartitionVersion | None = None,
) -> AsyncIterator[tuple[V, entries.Mark | None]]:
    """Join rows, or what was read of them, with their marks: both come in the order of ids. A page
    of marks can be older than the page of rows it meets: then an entry that just ended is seen
    waiting, never the other way round. The version is read just before the rows, unless the caller
    has one, and its watermark holds: no mark is ever added at or below the purge watermark."""
    found = Ascending(view.marks(partition, after))
    async for row in rows:
        if version is None:
            version = await view.version(partition)
        enqueue_id = id_of(row)
        own = await found.at(enqueue_id)
        through = version.watermark
        by_watermark = None if through is None else through.mark_of(enqueue_id)
        yield row, own or by_watermark


class Ascending(Generic[V]):
    """Looks up ids, given in their order, in a stream in the order of ids."""

    def __init__(self, items: AsyncIterator[tuple[UUID, V]]) -> None:
        """Reads nothing before the first call of `at`."""
        self._items = items
        self._head: tuple[UUID, V | None] | None = (FIRST, None)

    async def at(self, enqueue_id: UUID) -> V | None:
        """Return the value under an id, None where there is none."""
        while self._head is not None and self._head[0] < enqueue_id:
            self._head = await anext(self._items, None)
        return self._head[1] if self._head is not None and self._head[0] == enqueue_id else None
