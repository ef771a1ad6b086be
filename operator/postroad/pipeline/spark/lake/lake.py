"""The lake over Iceberg: what jobs read, and the commits of the archive, each only with the claim
and in a thread of its own. Source: ADR 0047.

A catalog of Spark names the lake; settings for it are given at run time, so that no key of a store
is on a command line. Conditions on ranges of slice starts are such that Iceberg answers them by
whole files. Every method may raise what Spark raises."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from typing import Any, TypeVar

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # its usual name

from postroad.domain.queues.entries import Partition, slice_of
from postroad.domain.values.instants import instant, microseconds
from postroad.errors import InvalidInput, LakeNotFound, LakeTooNew
from postroad.pipeline.archive.archive import ArchiveClaim, Run
from postroad.pipeline.archive.planning import ArchivedPartition, Gap, archived_of, line_of
from postroad.pipeline.spark.lake.catalogs import LakePlace
from postroad.pipeline.spark.lake.schema import (
    FOLDER_PROPERTY,
    LAKE_TABLES,
    SCHEMA_VERSION,
    VERSION_PROPERTY,
    Columns,
    LakeTable,
)
from postroad.pipeline.spark.session import translated

TimeRange = tuple[datetime, datetime]
"""From the first moment on, and before the second."""


def ranges_of(starts: Iterable[datetime], unit: timedelta) -> list[TimeRange]:
    """Return the hours, or days, that these moments lie in, in order; those that meet as one."""
    found: list[TimeRange] = []
    for start in sorted({slice_of(each, unit) for each in starts}):
        if found and found[-1][1] == start:
            found[-1] = (found[-1][0], start + unit)
        else:
            found.append((start, start + unit))
    return found


def within(moment: Column, ranges: Sequence[TimeRange]) -> Column:
    """Return whether a moment is in one of the ranges. A tree, because Spark goes down the branches
    of a condition by recursion."""
    if len(ranges) > 1:
        middle = len(ranges) // 2
        return within(moment, ranges[:middle]) | within(moment, ranges[middle:])
    if not ranges:
        return F.lit(False)
    ((first, before),) = ranges
    return (moment >= F.lit(first)) & (moment < F.lit(before))


EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
"""`spark.sql.extensions` of a session that uses a lake."""

CATALOG = "postroad"

CLEANED = "cleaned"
"""The reason of a gap: cleanup came before the archive."""

_HOUR, _DAY = timedelta(hours=1), timedelta(days=1)
_PLACE = ["slice_start", "bucket_id"]
_PROPERTIES = {
    VERSION_PROPERTY: str(SCHEMA_VERSION),
    "format-version": "2",
    # A commit leaves a file of metadata: the last ones are enough.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}


class LakeTables:
    """The tables of one lake. What jobs read are the methods that return a DataFrame."""

    _tables: Mapping[str, LakeTable] = LAKE_TABLES

    def __init__(self, session: SparkSession, catalog: str, place: LakePlace) -> None:
        self._session = session
        self._catalog = catalog
        self._place = place
        self._states: dict[str, int | None] = {}

    # What jobs read

    def entries(self) -> DataFrame:
        return self._table("entries")

    def slice_lines(self) -> DataFrame:
        """Return the partitions as they were last read: `lake_schema.SLICES`."""
        return self._table("slices")

    def placed_lines(self) -> DataFrame:
        """Return lines whose slice starts say when the lake begins."""
        return self.slice_lines()

    def gap_lines(self) -> DataFrame:
        """Return what the lake lacks: `lake_schema.GAPS`."""
        return self._table("gaps")

    def run_lines(self) -> DataFrame:
        """Return the runs of jobs: `lake_schema.RUNS`."""
        return self._table("runs")

    def slices(self, first: datetime) -> Mapping[Partition, ArchivedPartition]:
        """Return what the lake has of each partition, from a slice start on."""
        lines = self.slice_lines().where(F.col("slice_start") >= F.lit(first))
        found = (archived_of(row) for row in lines.select(*_with_micros(lines)).collect())
        return {each.partition: each for each in found}

    def gaps(self) -> tuple[Gap, ...]:
        """Return what the lake lacks, in order."""
        if self._state("gaps") is None:  # the usual case costs no query
            return ()
        lines = self.gap_lines()
        rows = lines.select(*_with_micros(lines)).collect()
        return tuple(sorted(Gap(instant(row["first"]), instant(row["before"])) for row in rows))

    # The commits of the archive

    def put_entries(self, entries: DataFrame, partitions: Collection[Partition]) -> None:
        """Replace the entries of these partitions by those of them that are given; those of other
        partitions stay, in the lake and ungiven. The hours that they lie in are written whole."""
        if not partitions:
            return
        kept = F.broadcast(
            self._session.createDataFrame(list(partitions), "slice_start timestamp, bucket_id int")
        )
        hours = within(F.col("slice_start"), ranges_of((at for at, _ in partitions), _HOUR))
        others = self.entries().where(hours).join(kept, _PLACE, "left_anti")
        given = entries.join(kept, _PLACE, "left_semi")
        self._overwrite("entries", given.unionByName(others, allowMissingColumns=True), hours)

    def put_slices(self, archived: Iterable[ArchivedPartition]) -> None:
        """Replace the lines of these partitions."""
        lines = [line_of(each) for each in archived]
        if not lines:
            return
        given = self._session.createDataFrame(lines, LAKE_TABLES["slices"].schema)
        days = within(F.col("slice_start"), ranges_of((line[0] for line in lines), _DAY))
        others = self.slice_lines().where(days).join(F.broadcast(given), _PLACE, "left_anti")
        self._overwrite("slices", given.unionByName(others, allowMissingColumns=True), days)

    def put_gaps(self, gaps: tuple[Gap, ...]) -> None:
        lines = [(*gap, CLEANED) for gap in gaps]
        given = self._session.createDataFrame(lines, LAKE_TABLES["gaps"].schema)
        self._overwrite("gaps", given, F.lit(True))

    def put_run(self, run: Run) -> None:
        line = (str(run.run_id), run.job, run.began, run.ended, version("postroad"), run.counts)
        given = self._session.createDataFrame([line], LAKE_TABLES["runs"].schema)
        given.coalesce(1).writeTo(self._name("runs")).append()

    def expire(self, before: datetime) -> None:
        """Forget the states of the tables that are older than this, but the present one, and delete
        the files that only they have: once there are some that are a day older still, because it
        reads all metadata. Small files are joined first; files of runs that were stopped go that
        are as old. No other run may be under way."""
        oldest, last = microseconds(before - _DAY) // 1000, microseconds(before) // 1000
        actions = self._session._jvm.org.apache.iceberg.spark.actions.SparkActions
        for name in self._tables:
            table = self._iceberg(name)
            if sum(each.timestampMillis() < oldest for each in table.snapshots()) > 1:
                action = actions.get(self._session._jsparkSession)
                action.rewriteDataFiles(table).option("min-input-files", "2").execute()
                action.expireSnapshots(table).expireOlderThan(last).execute()
                # Listed by the table's own access to the store, which the session does not have.
                action.deleteOrphanFiles(table).usePrefixListing(True).olderThan(oldest).execute()

    # What forgets

    def rewrite_entries(self, lines: DataFrame, moments: Iterable[datetime]) -> None:
        """Replace the entries of the hours that these slice starts lie in by the given ones."""
        hours = within(F.col("slice_start"), ranges_of(moments, _HOUR))
        self._overwrite("entries", lines.where(hours), hours)

    def drop_before(self, day: datetime) -> None:
        """Delete the entries that were queued before a day, and the lines of slices that start
        before it; the last of these may reach into the day."""
        old = F.col("slice_start") < F.lit(day)
        for name, stays in (
            ("entries", F.col("enqueued_at") >= F.lit(day)),
            ("slices", F.lit(False)),
        ):
            self._overwrite(name, self._table(name).where(old & stays), old)

    def drop_states(self) -> None:
        """Forget all states of the tables but the present one, and delete each file that this one
        does not name, those of runs that were stopped too: no other run may be under way."""
        actions = self._session._jvm.org.apache.iceberg.spark.actions.SparkActions
        now = microseconds(datetime.now(UTC) + _DAY) // 1000
        for name in self._tables:
            table = self._iceberg(name)
            action = actions.get(self._session._jsparkSession)
            # The last commit's list of files has those that it replaced, too.
            action.rewriteManifests(table).execute()
            action.expireSnapshots(table).expireOlderThan(now).retainLast(1).execute()
            # Listed by the table's own access to the store, which the session does not have.
            action.deleteOrphanFiles(table).usePrefixListing(True).olderThan(now).execute()

    # The tables themselves

    def create(self) -> None:
        """Create what is missing, columns too. Idempotent. From now on, a commit fails that would
        replace what another writer has written since. Raises: LakeTooNew, InvalidInput where a
        catalog has the lake of another queue there."""
        if not self._place.is_a_folder:
            space = f"{self._catalog}.`{self._place.namespace}`"
            self._session.sql(f"CREATE NAMESPACE IF NOT EXISTS {space}")
        for name, table in self._tables.items():
            self._session.sql(_creation(self._name(name), table, self._place.folder))
        self.check()
        for name, table in self._tables.items():
            has = set(self._table(name).columns)
            missing = {each: what for each, what in table.columns.items() if each not in has}
            if missing:
                self._session.sql(
                    f"ALTER TABLE {self._name(name)} ADD COLUMNS ({_listed(missing)})"
                )
            self._states[name] = self._state(name)

    def check(self) -> None:
        """Raises: LakeNotFound where nothing was ever archived; LakeTooNew; InvalidInput."""
        for name in self._tables:
            if not self._session.catalog.tableExists(self._name(name)):
                raise LakeNotFound(f"the lake has no table {name}: nothing was archived yet")
            properties = self._iceberg(name).properties()
            found = int(properties[VERSION_PROPERTY])
            folder = properties.get(FOLDER_PROPERTY)
            if not self._place.is_a_folder and folder != self._place.folder:
                raise InvalidInput(
                    f"the namespace {self._place.namespace} of the catalog has the lake of the"
                    f" queue in {folder}: give each queue a namespace of its own"
                )
            if found > SCHEMA_VERSION:
                raise LakeTooNew(
                    f"the lake's table {name} is of schema version {found}; this release knows"
                    f" {SCHEMA_VERSION}"
                )

    def _state(self, name: str) -> int | None:
        """Return the id of the table's present state; None: nothing was written yet."""
        found = self._iceberg(name).currentSnapshot()
        return None if found is None else int(found.snapshotId())

    def _iceberg(self, name: str) -> Any:
        """Return a table as Iceberg's own object, which answers without a query of Spark's. Only
        after one that named the table: in another thread than the session's, Spark does not find a
        catalog here that it has not used yet."""
        load = self._session._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable
        return load(self._session._jsparkSession, self._name(name))

    def _table(self, name: str) -> DataFrame:
        return self._session.table(self._name(name))

    def _name(self, name: str) -> str:
        return f"{self._catalog}.`{self._place.namespace}`.{self._place.named(name)}"

    def _overwrite(self, name: str, lines: DataFrame, where: Column) -> None:
        """Replace the lines of whole files: `where` is in step with how the table is cut. Columns
        of a later release stay, empty in new lines."""
        has = set(lines.columns)
        known = lines.select(*(each for each in self._table(name).columns if each in has))
        writer = known.writeTo(self._name(name))
        writer = writer.option("isolation-level", "serializable")
        if (state := self._states.get(name)) is not None:
            writer = writer.option("validate-from-snapshot-id", str(state))
        writer.overwrite(where)
        self._states[name] = self._state(name)


def open_lake(
    session: SparkSession, place: LakePlace, *, create: bool = False, catalog: str = CATALOG
) -> LakeTables:
    """Open the lake in a place. Raises: LakeNotFound unless `create`; LakeTooNew, InvalidInput,
    CredentialsMissing."""
    name_lake(session, place, catalog)
    lake = LakeTables(session, catalog, place)
    lake.create() if create else lake.check()
    return lake


def name_lake(session: SparkSession, place: LakePlace, catalog: str = CATALOG) -> None:
    """Let a catalog of Spark's be the one that names the tables of a lake."""
    for name, value in place.of_spark().items():
        session.conf.set(f"spark.sql.catalog.{catalog}{name}", value)


def _creation(name: str, table: LakeTable, folder: str) -> str:
    cut = f" PARTITIONED BY ({table.cut_by})" if table.cut_by else ""
    # Bounds of values would keep the beginnings of addresses in files of metadata.
    none = {f"write.metadata.metrics.column.{each}": "none" for each in table.unbounded}
    given = {**_PROPERTIES, FOLDER_PROPERTY: folder, **none}
    properties = ", ".join(f"'{key}' = '{value}'" for key, value in given.items())
    return (
        f"CREATE TABLE IF NOT EXISTS {name} ({_listed(table.columns)}) USING iceberg{cut}"
        f" TBLPROPERTIES ({properties})"
    )


def _listed(columns: Columns) -> str:
    return ", ".join(
        f"{column} {kind} COMMENT '{meaning}'" for column, (kind, meaning) in columns.items()
    )


def _with_micros(lines: DataFrame) -> list[Column]:
    """Return all columns, moments as microseconds: Python would read them in its own time zone."""
    return [
        F.unix_micros(name).alias(name) if kind == "timestamp" else F.col(name)
        for name, kind in lines.dtypes
    ]


T = TypeVar("T")


class ClaimedLake:
    """`archive.Lake` over tables."""

    def __init__(self, tables: LakeTables, claim: ArchiveClaim) -> None:
        self._tables = tables
        self._claim = claim

    async def slices(self, first: datetime) -> Mapping[Partition, ArchivedPartition]:
        return await in_thread(self._tables.slices, first)

    async def gaps(self) -> tuple[Gap, ...]:
        return await in_thread(self._tables.gaps)

    async def put_entries(self, entries: DataFrame, partitions: Collection[Partition]) -> None:
        await self._claim.renew()
        await in_thread(self._tables.put_entries, entries, partitions)

    async def put_slices(self, archived: Iterable[ArchivedPartition]) -> None:
        await self._claim.renew()
        await in_thread(self._tables.put_slices, archived)

    async def put_gaps(self, gaps: tuple[Gap, ...]) -> None:
        await self._claim.renew()
        await in_thread(self._tables.put_gaps, gaps)

    async def put_run(self, run: Run) -> None:
        await self._claim.renew()
        await in_thread(self._tables.put_run, run)


async def in_thread(work: Callable[..., T], *values: object) -> T:
    """Run work of Spark beside the event loop. Raises: JobFailed, CredentialsRefused."""

    def translating() -> T:
        with translated():
            return work(*values)

    return await asyncio.to_thread(translating)
