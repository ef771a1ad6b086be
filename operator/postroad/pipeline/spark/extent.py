"""How much of a queue's history the lake has."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  # its usual name

from postroad.domain.instants import instant, optional_instant
from postroad.pipeline.archive import JOB
from postroad.pipeline.coverage import Coverage, Stretch, coverage_of
from postroad.pipeline.planning import Gap
from postroad.pipeline.spark.lake import LakeTables


@dataclass(frozen=True, slots=True)
class Extent:
    """What of a queue's slices the lake has. `begun`, `through`: the start of the first slice, the
    end of the last. `gaps`: what is missing between them. `as_of`: begin of the last run of the
    archive."""

    begun: datetime | None
    through: datetime | None
    gaps: tuple[Gap, ...]
    as_of: datetime | None

    def coverage(self, stretch: Stretch, archived_through: datetime | None) -> Coverage:
        """Return how far this covers a stretch. `archived_through` is that of the view: it passes
        slices without mail, which the lake has no line of."""
        known = [each for each in (self.through, archived_through) if each is not None]
        through = max(known) if self.begun and known else None
        return coverage_of(stretch, self.gaps, self.begun, through, self.as_of)


def extent_of(lake: LakeTables) -> Extent:
    """Return what the lake has. A partition whose last reading was discarded is a gap until it is
    read again."""
    begun = lake.placed_lines().agg(F.min("slice_start").alias("at"))
    is_discarded = ~F.col("is_final") & (F.col("row_count") == 0)
    missing = F.collect_set(F.when(is_discarded, F.struct(_start(), _end())))
    through, discarded = lake.slice_lines().agg(F.max(_end()), missing).collect()[0]
    runs = lake.run_lines().where(F.col("job") == JOB)
    last = runs.agg(F.max(F.unix_micros("began_at"))).collect()[0][0]
    gaps = (*lake.gaps(), *(Gap(instant(first), instant(before)) for first, before in discarded))
    first = begun.select(F.unix_micros("at")).collect()[0][0]
    return Extent(optional_instant(first), optional_instant(through), gaps, optional_instant(last))


def _start() -> Column:
    return F.unix_micros("slice_start")


def _end() -> Column:
    return F.unix_micros("slice_start") + F.col("window_seconds") * 1_000_000
