"""The lake of an embedded queue: that of any queue, and what is not whole yet of its mails."""

from collections.abc import Collection, Mapping
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # its usual name

from postroad.delivery_settings.lake_catalog import LakeCatalog
from postroad.domain.values.instants import instant
from postroad.pipeline.archive.embedded_parts import HOUR, HistoryReader, PartKind
from postroad.pipeline.archive.lake_files import KnownTimes, LakeFiles
from postroad.pipeline.spark.lake.catalogs import LakePlace, lake_place
from postroad.pipeline.spark.lake.history import (
    entry_lines,
    lost_hours,
    read_parts,
    unfinished_mails,
)
from postroad.pipeline.spark.lake.lake import CATALOG, LakeTables, name_lake, ranges_of, within
from postroad.pipeline.spark.lake.schema import ENTRIES, PARTS, STORE_TABLES, LakeTable
from postroad.pipeline.spark.session import kept

_LINE = tuple(ENTRIES.columns)

MAX_BROADCAST = 100_000
"""Ids of mails that each task has in memory, so that the parts of the others stay where they are:
some 10 MB."""


class SegmentFound(NamedTuple):
    """A segment that was read: up to where, where that was all of it; else how much of it could not
    be read."""

    salt: str
    end: int | None
    unreadable: int


class StoreLake(LakeTables):
    """The tables of one lake, with `parts`: `lake_schema.PARTS`."""

    _tables: Mapping[str, LakeTable] = STORE_TABLES

    def __init__(self, session: SparkSession, catalog: str, place: LakePlace, folder: Path) -> None:
        super().__init__(session, catalog, place)
        self._files = LakeFiles(folder, None if place.is_a_folder else place.namespace)
        self._taken: DataFrame
        self._left: DataFrame

    def create(self) -> None:
        super().create()
        if self._states["runs"] is None:  # a former lake's times
            self._files.forget()

    def parts(self) -> DataFrame:
        """Return the parts of mails whose history is not whole, and the segments that were
        read."""
        return self._table("parts")

    def read_segments(self) -> dict[str, int]:
        """Return up to which offset segments were read, by their salts."""
        if self._state("parts") is None:
            return {}
        found = self.parts().where(F.col("kind") == PartKind.SEGMENT.value)
        return {each["salt"]: each["end"] for each in found.select("salt", "end").collect()}

    def placed_lines(self) -> DataFrame:
        """Return the entries: `slices` has no lines."""
        return self.entries()

    def times(self) -> KnownTimes | None:
        """Return of which time the lake has what the store recorded; None: of none."""
        return self._files.times()

    def put_times(self, times: KnownTimes) -> None:
        """Say of which time the lake has what the store recorded, behind all else of a run."""
        self._files.put_times(times)

    # A run: first it takes what it lacks, and then puts it.

    def take(self, reader: HistoryReader) -> list[SegmentFound]:
        """Read segments; return what came of them. The parts wait for `put_…`."""
        schema = self.parts().select(*PARTS.columns).schema
        self._taken = taken = kept(read_parts(self._session, reader, schema))
        about = taken.where(F.col("mail_id") == "").groupBy("salt")
        unreadable = F.count_if(F.col("kind") == PartKind.UNREADABLE.value)
        return [SegmentFound(*row) for row in about.agg(F.max("end"), unreadable).collect()]

    def put_lines(self) -> Mapping[str, int]:
        """Put the entries of mails that have new parts into the lake, each in place of its former
        line where it differs; return counts. What has ended stays so: a file that comes back, as
        with a backup, has less than the lake knows."""
        new = self._all_parts()
        if self._state("parts") is not None:  # else all parts are of mails that have new ones
            mails = self._taken.select("mail_id").distinct()
            new = new.join(mails, "mail_id", "left_semi")
        lines = kept(entry_lines(new))
        if self._state("entries") is None:  # nothing to compare with: two joins less
            if count := lines.count():
                self._overwrite("entries", lines, self._hours_of(lines))
            return {"entries": count, "changed": count}
        former = self._entries_of(lines).select("enqueue_id", F.struct(*_LINE).alias("former"))
        former_line, line = F.col("former"), F.struct(*_LINE)
        differs = ~former_line.eqNullSafe(line) & (~former_line.is_final | F.col("is_final"))
        changed = lines.join(former, "enqueue_id", "left")
        changed = kept(changed.where(former_line.isNull() | differs))
        counts = changed.agg(F.count_if(former_line.isNull()), F.count("*")).collect()[0]
        if counts[1]:
            hours = self._hours_of(changed)
            others = self.entries().where(hours).join(changed, "enqueue_id", "left_anti")
            given = changed.select(*ENTRIES.columns)
            self._overwrite("entries", given.unionByName(others, allowMissingColumns=True), hours)
        return dict(zip(("entries", "changed"), counts, strict=True))

    def lost_hours(self, salts: Collection[str]) -> list[datetime]:
        """Return of which hours something is lost: of mails that are not whole, and of which no
        segment of these salts has a part, nothing comes."""
        parts = self._all_parts()
        # By another name: Spark cannot tell two columns `mail_id` of one kept plan apart.
        some = kept(unfinished_mails(parts).select(F.col("mail_id").alias("unfinished")))
        if some.count() <= MAX_BROADCAST:
            some = F.broadcast(some)
        self._left = kept(parts.join(some, F.col("mail_id") == F.col("unfinished"), "left_semi"))
        lost = self._left.join(self._living(salts), "mail_id", "left_anti")
        return [instant(row[0]) for row in lost_hours(lost).select(F.unix_micros("at")).collect()]

    def put_parts(self, salts: Collection[str], ends: Mapping[str, int]) -> None:
        """Put what is left of mails that are not whole, and may be, in place of all parts; and up
        to where segments were read."""
        named = [(salt, PartKind.SEGMENT.value, end) for salt, end in ends.items()]
        segments = self._session.createDataFrame(named, "salt string, kind string, end bigint")
        segments = segments.withColumn("mail_id", F.lit(""))
        left = self._left.join(self._living(salts), "mail_id", "left_semi")
        self.replace_parts(left.unionByName(segments, allowMissingColumns=True))

    def _all_parts(self) -> DataFrame:
        parts = self._taken
        if self._state("parts") is not None:
            parts = self.parts().unionByName(parts, allowMissingColumns=True)
        return parts.where("mail_id <> ''")

    def _living(self, salts: Collection[str]) -> DataFrame:
        return self._left.where(F.col("salt").isin(*salts)).select("mail_id").distinct()

    def _entries_of(self, lines: DataFrame) -> DataFrame:
        return self.entries().where(self._hours_of(lines))

    def _hours_of(self, lines: DataFrame) -> Column:
        starts = lines.select(F.unix_micros("slice_start")).distinct().collect()
        return within(F.col("slice_start"), ranges_of((instant(row[0]) for row in starts), HOUR))

    def replace_parts(self, parts: DataFrame) -> None:
        self._overwrite("parts", parts, F.lit(True))

    def drop_before(self, day: datetime) -> None:
        """Delete entries and parts from before a day, of which the lake has nothing from now on.
        The segments that were read stay named: they would be read again."""
        if (times := self.times()) is not None:
            self.put_times(KnownTimes(max(times.begun, day), times.through))
        super().drop_before(day)
        is_late = F.col("since") >= F.lit(day)
        self.replace_parts(self.parts().where(is_late | (F.col("mail_id") == "")))


def open_store_lake(
    session: SparkSession,
    folder: Path,
    catalog: LakeCatalog = LakeCatalog(),  # noqa: B008  # a value
    *,
    create: bool = False,
) -> StoreLake:
    """Open the lake of a queue in a directory. Raises: as `open_lake`; InvalidSettings."""
    place = lake_place(f"file:{folder}", {}, catalog, None)  # Hadoop takes no escapes
    name_lake(session, place)
    session.conf.set("spark.sql.shuffle.partitions", "4")  # of at most 1 GiB of segments
    if create:  # of queries of a few seconds, plans that are made anew save nothing
        session.conf.set("spark.sql.adaptive.enabled", "false")
    lake = StoreLake(session, CATALOG, place, folder)
    lake.create() if create else lake.check()
    return lake
