"""The job `traffic`: who sent how much where, by the hour."""

from __future__ import annotations

from collections.abc import Collection

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812  # its usual name

from postroad.domain.mail.mail import OutcomeKind
from postroad.domain.values.instants import optional_instant
from postroad.pipeline.answers.lines import TRAFFIC_PARTS, TrafficLine
from postroad.pipeline.archive.coverage import Stretch
from postroad.pipeline.spark.jobs.movements import ACCEPTED, REJECTED, REMOVED, movements

_SHARES = (0.5, 0.95, 0.99)
_COUNTS = ("accepted", "delivered", "deferred", "rejected", "removed", "attempts", "bytes")


def traffic(
    entries: DataFrame, stretch: Stretch, by: Collection[str] = TRAFFIC_PARTS
) -> tuple[TrafficLine, ...]:
    """Return what happened in a stretch of time, by these parts, in their order; without parts, one
    line."""
    hour = F.unix_micros(F.date_trunc("hour", "at"))  # no local time of Python's
    waited = F.when(_is_delivery(), F.unix_millis("at") - F.unix_millis("accepted_at"))
    found = movements(entries, stretch).withColumns({"hour": hour, "milliseconds": waited})
    parts = [each for each in TRAFFIC_PARTS if each in by]
    # First by the time to delivery too: Spark compiles sums, and shares not.
    counted = found.groupBy(*parts, "milliseconds").agg(*_counts())
    shares = F.percentile("milliseconds", F.array(*map(F.lit, _SHARES)), F.col("delivered"))
    sums = (F.coalesce(F.sum(each), F.lit(0)).alias(each) for each in _COUNTS)
    lines = counted.groupBy(*parts).agg(*sums, shares.alias("waited"))
    ordered = lines.orderBy(*parts) if parts else lines
    return tuple(map(_line, ordered.collect()))


def _is_delivery() -> Column:
    return F.col("kind") == OutcomeKind.DELIVERED.value


def _counts() -> list[Column]:
    kind = F.col("kind")
    is_rejection = kind.isin(OutcomeKind.FAILED.value, REJECTED) | F.col("gives_up")
    return [
        _recipients(kind == ACCEPTED, "accepted"),
        _recipients(_is_delivery(), "delivered"),
        _recipients(kind == OutcomeKind.DEFERRED.value, "deferred"),
        _recipients(is_rejection, "rejected"),
        _recipients(kind == REMOVED, "removed"),
        F.count_if("begins_attempt").alias("attempts"),
        _sum(F.col("begins_delivery"), F.col("size_bytes"), "bytes"),
    ]


def _recipients(condition: Column, name: str) -> Column:
    return _sum(condition, F.col("recipients"), name)


def _sum(condition: Column, number: Column, name: str) -> Column:
    return F.coalesce(F.sum(F.when(condition, number)), F.lit(0)).alias(name)


def _line(row: Row) -> TrafficLine:
    values = dict.fromkeys(TRAFFIC_PARTS) | row.asDict()
    hour, waited = optional_instant(values.pop("hour")), values.pop("waited")
    p50, p95, p99 = (each / 1000 for each in waited) if waited else (None, None, None)
    return TrafficLine(hour=hour, **values, p50=p50, p95=p95, p99=p99)
