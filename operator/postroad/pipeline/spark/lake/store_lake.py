"""The lake of an embedded queue: that of any queue, and what is not whole yet of its mails."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # its usual name

from postroad.adapters.disk.files import DiskFiles
from postroad.domain.values.instants import instant, microseconds
from postroad.pipeline.archive.embedded_parts import HistoryPart, PartKind
from postroad.pipeline.spark.lake.lake import CATALOG, LakeTables, name_lake, ranges_of, within
from postroad.pipeline.spark.lake.schema import ENTRIES, PARTS, STORE_TABLES, LakeTable

_HOUR = timedelta(hours=1)

TIMES = "times"
"""The file of a lake's directory that says of which time the lake has what the store recorded."""


class KnownTimes(NamedTuple):
    """Times between which the recorded history is in the lake, but for its gaps."""

    begun: datetime
    through: datetime


class StoreLake(LakeTables):
    """The tables of one lake, with `parts`: `lake_schema.PARTS`."""

    _tables: Mapping[str, LakeTable] = STORE_TABLES

    def __init__(self, session: SparkSession, catalog: str, folder: Path) -> None:
        super().__init__(session, catalog)
        self._folder = folder

    def parts(self) -> DataFrame:
        """Return the parts of mails whose history is not whole, and the segments that were
        read."""
        return self._table("parts")

    def parts_of(self, mails: Collection[str]) -> list[HistoryPart]:
        if not mails or self._state("parts") is None:
            return []
        return _rows(self.parts().join(self._ids(mails), "mail_id", "left_semi"))

    def read_segments(self) -> dict[str, int]:
        """Return up to which offset segments were read, by their salts."""
        if self._state("parts") is None:
            return {}
        found = _rows(self.parts().where(F.col("kind") == PartKind.SEGMENT.value))
        return {each.salt: each.values["end"] for each in found}

    def placed_lines(self) -> DataFrame:
        """Return the entries: `slices` has no lines."""
        return self.entries()

    def times(self) -> KnownTimes | None:
        """Return of which time the lake has what the store recorded; None: of none."""
        try:
            text = (self._folder / TIMES).read_text()
        except FileNotFoundError:
            return None
        return KnownTimes(*(instant(int(each)) for each in text.split()))

    def put_times(self, times: KnownTimes) -> None:
        """Say of which time the lake has what the store recorded, behind all else of a run. No
        table has it, so that a run without anything new commits nothing."""
        files, draft = DiskFiles(), self._folder / f"{TIMES}.new"
        files.unlink(draft)
        file = files.open(draft, create=True)
        file.pwrite(0, " ".join(str(microseconds(each)) for each in times).encode())
        file.sync()
        file.close()
        draft.chmod(0o644)  # who may read the lake may read this
        files.rename(draft, self._folder / TIMES)
        files.sync_directory(self._folder)

    def put_lines(self, lines: Sequence[tuple[Any, ...]]) -> None:
        """Put entries into the lake, each in place of its former line. What has ended stays so: a
        file that comes back, as with a backup, has less than the lake knows."""
        given = self._frame(lines, ENTRIES)
        hours = within(F.col("slice_start"), ranges_of((line[0] for line in lines), _HOUR))
        had, is_over = self.entries().where(hours), F.col("is_final")
        ended = had.where(is_over).select("enqueue_id")
        given = given.where(is_over).unionByName(
            given.where(~is_over).join(ended, "enqueue_id", "left_anti")
        )
        others = had.join(given.select("enqueue_id"), "enqueue_id", "left_anti")
        self._overwrite("entries", given.unionByName(others), hours)

    def lost_parts(self, mails: Collection[str], salts: Collection[str]) -> list[HistoryPart]:
        """Return the parts of other mails than these that no segment of these salts has a part of:
        nothing comes of them."""
        if self._state("parts") is None:
            return []
        others = self._others(mails)
        return _rows(others.join(self._living(others, salts), "mail_id", "left_anti"))

    def put_parts(
        self,
        mails: Collection[str],
        parts: Sequence[HistoryPart],
        salts: Collection[str] | None = None,
    ) -> None:
        """Put these parts in place of all that the lake has of these mails, and of segments.
        `salts`: of other mails, only those stay that a segment of these has a part of."""
        others = self._others(mails)
        if salts is not None:
            others = others.join(self._living(others, salts), "mail_id", "left_semi")
        self._overwrite("parts", others.unionByName(self._frame(parts, PARTS)), F.lit(True))

    def _others(self, mails: Collection[str]) -> DataFrame:
        return self.parts().where("mail_id <> ''").join(self._ids(mails), "mail_id", "left_anti")

    def _living(self, parts: DataFrame, salts: Collection[str]) -> DataFrame:
        return parts.where(F.col("salt").isin(*salts)).select("mail_id").distinct()

    def _ids(self, mails: Collection[str]) -> DataFrame:
        lines = [(each,) for each in mails]
        return F.broadcast(self._session.createDataFrame(lines, "mail_id string"))

    def _frame(self, lines: Sequence[tuple[Any, ...]], table: LakeTable) -> DataFrame:
        # Kept: else each use sends the lines to Java again.
        made = self._session.createDataFrame(list(lines), table.schema, verifySchema=False)
        return made.localCheckpoint()

    def replace_parts(self, parts: DataFrame) -> None:
        self._overwrite("parts", parts, F.lit(True))

    def drop_before(self, day: datetime) -> None:
        """Delete entries and parts from before a day, of which the lake has nothing from now on.
        The segments that were read stay named: they would be read again."""
        if (times := self.times()) is not None:
            self.put_times(KnownTimes(max(times.begun, day), times.through))
        super().drop_before(day)
        is_late = F.col("since_us") >= F.lit(microseconds(day))
        self.replace_parts(self.parts().where(is_late | (F.col("mail_id") == "")))


def _rows(parts: DataFrame) -> list[HistoryPart]:
    return [HistoryPart(*row) for row in parts.select(*PARTS.columns).collect()]


def open_store_lake(session: SparkSession, folder: Path, *, create: bool = False) -> StoreLake:
    """Open the lake in a directory. Raises: as `open_lake`."""
    name_lake(session, f"file:{folder}", {})  # Hadoop takes no escapes
    lake = StoreLake(session, CATALOG, folder)
    lake.create() if create else lake.check()
    return lake
