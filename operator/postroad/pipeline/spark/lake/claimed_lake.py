"""The lake as the archive writes it: each commit only with the claim, in a thread of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from typing import TypeVar

from pyspark.sql import DataFrame

from postroad.domain.queues.slices import Partition
from postroad.pipeline.archive.claim import ArchiveClaim
from postroad.pipeline.archive.planning import ArchivedPartition, Gap
from postroad.pipeline.runs import Run
from postroad.pipeline.spark.failures import translated
from postroad.pipeline.spark.lake.lake import LakeTables

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
