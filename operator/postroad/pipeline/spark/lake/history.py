"""The history of a store in a directory as DataFrames: its segments, read in Python once as batches
of Arrow, and what the parts of a mail make, by columns. Source: ADR 0063."""

from collections.abc import Iterable, Iterator
from datetime import timedelta
from functools import partial
from itertools import islice
from typing import Any

import pyarrow
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # its usual name
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from postroad.domain.queues.entries import EndingKind
from postroad.embedded.log.options import MIB
from postroad.pipeline.archive.embedded_parts import HOUR, HistoryReader, PartKind
from postroad.pipeline.spark.columns import slice_of
from postroad.pipeline.spark.lake.schema import ENTRIES
from postroad.pipeline.states import DELIVERED, WAITING

BATCH = 10_000
"""Parts of a batch."""

TASK_BYTES = 32 * MIB
"""Bytes of segments that a task reads, where there are more than tasks at a time: a start of one
takes as long as a thousand parts."""


def read_parts(session: SparkSession, reader: HistoryReader, schema: StructType) -> DataFrame:
    """Return the parts of segments, not read yet, in columns of this schema, that of `PARTS`. Each
    task reads some segments."""
    count, size = len(reader.segments), sum(each.end - first for each, first in reader.segments)
    tasks = max(session.sparkContext.defaultParallelism, size // TASK_BYTES)
    numbers = session.range(0, count, numPartitions=min(count, tasks))
    return numbers.mapInArrow(partial(_batches, reader, to_arrow_schema(schema)), schema)


def _batches(reader: HistoryReader, schema: Any, numbers: Iterable[Any]) -> Iterator[Any]:
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            parts = reader.parts(number)
            while some := list(islice(parts, BATCH)):
                columns = zip(zip(*some, strict=True), schema.types, strict=True)
                yield pyarrow.RecordBatch.from_arrays(
                    [pyarrow.array(*each) for each in columns], schema=schema
                )


def _of(kind: PartKind, *columns: str) -> Column:
    """The parts of a kind of one mail, each once, in the order of its envelopes."""
    part = F.when(F.col("kind") == kind.value, F.struct("entry_number", *columns))
    return F.sort_array(F.collect_set(part))


def unfinished_mails(parts: DataFrame) -> DataFrame:
    """Return the ids of mails of which more may come: there is no end yet, or an envelope is
    missing that another part names."""
    envelopes = F.when(F.col("kind") == PartKind.ENVELOPE.value, F.col("place"))
    found = parts.groupBy("mail_id").agg(
        F.bool_or(F.col("kind") == PartKind.FINISH.value).alias("has_ended"),
        F.array_except(F.collect_set("before"), F.collect_set(envelopes)).alias("missing"),
    )
    return found.where(~F.col("has_ended") | (F.size("missing") > 0)).select("mail_id")


_ENVELOPE = (
    *("enqueue_id", "sender", "sender_domain", "recipients", "domains", "domain_counts"),
    *("size_bytes", "attempt", "held", "is_dead", "accepted_at", "enqueued_at", "due_at"),
)


def entry_lines(parts: DataFrame) -> DataFrame:
    """Return the lines of `schema.ENTRIES` that parts make, in any order and more than once. An
    entry has several envelopes where it was written again."""
    envelopes, last = F.col("envelopes"), F.col("last")
    mails = parts.groupBy("mail_id").agg(
        _of(PartKind.ENVELOPE, *_ENVELOPE).alias("envelopes"),
        _of(PartKind.OUTCOMES, "outcomes", "seconds", "at").alias("attempts"),
        F.get(_of(PartKind.FINISH, "is_removed", "since"), F.lit(0)).alias("finish"),
    )
    later = F.get(envelopes, F.col("number") + 1)
    is_last = later.isNull() | later.is_dead | (later.enqueue_id != last.enqueue_id)
    found = mails.select("*", F.posexplode("envelopes").alias("number", "last"))
    entries = found.where(~last.is_dead & is_last).select(
        *("mail_id", "last", "attempts", "finish"),
        later.alias("later"),
        F.get(F.filter("envelopes", partial(_is_of, last)), F.lit(0)).alias("first"),
    )
    attempts = F.filter("attempts", partial(_is_between, F.col("first"), last))
    attempt = F.element_at(attempts, -1).alias("attempt")
    return _lines(entries.select("mail_id", "first", "last", "later", "finish", attempt))


def _is_of(last: Column, each: Column) -> Column:
    return ~each.is_dead & (each.enqueue_id == last.enqueue_id)


def _is_between(first: Column, last: Column, each: Column) -> Column:
    return each.entry_number.between(first.entry_number, last.entry_number)


def _lines(entries: DataFrame) -> DataFrame:
    first, attempt = F.col("first"), F.col("attempt")
    is_written_again = (first.entry_number > 0) & (first.enqueued_at == first.accepted_at)
    # Else it would count as accepted once more.
    moved = first.enqueued_at + F.when(is_written_again, timedelta(microseconds=1)).otherwise(
        timedelta(0)
    )
    state, ended, successor = _ending()
    known = entries.withColumns({"enqueued_at": moved, "state": state, "ended": ended})
    at = F.greatest(F.coalesce(attempt.at, "ended"), "enqueued_at")
    known = known.withColumn("ended", F.when(F.col("ended").isNotNull(), at))
    is_delivered = F.col("state") == DELIVERED
    columns = {
        "slice_start": slice_of(F.col("enqueued_at"), HOUR),
        "bucket_id": F.lit(0),
        "recipient_count": F.size(first.recipients),
        "held": F.col("last").held,
        "is_final": F.col("ended").isNotNull(),
        "delivered_at": F.when(is_delivered, F.col("ended")),
        "ending": F.when(~is_delivered & F.col("ended").isNotNull(), F.col("state")),
        "ended_at": F.when(~is_delivered, F.col("ended")),
        "successor": successor,
        "outcomes": attempt.outcomes,
        "seconds": attempt.seconds,
        **{name: F.col(name) for name in ("mail_id", "enqueued_at", "state")},
    }
    return known.select(*(columns.get(name, first[name]).alias(name) for name in ENTRIES.columns))


def _ending() -> tuple[Column, Column, Column]:
    """Return what came of an entry, when, and its successor. An ending without a moment of its own
    was no earlier than the segment of its record was begun. Of a later entry, the ENVELOPE may be
    lost."""
    last, later, finish = F.col("last"), F.col("later"), F.col("finish")
    waits = finish.isNull() | (finish.entry_number < last.entry_number)
    cases = (
        (later.is_dead, EndingKind.REJECTED.value, later.due_at),
        (later.isNotNull(), EndingKind.REPLACED.value, later.enqueued_at),
        (waits, WAITING, F.lit(None)),
        (finish.entry_number > last.entry_number, EndingKind.REPLACED.value, finish.since),
        (finish.is_removed, EndingKind.REMOVED.value, finish.since),
    )
    state, at = F.lit(DELIVERED), finish.since
    for case, name, moment in reversed(cases):
        state, at = F.when(case, name).otherwise(state), F.when(case, moment).otherwise(at)
    return state, at, F.when(~later.is_dead, later.enqueue_id)


def lost_hours(parts: DataFrame) -> DataFrame:
    """Return the hours (`at`) in which something happened to an entry whose ENVELOPE is not among
    these parts."""
    entries = parts.where(F.col("kind") == PartKind.ENVELOPE.value)
    lost = parts.join(entries, ["mail_id", "entry_number"], "left_anti")
    return lost.select(slice_of(F.coalesce("at", "since"), HOUR).alias("at")).distinct()
