"""What happened to recipients, from the lake's entries: one line for each thing that happened to
some recipients of an entry at one moment. `traffic` and `destinations` count these lines.
"""

from __future__ import annotations

from functools import reduce
from operator import and_, or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # its usual name

from postroad.domain.entries import EndingKind
from postroad.domain.mail import OutcomeKind
from postroad.pipeline.coverage import Stretch
from postroad.pipeline.spark.ranges import within
from postroad.pipeline.states import DELIVERED

ACCEPTED = "accepted"
REMOVED = EndingKind.REMOVED.value
REJECTED = EndingKind.REJECTED.value
_OVER_BY_ENDING = {REMOVED: REMOVED, REJECTED: REJECTED, EndingKind.EXPIRED.value: REJECTED}
"""What an ending without an attempt is to the recipients."""

_COMMON = ("mail_id", "sender_domain", "size_bytes", "accepted_at")
_NO_ATTEMPT = {
    "site": "",
    "code": 0,
    "reason": None,
    "words": "",
    "attempted": False,
    "gives_up": False,
    "begins_attempt": False,
    "begins_delivery": False,
}
"""What is left empty where nothing was transmitted."""


def movements(entries: DataFrame, stretch: Stretch) -> DataFrame:
    """Return what happened in a stretch of time.

    `kind` is `accepted`, an outcome of an attempt (delivered, deferred, failed), or how recipients
    ended without an attempt (rejected, removed, delivered); `recipients`: how many; `gives_up`:
    they were deferred, and the mail is given up with this attempt. `begins_attempt` and
    `begins_delivery` are true once for each entry, domain and site.

    A delivery without outcomes is that of an older release, or it repeats the one of a predecessor
    that was replaced while a consumer had it in hand: then it is not counted again.
    """
    moments = ("accepted_at", "delivered_at", "ended_at")
    near = entries.where(reduce(or_, (within(F.col(each), [stretch]) for each in moments)))
    parts = (_accepted(near), _attempted(near), _unattempted(near))
    found = parts[0].unionByName(parts[1]).unionByName(parts[2])
    return found.where(within(F.col("at"), [stretch]))


def _accepted(entries: DataFrame) -> DataFrame:
    """The first entry of a mail was queued when the mail was accepted; one that was withdrawn never
    was accepted."""
    is_first = F.col("enqueued_at") == F.col("accepted_at")
    first = entries.where(is_first & (F.col("state") != EndingKind.WITHDRAWN.value))
    return _of_recipients(first, F.lit(ACCEPTED), F.col("accepted_at"))


def _over_at() -> Column:
    """When an entry was over. The delivery of one that was replaced before comes later."""
    return F.coalesce("delivered_at", "ended_at")


def _unattempted(entries: DataFrame) -> DataFrame:
    ended = entries.where(F.size(F.coalesce("outcomes", F.array())) == 0)
    kind = F.when(F.col("state") == DELIVERED, F.lit(DELIVERED))
    for state, becomes in _OVER_BY_ENDING.items():
        kind = kind.when(F.col("state") == state, F.lit(becomes))
    ended = ended.where(kind.isNotNull())
    delivered = entries.where((F.col("state") == DELIVERED) & F.col("successor").isNotNull())
    repeated = delivered.select(F.col("successor").alias("enqueue_id"))
    return _of_recipients(ended.join(repeated, "enqueue_id", "left_anti"), kind, _over_at())


def _of_recipients(entries: DataFrame, kind: Column, at: Column) -> DataFrame:
    """One line for each domain of the recipients."""
    exploded = entries.select(
        *_COMMON,
        kind.alias("kind"),
        at.alias("at"),
        F.explode(F.arrays_zip("domains", "domain_counts")).alias("of"),
    )
    return exploded.select(
        *_COMMON,
        "kind",
        "at",
        F.col("of.domains").alias("domain"),
        F.col("of.domain_counts").alias("recipients"),
        *(F.lit(value).alias(name) for name, value in _NO_ATTEMPT.items()),
    )


def _attempted(entries: DataFrame) -> DataFrame:
    """One line for each count of an attempt."""
    exploded = entries.select(
        *_COMMON,
        _over_at().alias("at"),
        "state",
        "outcomes",
        F.posexplode("outcomes").alias("position", "outcome"),
    )
    is_delivery = F.col("outcome.kind") == OutcomeKind.DELIVERED.value
    is_deferral = F.col("outcome.kind") == OutcomeKind.DEFERRED.value
    return exploded.select(
        *_COMMON,
        F.col("outcome.kind").alias("kind"),
        "at",
        *(F.col(f"outcome.{name}").alias(name) for name in ("domain", "site", "code", "reason")),
        F.col("outcome.words").alias("words"),
        F.col("outcome.count").alias("recipients"),
        F.lit(True).alias("attempted"),
        (is_deferral & (F.col("state") == REJECTED)).alias("gives_up"),
        _is_first("domain", "site").alias("begins_attempt"),
        (is_delivery & _is_first("domain", "site", "kind")).alias("begins_delivery"),
    )


def _is_first(*fields: str) -> Column:
    """Whether no earlier count of the attempt is equal in these fields."""

    def is_equal(earlier: Column) -> Column:
        return reduce(and_, (earlier[field] == F.col("outcome")[field] for field in fields))

    return ~F.exists(F.slice("outcomes", 1, F.col("position")), is_equal)
