"""Runs `pipeline.archive` over Cassandra, Spark and Iceberg, with its claim and its clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from uuid import uuid4

from pyspark.sql import SparkSession

from postroad.distributed.engine.limits_cache import LimitsCache
from postroad.distributed.engine.timing import Timing
from postroad.pipeline.archive.archive import Archive, Wanted
from postroad.pipeline.archive.claim import ArchiveClaim
from postroad.pipeline.runs import Run
from postroad.pipeline.spark.address_columns import AddressColumn
from postroad.pipeline.spark.lake.claimed_lake import ClaimedLake, in_thread
from postroad.pipeline.spark.lake.lake import EXTENSIONS, open_lake
from postroad.pipeline.spark.reading.reading import PartitionReader
from postroad.ports.clock import Clock
from postroad.ports.view import View

SESSION: Mapping[str, str] = {"spark.sql.extensions": EXTENSIONS}
"""What a session of the archive starts with. No secret: PySpark starts Java with it."""


KEPT_STATES = timedelta(days=1)
"""How long a former state of the lake can be read: as a job may take that began before."""


@dataclass(frozen=True, slots=True)
class ArchivedTables:
    """What is archived: the tables of one queue. `step`: the smallest slice window that it ever
    had. `settings`: the connector's."""

    view: View
    keyspace: str
    queue: str
    step: timedelta
    row_lifetime: timedelta
    timing: Timing
    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class LakePlace:
    """Where a lake is: a folder of Hadoop's, with the settings for it."""

    folder: str
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
        tables = await in_thread(
            lambda: open_lake(session, place.folder, place.settings, create=True)
        )
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
