"""The job `export`: a table of the lake as files that need no Iceberg."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # its usual name

from postroad.pipeline.archive.coverage import Stretch
from postroad.pipeline.spark.lake.lake import LakeTables
from postroad.pipeline.spark.lake.ranges import within

BY: dict[str, str] = {"entries": "enqueued_at", "slices": "slice_start", "runs": "began_at"}
"""Table → the moment by which a stretch of time chooses its lines."""


def export(lake: LakeTables, table: str, stretch: Stretch, folder: str, kind: str) -> int:
    """Write the lines of a stretch of time into a new folder, the URI of any file system that
    Hadoop knows, as Parquet (`parquet`) or JSON lines (`json`); return how many. Moments are in
    UTC: those of Parquet by their type, those of JSON are RFC 3339."""
    lines = _table(lake, table).where(within(F.col(BY[table]), [stretch]))
    writer = lines.write.mode("error")
    if kind == "parquet":
        # Spark's own default has no zone, and other readers take it for local time.
        lines.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        writer.option("compression", "zstd").parquet(folder)
    else:
        writer.option("timestampFormat", "yyyy-MM-dd'T'HH:mm:ss.SSSXXX").json(folder)
    count: int = lines.sparkSession.read.format(kind).load(folder).count()
    return count


def _table(lake: LakeTables, name: str) -> DataFrame:
    tables = {"entries": lake.entries, "slices": lake.slice_lines, "runs": lake.run_lines}
    return tables[name]()
