"""Entries as the view has them now, in the lines of the lake: what the archive has not read for
the last time yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from pyspark.sql import DataFrame, SparkSession

from postroad.distributed.live_slices import occupied
from postroad.domain.configuration.rules import ViewConfiguration
from postroad.domain.slices import Partition
from postroad.pipeline.archive import read_stamps
from postroad.pipeline.coverage import Coverage
from postroad.pipeline.planning import Gap
from postroad.pipeline.spark.address_columns import AddressColumn
from postroad.pipeline.spark.claimed_lake import in_thread
from postroad.pipeline.spark.lake import LakeTables
from postroad.pipeline.spark.reading import PartitionReader
from postroad.ports.view import View


@dataclass(frozen=True, slots=True)
class ViewTables:
    """The tables of one queue's view, which the session reaches. `reading`: the configurations that
    rows may have been written with."""

    view: View
    reading: Sequence[ViewConfiguration]
    keyspace: str
    queue: str


async def with_view(
    session: SparkSession,
    lake: LakeTables,
    tables: ViewTables,
    kept: AddressColumn,
    coverage: Coverage,
    last: datetime,
) -> tuple[DataFrame, Coverage]:
    """Return the entries of the lake, with those of the view in place of what the lake has of the
    same partitions; and what is lacking still. `last`: the latest moment of an entry. Raises:
    ViewError, JobFailed, CredentialsRefused."""
    limits = await tables.view.limits()
    first = limits.content_start or limits.browse_start
    if first is None:
        return lake.entries(), coverage
    final = {each for each, had in (await in_thread(lake.slices, first)).items() if had.is_final}
    found = [each async for each in occupied(tables.view, tables.reading, first, last)]
    partitions = [each for each in found if each not in final]
    # What cleanup deleted since the archive last read it is lacking still.
    begun = limits.content_start
    lacking = tuple(
        Gap(gap.first, min(gap.before, begun))
        for gap in coverage.lacking
        if begun is not None and gap.first < begun
    )
    whole = replace(coverage, lacking=lacking, as_of=None)
    if not partitions:
        return lake.entries(), whole
    reader = PartitionReader(session, tables.keyspace, tables.queue, kept)
    read = await reader.read(await read_stamps(tables.view, partitions))
    others = await in_thread(_others, session, lake, partitions)
    return others.unionByName(read.entries), whole


def _others(session: SparkSession, lake: LakeTables, partitions: list[Partition]) -> DataFrame:
    place = ["slice_start", "bucket_id"]
    schema = "slice_start timestamp, bucket_id int"
    return lake.entries().join(session.createDataFrame(partitions, schema), place, "left_anti")
