"""Jobs that write the lake or read it out: `archive` runs `pipeline.archive` over Cassandra, Spark
and Iceberg, with its claim and its clock; `export` writes files that need no Iceberg; `forget`
takes an address, or what is old, from the lake and from its former states."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Protocol, Self
from uuid import UUID, uuid4

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # its usual name

from postroad.distributed.engine.limits_cache import LimitsCache
from postroad.distributed.engine.timing import Timing
from postroad.domain.values.instants import instant
from postroad.pipeline.archive.archive import Archive, ArchiveClaim, Run, Wanted
from postroad.pipeline.archive.lake_files import KEPT_STATES
from postroad.pipeline.archive.planning import Stretch
from postroad.pipeline.spark.columns import AddressColumn, is_address, is_among
from postroad.pipeline.spark.lake.catalogs import LakePlace
from postroad.pipeline.spark.lake.lake import (
    EXTENSIONS,
    ClaimedLake,
    LakeTables,
    in_thread,
    open_lake,
    within,
)
from postroad.pipeline.spark.lake.store_lake import StoreLake
from postroad.pipeline.spark.reading import PartitionReader
from postroad.ports.clock import Clock
from postroad.ports.view import View

SESSION: Mapping[str, str] = {"spark.sql.extensions": EXTENSIONS}
"""Settings that a session of the archive starts with. No secret: PySpark starts Java with it."""


@dataclass(frozen=True, slots=True)
class ArchivedTables:
    """Tables that are archived: the tables of one queue. `step`: the smallest slice window that it
    ever had. `settings`: the connector's."""

    view: View
    keyspace: str
    queue: str
    step: timedelta
    row_lifetime: timedelta
    timing: Timing
    settings: Mapping[str, str]


async def archive(
    session: SparkSession,
    source: ArchivedTables,
    place: LakePlace,
    kept: AddressColumn,
    clock: Clock,
    wanted: Wanted,
    patience: timedelta = timedelta(0),
) -> Run:
    """Archive what can be; `patience`: how long to wait for another run. Raises: ArchiveUnderWay,
    ClockSkew, LakeTooNew, JobFailed, ServerError."""
    run_id = uuid4()
    await LimitsCache(source.view, clock, source.timing).check_clock()
    async with ArchiveClaim(source.view, clock, run_id, patience) as claim:
        for name, value in source.settings.items():
            session.conf.set(name, value)
        tables = await in_thread(lambda: open_lake(session, place, create=True))
        job = Archive(
            source.view,
            PartitionReader(session, source.keyspace, source.queue, kept),
            ClaimedLake(tables, claim),
            step=source.step,
            row_lifetime=source.row_lifetime,
            skew=source.timing.skew,
            now=clock.now,
        )
        run = await job.run(run_id, wanted)
        await claim.renew()
        await in_thread(tables.expire, clock.now() - KEPT_STATES)
        return run


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


JOB = "forget"

Forgetting = Callable[[LakeTables], int]
"""Rewrites tables of the lake; returns how many entries it changed or deleted."""


class LakeClaim(Protocol):
    """Keeps all others from writing a lake. Raises on entry, and on renewal: ArchiveUnderWay."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: Any) -> None: ...

    async def renew(self) -> None: ...


async def forget(
    lake: LakeTables, claimed: Callable[[UUID], LakeClaim], clock: Clock, forgetting: Forgetting
) -> Run:
    """Rewrite the lake, and delete its former states with every file that only they have. Holds the
    archive's claim for the id of its run, so that nothing else writes. May be stopped and
    repeated. Raises: ArchiveUnderWay, JobFailed, CredentialsRefused, LakeTooNew, ViewError."""
    run_id, began = uuid4(), clock.now()
    async with claimed(run_id) as claim:
        await in_thread(lake.create)
        count = await in_thread(forgetting, lake)
        run = Run(run_id, JOB, began, clock.now(), {"entries": count})
        await claim.renew()
        await in_thread(lake.put_run, run)
        await claim.renew()
        await in_thread(lake.drop_states)
        return run


def of_address(address: str, key: bytes | None) -> Forgetting:
    """Forget an address, plain and hashed by this key (None: there is none): sender or recipient
    of an entry that it is, is null then. The entry stays, so that counts stay true."""
    return partial(_forget_address, address=address, key=key)


def before(day: datetime) -> Forgetting:
    """Delete the entries that were queued before a day."""
    return partial(_forget_old, day=day)


def _forget_address(lake: LakeTables, address: str, key: bytes | None) -> int:
    def forgotten(kept: Column) -> Column:
        return F.when(~is_address(kept, address, key), kept)

    entries = lake.entries()
    found = (
        entries.where(is_among(address, key))
        .groupBy(F.unix_micros("slice_start").alias("start"))
        .count()
    )
    counts = {instant(row["start"]): row["count"] for row in found.collect()}
    if counts:
        lake.rewrite_entries(_without(entries, forgotten), counts)
    if isinstance(lake, StoreLake):
        lake.replace_parts(_without(lake.parts(), forgotten))
    return sum(counts.values())


def _without(lines: DataFrame, forgotten: Callable[[Column], Column]) -> DataFrame:
    sender, recipients = forgotten(F.col("sender")), F.transform("recipients", forgotten)
    return lines.withColumn("sender", sender).withColumn("recipients", recipients)


def _forget_old(lake: LakeTables, day: datetime) -> int:
    is_old = (F.col("slice_start") < F.lit(day)) & (F.col("enqueued_at") < F.lit(day))
    count: int = lake.entries().where(is_old).count()
    lake.drop_before(day)
    return count
