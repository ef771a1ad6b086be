"""Keeps what was read as it was read, so that no job reads it again: the view changes meanwhile."""

from __future__ import annotations

from pyspark.sql import DataFrame


def kept(lines: DataFrame) -> DataFrame:
    """Read these lines now, and return them as they are. With executors, two of them have each
    line, so that a job goes on when one ends; when both do, Spark raises, because it may not read
    the lines again."""
    session = lines.sparkSession
    if session.sparkContext._jsc.sc().isLocal():
        return lines.localCheckpoint()
    found = lines.localCheckpoint(eager=False)
    # Spark's own method has no level: `localCheckpoint` of an RDD lets a later `persist` name it.
    rows = found._jdf.queryExecution().analyzed().rdd()
    rows.persist(session._jvm.org.apache.spark.storage.StorageLevel.MEMORY_AND_DISK_2())
    rows.count()
    return found
