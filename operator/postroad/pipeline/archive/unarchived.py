"""What of a queue's view the lake does not have as it is now. Reads records and stamps, no rows.

The lake has a partition as it is once its slice is drained and its stamp is that of the last
reading. Before, a row may come that changes no stamp: a successor's, whose replacement was stopped.
Source: ADR 0073.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from postroad.distributed.entries.live_slices import occupied
from postroad.domain.configuration.rules import ViewConfiguration
from postroad.domain.queues.slices import Partition
from postroad.domain.values.identifiers import EPOCH
from postroad.pipeline.archive.archive import Stamps, read_stamps
from postroad.pipeline.archive.coverage import Coverage, Stretch
from postroad.pipeline.archive.planning import ArchivedPartition, Gap, without_reading
from postroad.ports.view import Limits, View

LEEWAY = timedelta(hours=1)
"""How far the moment of an id and those of its entry may be apart; generous, since a slice more
costs little."""


async def unarchived(
    view: View,
    reading: Iterable[ViewConfiguration],
    archived: Mapping[Partition, ArchivedPartition],
    first: datetime,
    last: datetime,
) -> Stamps:
    """Return the partitions from `first` to `last` that have rows and may differ from what the lake
    has of them, with their stamps. `archived`: what the lake has of each, read before. Raises:
    ViewError."""
    drained = {each.slice_start: each async for each in view.closed_slices(first) if each.drained}
    final = {partition for partition, had in archived.items() if had.is_final}
    found = [each async for each in occupied(view, reading, first, last) if each not in final]
    return {
        partition: stamp
        for partition, stamp in (await read_stamps(view, found)).items()
        if (closed := drained.get(partition.slice_start)) is None
        or without_reading(archived.get(partition), closed, stamp) is None
    }


def near(stamps: Stamps, stretch: Stretch, window: timedelta) -> Stamps:
    """Return the partitions that may have entries of a stretch of time. `window`: the longest of
    their slices."""
    first = max(stretch.first, EPOCH + LEEWAY + window) - LEEWAY - window
    return {
        partition: stamp
        for partition, stamp in stamps.items()
        if first < partition.slice_start and partition.slice_start - LEEWAY < stretch.before
    }


def with_view(coverage: Coverage, limits: Limits) -> Coverage:
    """Return how far lake and view together cover a stretch that the lake covers so far: what
    cleanup deleted since the archive last read it is lacking still."""
    begun = limits.content_start
    lacking = tuple(
        Gap(gap.first, min(gap.before, begun))
        for gap in coverage.lacking
        if begun is not None and gap.first < begun
    )
    return replace(coverage, lacking=lacking, as_of=None)
