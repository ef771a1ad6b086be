"""How many rows the slices of the lake had."""

from __future__ import annotations

from datetime import timedelta

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # its usual name

from postroad.domain.configuration.advice import SliceCount
from postroad.domain.values.instants import instant
from postroad.pipeline.archive.coverage import Stretch
from postroad.pipeline.spark.lake.ranges import within


def slice_counts(slices: DataFrame, stretch: Stretch) -> list[SliceCount]:
    """Return the counts of the slices that start in a stretch of time, in order, from lines of
    `lake_schema.SLICES`."""
    near = slices.where(within(F.col("slice_start"), [stretch]))
    counted = near.groupBy(F.unix_micros("slice_start").alias("start")).agg(
        F.max("window_seconds").alias("seconds"), F.sum("row_count").alias("row_count")
    )
    return [
        SliceCount(instant(row.start), timedelta(seconds=row.seconds), row.row_count)
        for row in counted.orderBy("start").collect()
    ]
