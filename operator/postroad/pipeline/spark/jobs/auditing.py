"""Faults between objects, rows and marks, as Spark finds it. Source: ADR 0020, 0047.

`states` are lines of `reading.entry_states`, `objects` of `listing.listed`, which were read before
them, so that an object is missing only where a mark was written before it was deleted."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from functools import reduce
from operator import or_
from uuid import UUID

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # its usual name

from postroad.domain.configuration.rules import ViewConfiguration
from postroad.domain.queues.entries import EndingKind, EntryKey, Partition
from postroad.domain.queues.lost_messages import OVERDUE, MessageCount
from postroad.domain.values.identifiers import EPOCH
from postroad.domain.values.instants import instant, optional_instant
from postroad.pipeline.results.findings import AuditTimes, FindingKind, FindingLine
from postroad.pipeline.spark.columns import bucket_of, moment_of, slice_of

MAX_FINDINGS = 100_000
"""Findings of one kind that a run names and repairs; the next run finds the others."""

_ENTRY = ("slice_start", "bucket_id", "enqueue_id")


def without_a_mail(
    objects: DataFrame, states: DataFrame, dead_letter_keys: Iterable[str], times: AuditTimes
) -> DataFrame:
    """Return the objects that no row, no dead letter and until just before no mail needs."""
    rows = states.where("has_row")
    elsewhere = F.col("state.is_final") & F.col("ending").isin(
        EndingKind.REPLACED.value, EndingKind.WITHDRAWN.value
    )
    needs = (F.col("state.needs_bytes") & ~F.coalesce(elsewhere, F.lit(False))) | F.coalesce(
        F.col("over_at") >= F.lit(times.unsettled), F.lit(False)
    )
    # The row of a successor that was not read is on its way, or came after the rows were read.
    replaced = rows.where(F.col("ending") == EndingKind.REPLACED.value)
    ids = rows.select(F.col("enqueue_id").alias("successor"))
    unseen = replaced.join(ids, "successor", "left_anti")
    keys = rows.where(needs).select("blob_key").unionByName(unseen.select("blob_key"))
    dead_letters = objects.sparkSession.createDataFrame(
        [(each,) for each in dead_letter_keys], "blob_key string"
    )
    old = objects.where(F.col("accepted_at") < F.lit(times.uploaded))
    return old.join(keys, "blob_key", "left_anti").join(dead_letters, "blob_key", "left_anti")


def orphan_lines(orphans: DataFrame, spared: datetime | None) -> list[FindingLine]:
    """Return objects without a mail as findings, oldest first, but those accepted until a moment,
    which rows or dead letters may need that name no object."""
    if spared is not None:
        orphans = orphans.where(F.col("accepted_at") > F.lit(spared))
    found = orphans.orderBy("blob_key").limit(MAX_FINDINGS)
    rows = found.select("blob_key", F.unix_micros("accepted_at")).collect()
    return [FindingLine(FindingKind.ORPHAN, instant(moment), blob_key=key) for key, moment in rows]


def without_bytes(states: DataFrame, objects: DataFrame, times: AuditTimes) -> list[FindingLine]:
    """Return the mails that wait and whose objects were not listed."""
    waiting = states.where("has_row and state.waits and blob_key is not null")
    old = waiting.where(F.col("accepted_at") < F.lit(times.young))
    found = old.join(objects.select("blob_key"), "blob_key", "left_anti")
    return _entry_lines(found, FindingKind.WITHOUT_BYTES, F.col("accepted_at"))


def marks_without_rows(
    states: DataFrame, times: AuditTimes, browse_start: datetime | None, row_lifetime: timedelta
) -> list[FindingLine]:
    """Return the marks whose rows are gone, though nothing deletes them: not in a slice that
    cleanup may be at, not where the mark may have come before its row (a withdrawal), not where the
    row has reached the end of its lifetime."""
    made = moment_of(F.col("enqueue_id"))
    expired = times.began - min(row_lifetime, times.began - EPOCH)
    lacking = states.where("has_mark and not has_row").where(
        (made < F.lit(times.young))
        & (made > F.lit(expired))
        & ~(F.coalesce("over_at", F.lit(times.began)) >= F.lit(times.unsettled))
        & ~F.coalesce(F.col("ending") == EndingKind.WITHDRAWN.value, F.lit(False))
    )
    if browse_start is not None:
        lacking = lacking.where(F.col("slice_start") >= F.lit(browse_start))
    return _entry_lines(lacking, FindingKind.MARK_WITHOUT_ROW, made)


def misplaced(
    states: DataFrame, reading: Sequence[ViewConfiguration], times: AuditTimes
) -> list[FindingLine]:
    """Return the rows that lie where no configuration puts their ids."""
    made = moment_of(F.col("enqueue_id"))
    wrong = states.where("has_row").where(~is_placed(reading) & (made < F.lit(times.young)))
    return _entry_lines(wrong, FindingKind.MISPLACED, made)


def is_placed(reading: Sequence[ViewConfiguration]) -> Column:
    """`domain.slices.place`: whether an entry lies where one of these configurations puts it."""
    made = moment_of(F.col("enqueue_id"))
    return reduce(
        or_,
        (
            (F.col("slice_start") == slice_of(made, each.slice_window))
            & (F.col("bucket_id") == bucket_of(F.col("enqueue_id"), each.bucket_count))
            for each in reading
        ),
    )


def present(states: DataFrame, reading: Sequence[ViewConfiguration]) -> dict[Partition, int]:
    """Count the entries of each partition that have a row where it belongs, or a mark."""
    here = states.where((F.col("has_row") & is_placed(reading)) | F.col("has_mark"))
    counted = here.groupBy(F.unix_micros("slice_start").alias("start"), "bucket_id").count()
    return {Partition(instant(start), bucket): count for start, bucket, count in counted.collect()}


def undecodable_until(states: DataFrame) -> datetime | None:
    """Return until when mails were accepted that rows which name no object may need the bytes of;
    None: each row names one."""
    unnamed = states.where("has_row and blob_key is null")
    latest = unnamed.agg(F.max(F.unix_micros(moment_of(F.col("enqueue_id"))))).collect()[0][0]
    return optional_instant(latest)


def count_waiting(states: DataFrame, counted: MessageCount) -> MessageCount:
    """Count the mails that wait, as `MessageCount.add` does with each."""
    made = moment_of(F.col("enqueue_id"))
    since = F.greatest(made, F.coalesce("due_at", made))
    overdue = F.count_if(since < F.lit(counted.before - OVERDUE))
    counts = _waiting(states, counted).agg(F.count(F.lit(1)), overdue).collect()[0]
    counted.waiting, counted.overdue = counts
    return counted


def waiting_keys(states: DataFrame, counted: MessageCount) -> tuple[EntryKey, ...]:
    """Return the keys of the mails that were counted, oldest first."""
    found = _waiting(states, counted).orderBy("enqueue_id")
    rows = found.select(F.unix_micros("slice_start"), "bucket_id", "enqueue_id").collect()
    return tuple(EntryKey(instant(start), bucket, UUID(made)) for start, bucket, made in rows)


def _waiting(states: DataFrame, counted: MessageCount) -> DataFrame:
    waiting = states.where("has_row and not has_mark and not held and state.waits")
    return waiting.where(moment_of(F.col("enqueue_id")) < F.lit(counted.before))


def _entry_lines(entries: DataFrame, kind: FindingKind, at: Column) -> list[FindingLine]:
    found = (
        entries.select(*_ENTRY, "blob_key", at.alias("at"))
        .orderBy("enqueue_id")
        .limit(MAX_FINDINGS)
    )
    rows = found.select(
        F.unix_micros("slice_start").alias("start"),
        *("bucket_id", "enqueue_id", "blob_key"),
        F.unix_micros("at").alias("at"),
    )
    return [
        FindingLine(
            kind,
            optional_instant(row["at"]),
            instant(row["start"]),
            row["bucket_id"],
            row["enqueue_id"],
            row["blob_key"],
        )
        for row in rows.collect()
    ]
