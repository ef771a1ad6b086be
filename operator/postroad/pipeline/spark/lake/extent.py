"""Extent of a queue's history in the lake."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial, reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # its usual name

from postroad.domain.configuration.advice import SliceCount
from postroad.domain.values.instants import instant, optional_instant
from postroad.pipeline.archive.archive import JOB
from postroad.pipeline.archive.planning import Coverage, Gap, Stretch, coverage_of
from postroad.pipeline.spark.lake.lake import LakeTables, within
from postroad.pipeline.spark.lake.store_lake import StoreLake


@dataclass(frozen=True, slots=True)
class Extent:
    """Extent of a queue's slices in the lake. `first`: the start of the first one. `begun`,
    `through`: from when on and until when it has all but the `gaps`: the start of the first, the
    end of the last. `as_of`: begin of the last run of the archive."""

    first: datetime | None
    begun: datetime | None
    through: datetime | None
    gaps: tuple[Gap, ...]
    as_of: datetime | None

    def coverage(self, stretch: Stretch, archived_through: datetime | None) -> Coverage:
        """Return how far this covers a stretch. `archived_through` is that of the view: it passes
        slices without mail, which the lake has no line of."""
        known = [each for each in (self.through, archived_through) if each is not None]
        through = max(known) if self.begun and known else None
        return coverage_of(stretch, self.gaps, self.begun, through, self.as_of)


def extent_of(lake: LakeTables) -> Extent:
    """Return what the lake has; a partition whose last reading was discarded is a gap."""
    placed = lake.placed_lines().agg(F.min("slice_start").alias("at"))  # Iceberg knows it by itself
    # One query: each takes Spark about a second of a cold start.
    parts = (
        placed.select(F.unix_micros("at").alias("first")),
        lake.slice_lines().select(
            _end().alias("before"),
            F.when(_is_discarded(), F.struct(_start(), _end())).alias("lost"),
        ),
        lake.run_lines()
        .where(F.col("job") == JOB)
        .select(F.unix_micros("began_at").alias("began")),
    )
    found = reduce(partial(DataFrame.unionByName, allowMissingColumns=True), parts).agg(
        F.min("first"), F.max("before"), F.collect_set("lost"), F.max("began")
    )
    first, before, lost, began = found.collect()[0]
    begun = optional_instant(first)
    if isinstance(lake, StoreLake):
        times = lake.times()
        since, through = (None, None) if times is None else times
        return Extent(begun, since, through, lake.gaps(), through)
    gaps = (*lake.gaps(), *(Gap(instant(start), instant(end)) for start, end in lost))
    return Extent(begun, begun, optional_instant(before), gaps, optional_instant(began))


def _is_discarded() -> Column:
    return ~F.col("is_final") & (F.col("row_count") == 0)


def _start() -> Column:
    return F.unix_micros("slice_start")


def _end() -> Column:
    return F.unix_micros("slice_start") + F.col("window_seconds") * 1_000_000


def slice_counts(slices: DataFrame, stretch: Stretch) -> list[SliceCount]:
    """Return in order the counts of a stretch's slices, from lines of `lake_schema.SLICES`."""
    near = slices.where(within(F.col("slice_start"), [stretch]))
    counted = near.groupBy(F.unix_micros("slice_start").alias("start")).agg(
        F.max("window_seconds").alias("seconds"), F.sum("row_count").alias("row_count")
    )
    return [
        SliceCount(instant(row.start), timedelta(seconds=row.seconds), row.row_count)
        for row in counted.orderBy("start").collect()
    ]
