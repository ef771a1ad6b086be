"""The archive of an embedded queue: segments that its store let go become lines of the lake, and
their files are deleted.

Each commit leaves a lake from which the same run, repeated, makes the same tables; a segment is
deleted only when the lake has it for good. Source: ADR 0063.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812  # its usual name

from postroad.adapters.disk.files import DiskFiles
from postroad.domain.instants import instant, microseconds
from postroad.domain.slices import Partition, slice_of
from postroad.embedded.archive import Archived, ArchivedName, DroppedName
from postroad.embedded.layout import NEW
from postroad.errors import StoreDamaged
from postroad.pipeline.addresses import KeptAddress
from postroad.pipeline.archive import JOB
from postroad.pipeline.embedded_parts import (
    BUCKET,
    HOUR,
    HistoryPart,
    PartKind,
    lines_of,
    parts_of,
    segment_part,
)
from postroad.pipeline.planning import ArchivedPartition, Gap, merged
from postroad.pipeline.runs import Run
from postroad.pipeline.spark.lake_schema import ENTRIES, PARTS
from postroad.pipeline.spark.store_lake import StoreLake
from postroad.ports.clock import Clock
from postroad.ports.marks import PartitionStamp

T = TypeVar("T")

KEPT_PARTS = timedelta(days=60)
"""How long parts of a mail wait for the rest: what a dropped segment had of it never comes."""


def archive_segments(
    lake: StoreLake,
    folder: Path,
    found: Archived,
    kept: KeptAddress,
    clock: Clock,
    run_id: UUID,
) -> Run:
    """Put what these segments in a folder have into the lake, and delete them. No other run may
    write the lake meanwhile."""
    began = clock.now()
    known = {row["salt"] for row in _segments(lake.parts()).collect()}
    # Before `parts` names others in their place: what it does not name is read.
    _delete(folder, [each for each in found.segments if each.salt.hex() in known])
    new = [each for each in found.segments if each.salt.hex() not in known]
    lines, left, counts = _read(lake, folder, new, kept, microseconds(began - KEPT_PARTS))
    lake.put_lines(lines)
    gaps = (
        Gap(slice_of(instant(one.first_us), HOUR), instant(one.before_us)) for one in found.dropped
    )
    before = lake.gaps()
    if (now := merged((*before, *gaps))) != before:
        lake.put_gaps(now)
    lake.put_slices(_whole_hours(lake, lines, new))
    read = {row["salt"] for row in _segments(left).collect()}
    lake.put_parts(left)
    counts |= {"segments": len(read), "gaps": len(found.dropped)}
    run = Run(run_id, JOB, began, clock.now(), counts)
    lake.put_run(run)
    _delete(folder, [*(each for each in new if each.salt.hex() in read), *found.dropped])
    return run


def _delete(folder: Path, names: Sequence[ArchivedName | DroppedName]) -> None:
    """Delete files of the archive; durable when it returns."""
    files = DiskFiles()
    for name in names:
        files.unlink(folder / str(name))
    if names and folder.exists():
        files.sync_directory(folder)


def _segments(parts: DataFrame) -> DataFrame:
    return parts.where(F.col("kind") == PartKind.SEGMENT.value).select("salt")


def _read(
    lake: StoreLake,
    folder: Path,
    segments: Sequence[ArchivedName],
    kept: KeptAddress,
    oldest_us: int,
) -> tuple[DataFrame, DataFrame, dict[str, int]]:
    """Return lines of `entries`, the parts that are left, and what was counted. Both stay as they
    were read."""
    session = lake.parts().sparkSession
    context = session.sparkContext
    paths = [str(folder / str(each)) for each in segments]
    decoded = context.parallelize(paths, len(paths) or 1).flatMap(partial(_decoded, kept))
    new = session.createDataFrame(decoded, PARTS.schema).localCheckpoint()
    of_mails = new.unionByName(lake.parts().where(~_is_of_segment()))
    mails = of_mails.where(~_is_of_segment()).rdd.map(_keyed).groupByKey()
    folded = mails.map(partial(_folded, oldest_us)).cache()
    lines = session.createDataFrame(folded.flatMap(_first), ENTRIES.schema).localCheckpoint()
    left = session.createDataFrame(folded.flatMap(_second), PARTS.schema)
    left = left.unionByName(new.where(F.col("kind") == PartKind.SEGMENT.value)).localCheckpoint()
    unreadable = F.col("kind") == PartKind.UNREADABLE.value
    counts = {"entries": lines.count(), "unreadable": new.where(unreadable).count()}
    folded.unpersist()
    return lines, left, counts


def _is_of_segment() -> Any:
    return F.col("kind").isin(PartKind.SEGMENT.value, PartKind.UNREADABLE.value)


def _decoded(kept: KeptAddress, path: str) -> Iterator[HistoryPart]:
    """Read one segment, by the store's own code. One that the store dropped meanwhile has no parts:
    its archive names it."""
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        return
    try:
        yield from parts_of(data, kept)
    except StoreDamaged:
        salt = path.rpartition(".")[2]
        yield HistoryPart("", 0, PartKind.UNREADABLE.value, salt, 0, None, None, "{}")
        yield segment_part(salt, 0)


def _keyed(row: Row) -> tuple[str, tuple[Any, ...]]:
    return row["mail_id"], tuple(row)


def _folded(
    oldest_us: int, mail: tuple[str, Iterable[tuple[Any, ...]]]
) -> tuple[list[tuple[Any, ...]], list[HistoryPart]]:
    parts = [HistoryPart(*each) for each in mail[1]]
    found = lines_of(parts)
    is_over = found.is_whole or max(each.since_us for each in parts) < oldest_us
    return found.lines, [] if is_over else parts


def _first(pair: tuple[list[Any], list[Any]]) -> list[Any]:
    return pair[0]


def _second(pair: tuple[list[Any], list[Any]]) -> list[Any]:
    return pair[1]


def _whole_hours(
    lake: StoreLake, lines: DataFrame, segments: Sequence[ArchivedName]
) -> list[ArchivedPartition]:
    """Return the hours whose new mail the lake has all of: those that ended before the last segment
    of it was begun."""
    begun = [each.created_us for each in segments if each.lane == NEW]
    if not begun:
        return []
    through = slice_of(instant(max(begun)), HOUR)
    last = lake.slice_lines().agg(F.max(F.unix_micros("slice_start"))).collect()[0][0]
    later = F.lit(True) if last is None else F.col("slice_start") > F.lit(instant(last))
    touched = lines.select("slice_start").distinct().withColumn("touched", F.lit(True))
    counted = (
        lake.entries()
        .where(F.col("slice_start") < F.lit(through))
        .join(F.broadcast(touched), "slice_start", "left")
        .where(later | F.col("touched").isNotNull())
        .groupBy(F.unix_micros("slice_start").alias("start"))
        .agg(F.count("*").alias("rows"), F.every("is_final").alias("is_over"))
    )
    return [
        ArchivedPartition(
            Partition(instant(row["start"]), BUCKET),
            PartitionStamp(),
            HOUR,
            is_settled=True,
            is_over=row["is_over"],
            is_final=True,
            rows=row["rows"],
        )
        for row in counted.collect()
    ]
