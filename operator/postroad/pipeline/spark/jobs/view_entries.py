"""Entries as the view has them now, in the lines of the lake: what the archive has not read yet, or
what has changed since."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from pyspark.sql import SparkSession

from postroad.domain.configuration.rules import ViewConfiguration
from postroad.pipeline.answers.lines import TraceLine
from postroad.pipeline.archive.archive import Stamps
from postroad.pipeline.archive.coverage import Coverage, Stretch
from postroad.pipeline.archive.unarchived import near, unarchived, with_view
from postroad.pipeline.spark.address_columns import AddressColumn
from postroad.pipeline.spark.jobs.tracing import (
    TraceSelector,
    lines_of,
    mails_of,
    since_of,
    those_of,
)
from postroad.pipeline.spark.lake.claimed_lake import in_thread
from postroad.pipeline.spark.lake.lake import LakeTables
from postroad.pipeline.spark.reading.reading import PartitionReader
from postroad.ports.view import View


@dataclass(frozen=True, slots=True)
class ViewTables:
    """The tables of one queue's view, which the session reaches. `reading`: the configurations that
    rows may have been written with."""

    view: View
    reading: Sequence[ViewConfiguration]
    keyspace: str
    queue: str


@dataclass(frozen=True, slots=True)
class UnarchivedEntries:
    """`tracing.MailEntries` of the view, in a stretch of time. `window`: the longest of its
    slices."""

    reader: PartitionReader
    stamps: Stamps
    stretch: Stretch
    window: timedelta

    def mails(self, found: TraceSelector) -> set[str]:
        stamps = self._since(found.since)
        return mails_of(self.reader.rows(stamps), self.stretch, found) if stamps else set()

    def lines(self, mails: Collection[str]) -> list[TraceLine]:
        stamps = self._since(since_of(mails))
        if not stamps:
            return []
        return lines_of(self.reader.chosen(stamps, those_of(mails)), self.stretch, mails)

    def _since(self, moment: datetime | None) -> Stamps:
        first, before = self.stretch
        return near(self.stamps, Stretch(max(first, moment or first), before), self.window)


async def unarchived_entries(
    session: SparkSession,
    lake: LakeTables,
    tables: ViewTables,
    kept: AddressColumn,
    coverage: Coverage,
    last: datetime,
) -> tuple[UnarchivedEntries | None, Coverage]:
    """Return the entries that the view has, and the lake has not or has otherwise; and what is
    lacking still. `last`: the latest moment of an entry. Raises: ViewError, JobFailed,
    CredentialsRefused."""
    limits = await tables.view.limits()
    first = limits.content_start or limits.browse_start
    if first is None:
        return None, coverage
    archived = await in_thread(lake.slices, first)
    stamps = await unarchived(tables.view, tables.reading, archived, first, last)
    reader = PartitionReader(session, tables.keyspace, tables.queue, kept)
    window = max(each.slice_window for each in tables.reading)
    return (
        UnarchivedEntries(reader, stamps, coverage.stretch, window),
        with_view(coverage, limits),
    )
