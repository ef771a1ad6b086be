"""The lake of an embedded queue: that of any queue, and what is not whole yet of its mails."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # its usual name

from postroad.domain.instants import instant, microseconds
from postroad.pipeline.spark.lake import CATALOG, LakeTables, name_lake
from postroad.pipeline.spark.lake_schema import STORE_TABLES, LakeTable
from postroad.pipeline.spark.ranges import ranges_of, within

_HOUR = timedelta(hours=1)


class StoreLake(LakeTables):
    """The tables of one lake, with `parts`: `lake_schema.PARTS`."""

    _tables: Mapping[str, LakeTable] = STORE_TABLES

    def parts(self) -> DataFrame:
        """Return the parts of mails whose history is not whole, and the segments that were read
        last."""
        return self._table("parts")

    def placed_lines(self) -> DataFrame:
        """Return the entries: `slices` has whole hours alone."""
        return self.entries()

    def put_lines(self, lines: DataFrame) -> None:
        """Put entries into the lake, each in place of its former line. What has ended stays so: a
        file that comes back, as with a backup, has less than the lake knows."""
        starts = lines.select(F.unix_micros("slice_start")).distinct().collect()
        if not starts:
            return
        hours = within(
            F.col("slice_start"), ranges_of((instant(each[0]) for each in starts), _HOUR)
        )
        had, is_over = self.entries().where(hours), F.col("is_final")
        ended = had.where(is_over).select("enqueue_id")
        given = lines.where(is_over).unionByName(
            lines.where(~is_over).join(ended, "enqueue_id", "left_anti")
        )
        others = had.join(given.select("enqueue_id"), "enqueue_id", "left_anti")
        self._overwrite("entries", given.unionByName(others), hours)

    def put_parts(self, parts: DataFrame) -> None:
        """Replace all parts."""
        self._overwrite("parts", parts, F.lit(True))

    def drop_before(self, day: datetime) -> None:
        """Delete entries, slices and parts from before a day. The segments that were read last stay
        named: their files would be read again."""
        super().drop_before(day)
        is_late = F.col("since_us") >= F.lit(microseconds(day))
        self.put_parts(self.parts().where(is_late | (F.col("mail_id") == "")))


def open_store_lake(session: SparkSession, folder: Path, *, create: bool = False) -> StoreLake:
    """Open the lake in a directory. Raises: as `open_lake`."""
    name_lake(session, f"file:{folder}", {})  # Hadoop takes no escapes
    lake = StoreLake(session, CATALOG)
    lake.create() if create else lake.check()
    return lake
