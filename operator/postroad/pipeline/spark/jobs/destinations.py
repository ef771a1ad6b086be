"""The job `destinations`: how the sites of each domain answer, and why they refuse."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, Row, Window
from pyspark.sql import functions as F  # noqa: N812  # its usual name

from postroad.domain.mail.mail import OutcomeKind
from postroad.domain.values.instants import LATEST
from postroad.pipeline.answers.departures import HISTORY, Tally, departures
from postroad.pipeline.answers.lines import DestinationLine, ReasonCount
from postroad.pipeline.archive.coverage import Stretch
from postroad.pipeline.spark.jobs.movements import attempts, movements
from postroad.pipeline.spark.lake.ranges import within

MOST_REASONS = 3
"""Reasons that are named for each destination."""

_PLACE = ("domain", "site")
Place = tuple[str, str]


def destinations(entries: DataFrame, stretch: Stretch) -> tuple[DestinationLine, ...]:
    """Return how each destination answered in a stretch of time, the busiest first, held to the 7
    days before."""
    replies: dict[Place, _Replies] = {}
    for row in _counted(entries, stretch).collect():
        replies.setdefault((row.domain, row.site), _Replies()).add(row)
    recoveries = {
        (row.domain, row.site): (row.deferred, row.recovered)
        for row in _recoveries(entries, stretch).collect()
    }
    lines = (
        each.line(place, *recoveries.get(place, (0, 0)))
        for place, each in replies.items()
        if each.now
    )
    return tuple(sorted(lines, key=lambda each: (-each.outcomes.total, each.domain, each.site)))


def _counted(entries: DataFrame, stretch: Stretch) -> DataFrame:
    """Count outcomes by place, kind and class, now and before; with the commonest of the words, the
    most frequent of a place first."""
    both = Stretch(stretch.before_it(HISTORY).first, stretch.before)
    outcomes = attempts(entries, both).withColumn("now", within(F.col("at"), [stretch]))
    by_words = outcomes.groupBy(*_PLACE, "now", "kind", "reason", "code", "words").agg(
        F.sum("recipients").alias("count")
    )
    of_place = Window.partitionBy(*_PLACE, "now", F.col("reason").isNull()).orderBy(
        F.desc("count"), "reason", "code", "words"
    )
    is_common = (F.row_number().over(of_place) <= MOST_REASONS) & F.col("reason").isNotNull()
    words = F.when(F.col("is_common"), F.struct("count", "code", "words"))
    return (
        by_words.withColumn("is_common", is_common)
        .groupBy(*_PLACE, "now", "kind", "reason")
        .agg(F.sum("count").alias("count"), F.collect_list(words).alias("common"))
    )


def _recoveries(entries: DataFrame, stretch: Stretch) -> DataFrame:
    """Count the mails that a place was the first to defer in this stretch, and those of them that
    were delivered later, up to now: by mail and domain, since outcomes have no addresses."""
    is_deferral = (F.col("kind") == OutcomeKind.DEFERRED.value) & within(F.col("at"), [stretch])
    is_delivery = F.col("kind") == OutcomeKind.DELIVERED.value
    mails = (
        movements(entries, Stretch(stretch.first, LATEST))
        .groupBy("mail_id", "domain")
        .agg(
            F.min(F.when(is_deferral, F.struct("at", "site"))).alias("first"),
            F.max(F.when(is_delivery, F.col("at"))).alias("delivered"),
        )
        .where(F.col("first").isNotNull())
    )
    recovered = F.count_if(F.col("delivered") > F.col("first.at"))
    return mails.groupBy("domain", F.col("first.site").alias("site")).agg(
        F.count("*").alias("deferred"), recovered.alias("recovered")
    )


@dataclass(slots=True)
class _Replies:
    """What one place answered."""

    now: Counter[str] = field(default_factory=Counter)
    before: Counter[str] = field(default_factory=Counter)
    classes: Counter[str] = field(default_factory=Counter)
    classes_before: Counter[str] = field(default_factory=Counter)
    reasons: list[ReasonCount] = field(default_factory=list)

    def add(self, row: Row) -> None:
        (self.now if row.now else self.before)[row.kind] += row["count"]
        if row.reason is None:
            return
        (self.classes if row.now else self.classes_before)[row.reason] += row["count"]
        if row.now:
            self.reasons += (
                ReasonCount(row.reason, each.code, each.words, each["count"]) for each in row.common
            )

    def line(self, place: Place, deferred_mails: int, recovered: int) -> DestinationLine:
        now, before = Tally(**self.now), Tally(**self.before)
        return DestinationLine(
            *place,
            outcomes=now,
            classes=dict(self.classes),
            reasons=_commonest(self.reasons),
            deferred_mails=deferred_mails,
            recovered=recovered,
            out_of_line=departures(now, self.classes, before, self.classes_before),
        )


def _commonest(reasons: Iterable[ReasonCount]) -> tuple[ReasonCount, ...]:
    ordered = sorted(reasons, key=lambda each: (-each.count, each.reason, each.code, each.words))
    return tuple(ordered[:MOST_REASONS])
