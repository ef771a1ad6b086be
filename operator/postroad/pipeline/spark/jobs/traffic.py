"""The jobs `traffic` and `destinations`. Both count events of mail: one line for each thing that
happened to some recipients of an entry at one moment.

Entries are read once: each is repeated for its parts, and these for their domains or outcomes. No
function of arrays takes another function here, because Spark compiles none of these."""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as F  # noqa: N812  # its usual name

from postroad.domain.mail.mail import OutcomeKind
from postroad.domain.mail.seven_bits import same_domain
from postroad.domain.queues.entries import EndingKind
from postroad.domain.values.instants import LATEST, optional_instant
from postroad.pipeline.archive.planning import Stretch
from postroad.pipeline.results.lines import (
    HISTORY,
    TRAFFIC_PARTS,
    DestinationLine,
    ReasonCount,
    Tally,
    TrafficLine,
    anomalies,
)
from postroad.pipeline.spark.lake.lake import within
from postroad.pipeline.states import DELIVERED

ACCEPTED = "accepted"
REMOVED = EndingKind.REMOVED.value
REJECTED = EndingKind.REJECTED.value
_OVER_BY_ENDING = {REMOVED: REMOVED, REJECTED: REJECTED, EndingKind.EXPIRED.value: REJECTED}
"""Meaning for the recipients of an ending without an attempt."""

_ATTEMPTED, _UNATTEMPTED = "attempted", "unattempted"
"""Parts of an entry, beside that of its acceptance: what an attempt did, and how it ended without
one."""

_WITHOUT = {"site": "", "code": 0, "reason": None, "words": ""}
"""Fields of an outcome, and what stands in their place where nothing was transmitted."""

_OUTCOME = ("domain", "kind", "count", *_WITHOUT)
_NOT_ASCII = r"[^\x00-\x7F]"


def mail_events(entries: DataFrame, stretch: Stretch) -> DataFrame:
    """Return what happened in a stretch of time.

    `kind` is `accepted`, an outcome of an attempt (delivered, deferred, failed), or how recipients
    ended without an attempt (rejected, removed, delivered); `recipients`: how many; `gives_up`:
    they were deferred, and the mail is given up with this attempt. `begins_attempt` and
    `begins_delivery` are true once for each entry, domain and site.

    A delivery without outcomes is that of an older release, or it repeats the one of a predecessor
    that was replaced while a consumer had it in flight: then it is not counted again."""
    near = _near(entries, stretch)
    parts = F.array(
        F.when(_is_accepted(), F.lit(ACCEPTED)),
        F.when(_has_outcomes(), F.lit(_ATTEMPTED)),
        F.when(~_has_outcomes() & _over_as().isNotNull(), F.lit(_UNATTEMPTED)),
    )
    delivered = near.where((F.col("state") == DELIVERED) & F.col("successor").isNotNull())
    repeated = F.broadcast(delivered.select(F.col("successor").alias("repeated")))  # rare
    found = _lines(near.withColumn("part", F.explode(parts)).where("part IS NOT NULL"), stretch)
    return found.join(repeated, F.col("ended_alone") == F.col("repeated"), "left_anti")


def attempts(entries: DataFrame, stretch: Stretch) -> DataFrame:
    """Return those of `mail_events` that an attempt made."""
    attempted = _near(entries, stretch).where(_has_outcomes())
    return _lines(attempted.withColumn("part", F.lit(_ATTEMPTED)), stretch)


def _near(entries: DataFrame, stretch: Stretch) -> DataFrame:
    moments = ("accepted_at", "delivered_at", "ended_at")
    near = entries.where(reduce(or_, (within(F.col(each), [stretch]) for each in moments)))
    # One array for each field, so that only those are read that are counted.
    arrays = {_array(each): F.col(f"outcomes.{each}") for each in _OUTCOME}
    return _with_one_spelling(near.withColumns(arrays))


def _with_one_spelling(entries: DataFrame) -> DataFrame:
    """Give domains that are the same one name. Only U-labels cost functions of arrays."""
    arrays = ("domains", _array("domain"))
    every = F.concat(F.array("sender_domain"), *(F.coalesce(each, F.array()) for each in arrays))
    found = entries.select(F.explode(every).alias("name")).where(F.col("name").rlike(_NOT_ASCII))
    names = {row[0]: same_domain(row[0]) for row in found.distinct().collect()}
    if not names:
        return entries
    known = F.create_map(*(F.lit(each) for pair in names.items() for each in pair))

    def name(domain: Column) -> Column:
        return F.coalesce(known[domain], domain)

    renamed = {each: F.transform(each, name) for each in arrays}
    return entries.withColumns({"sender_domain": name(F.col("sender_domain")), **renamed})


def _array(field: str) -> str:
    return f"outcome_{field}"


def _is_accepted() -> Column:
    """A mail's first entry was queued at acceptance; one that was withdrawn never was accepted."""
    is_first = F.col("enqueued_at") == F.col("accepted_at")
    return is_first & (F.col("state") != EndingKind.WITHDRAWN.value)


def _has_outcomes() -> Column:
    return F.coalesce(F.size(_array("kind")), F.lit(0)) > 0


def _over_as() -> Column:
    """Meaning of the end of an entry for its recipients, without an attempt; null: it goes on."""
    kind = F.when(F.col("state") == DELIVERED, F.lit(DELIVERED))
    for state, becomes in _OVER_BY_ENDING.items():
        kind = kind.when(F.col("state") == state, F.lit(becomes))
    return kind


def _lines(parts: DataFrame, stretch: Stretch) -> DataFrame:
    """One line for each outcome of an attempt, and else for each domain. `ended_alone` has the id
    of an entry that ended without an attempt."""
    is_attempt = F.col("part") == _ATTEMPTED
    number = F.when(is_attempt, F.size(_array("kind"))).otherwise(F.size("domains"))
    places = F.when(number > 0, F.sequence(F.lit(0), number - 1))
    # The delivery of an entry that was replaced before comes later.
    over_at = F.coalesce("delivered_at", "ended_at")
    placed = parts.withColumn(
        "at", F.when(F.col("part") == ACCEPTED, F.col("accepted_at")).otherwise(over_at)
    ).where(within(F.col("at"), [stretch]))
    exploded = placed.withColumn("place", F.explode(places))
    place = F.col("place")
    outcome = {each: F.col(_array(each))[place] for each in _OUTCOME}
    of_outcome = (
        F.when(is_attempt, outcome[name]).otherwise(F.lit(without)).alias(name)
        for name, without in _WITHOUT.items()
    )
    is_delivery = is_attempt & (outcome["kind"] == OutcomeKind.DELIVERED.value)
    is_deferral = is_attempt & (outcome["kind"] == OutcomeKind.DEFERRED.value)
    return exploded.select(
        *("mail_id", "sender_domain", "size_bytes", "accepted_at", "at"),
        F.when(F.col("part") == ACCEPTED, F.lit(ACCEPTED))
        .when(is_attempt, outcome["kind"])
        .otherwise(_over_as())
        .alias("kind"),
        F.when(is_attempt, outcome["domain"]).otherwise(F.col("domains")[place]).alias("domain"),
        F.when(is_attempt, outcome["count"])
        .otherwise(F.col("domain_counts")[place])
        .alias("recipients"),
        *of_outcome,
        (is_deferral & (F.col("state") == REJECTED)).alias("gives_up"),
        (is_attempt & _is_first("domain", "site")).alias("begins_attempt"),
        (is_delivery & _is_first("domain", "site", "kind")).alias("begins_delivery"),
        F.when(F.col("part") == _UNATTEMPTED, F.col("enqueue_id")).alias("ended_alone"),
    )


def _is_first(*fields: str) -> Column:
    """True if no earlier outcome of the attempt is equal in these fields."""
    arrays = [_array(each) for each in fields]
    these = ", ".join(f"{each}[place] AS {each}" for each in arrays)
    first = f"array_position(arrays_zip({', '.join(arrays)}), struct({these})) = place + 1"
    return (F.col("place") == 0) | F.expr(first)


_SHARES = (0.5, 0.95, 0.99)
_COUNTS = ("accepted", "delivered", "deferred", "rejected", "removed", "attempts", "bytes")


def traffic(
    entries: DataFrame, stretch: Stretch, by: Collection[str] = TRAFFIC_PARTS
) -> tuple[TrafficLine, ...]:
    """Return what happened in a stretch of time, by these parts in order; without, one line."""
    hour = F.unix_micros(F.date_trunc("hour", "at"))  # no local time of Python's
    waited = F.when(_is_delivery(), F.unix_millis("at") - F.unix_millis("accepted_at"))
    found = mail_events(entries, stretch).withColumns({"hour": hour, "milliseconds": waited})
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


MAX_REASONS = 3
"""Reasons that are named for each destination."""

_PLACE = ("domain", "site")
Place = tuple[str, str]


def destinations(entries: DataFrame, stretch: Stretch) -> tuple[DestinationLine, ...]:
    """Return each destination's answers in a stretch, busiest first, beside 7 days before."""
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
    is_common = (F.row_number().over(of_place) <= MAX_REASONS) & F.col("reason").isNotNull()
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
        mail_events(entries, Stretch(stretch.first, LATEST))
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
    """Replies that one place answered."""

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
            anomalies=anomalies(now, self.classes, before, self.classes_before),
        )


def _commonest(reasons: Iterable[ReasonCount]) -> tuple[ReasonCount, ...]:
    ordered = sorted(reasons, key=lambda each: (-each.count, each.reason, each.code, each.words))
    return tuple(ordered[:MAX_REASONS])
