"""The job `forget`: an address, or what is old, goes from the lake and from its former states."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any, Protocol, Self
from uuid import UUID, uuid4

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # its usual name

from postroad.domain.values.instants import instant
from postroad.pipeline.runs import Run
from postroad.pipeline.spark.address_columns import is_address, is_among
from postroad.pipeline.spark.lake.claimed_lake import in_thread
from postroad.pipeline.spark.lake.lake import LakeTables
from postroad.pipeline.spark.lake.store_lake import StoreLake
from postroad.ports.clock import Clock

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
    """Delete the entries of slices that started before a day."""
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
    count: int = lake.entries().where(F.col("slice_start") < F.lit(day)).count()
    lake.drop_before(day)
    return count
