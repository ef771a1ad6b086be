"""Reads rows and their marks by the connector to Cassandra: the only module of Spark that names
columns of the view.

The connector turns a condition on the whole partition key into one query a partition, if the
values of its columns are a product: so partitions are grouped by buckets that have the same slices.
Its extensions of SQL, and with them direct joins, stay off: these lose rows in outer joins.
Source: ADR 0047."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # its usual name
from pyspark.sql.types import ArrayType

from postroad.domain.queues.entries import EndingKind, Partition
from postroad.domain.values.instants import instant
from postroad.pipeline.archive.archive import PartitionsRead, Versions
from postroad.pipeline.archive.planning import ReadCounts
from postroad.pipeline.spark.columns import (
    AddressColumn,
    domain_counts_of,
    domain_of,
    domains_of,
    state_of,
)
from postroad.pipeline.spark.lake.schema import ENTRIES
from postroad.pipeline.spark.session import kept, translated

_FORMAT = "org.apache.spark.sql.cassandra"

_PLACE = ["slice_start", "bucket_id"]
_KEY = [*_PLACE, "enqueue_id"]
_ROW = (
    *("mail_id", "sender", "recipients", "blob_key", "size_bytes"),
    *("accepted_at", "enqueued_at", "due_at", "held", "attempt"),
)
AUDITED = ("mail_id", "blob_key", "accepted_at", "due_at", "held")
SELECTED = (*AUDITED, "name", "sender", "recipients", "attributes")
"""Fields that an audit needs of a row; and what a selector compares."""

_NEVER_NULL = ("mail_id", "blob_key", "size_bytes", "accepted_at", "enqueued_at", "attempt")
"""Columns without which a row is undecodable, beside the recipients."""

_MARK = (
    *("delivered_at", "ending", "ended_at", "published", "replaced_by"),
    *("replaced_by_slice", "remaining", "new_attempt", "outcomes", "seconds"),
)


class PartitionReader:
    """`EntrySource` over the tables of one queue. `address`: what the lake has of one."""

    def __init__(
        self, session: SparkSession, keyspace: str, queue: str, address: AddressColumn
    ) -> None:
        self._session = session
        self._keyspace = keyspace
        self._queue = queue
        self._address = address

    async def read(self, versions: Versions) -> PartitionsRead[DataFrame]:
        """See `EntrySource`. What was read stays as it was read, until Spark ends."""
        return await asyncio.to_thread(self._read, versions)

    async def states(self, versions: Versions, columns: Iterable[str] = AUDITED) -> DataFrame:
        """Read rows, then marks, and return one line for each entry that has either, with its
        state and these columns of its row: `entry_states`. They stay as they were read. Raises:
        JobFailed, CredentialsRefused."""
        return await asyncio.to_thread(self._states, versions, columns)

    def rows(self, versions: Versions) -> DataFrame:
        """Return whose mail the rows are, and when they were queued, without what became of them:
        ids, addresses and `enqueued_at`, as the lake has them."""
        wanted = ("mail_id", "sender", "recipients", "enqueued_at")
        lines = _of(self._table("enqueued_mails"), wanted, products(versions))
        return lines.withColumns(_addresses(self._address))

    def chosen(self, versions: Versions, choose: Callable[[DataFrame], DataFrame]) -> DataFrame:
        """Read some rows, and return their entries, as the lake has them. Only marks of partitions
        are read that have such rows."""
        rows = kept(choose(_of(self._table("enqueued_mails"), _ROW, products(versions))))
        found = rows.select(F.unix_micros("slice_start"), "bucket_id").collect()
        places = {Partition(instant(start), bucket) for start, bucket in found}
        marks = _of(self._table("deleted_mails"), _MARK, products(places))
        own = marks.join(F.broadcast(rows.select(*_KEY)), _KEY, "left_semi")
        watermarks = self._watermarks({each: versions[each] for each in places})
        lines = entry_lines(rows, own, watermarks, self._address)
        return lines.where(~F.col("undecodable")).select(*ENTRIES.columns)

    def _states(self, versions: Versions, columns: Iterable[str]) -> DataFrame:
        with translated():
            groups = products(versions)
            rows = _of(self._table("enqueued_mails"), columns, groups)
            rows = kept(rows.withColumn("has_row", F.lit(True)))
            marks = _of(self._table("deleted_mails"), _MARK, groups)
            marks = marks.where(F.col("enqueue_id").isNotNull()).withColumn("has_mark", F.lit(True))
            return kept(entry_states(rows, marks, self._watermarks(versions)))

    def _read(self, versions: Versions) -> PartitionsRead[DataFrame]:
        with translated():
            rows, marks = self._table("enqueued_mails"), self._table("deleted_mails")
            groups = products(versions)
            lines = entry_lines(
                *(_of(rows, _ROW, groups), _of(marks, _MARK, groups)),
                *(self._watermarks(versions), self._address),
            )
            # Not read twice: between two readings, cleanup may delete what the first one counted.
            lines = kept(lines)
            counts = dict.fromkeys(versions, ReadCounts(0, 0, 0)) | counts_of(lines)
            entries = lines.where(~F.col("undecodable")).select(*ENTRIES.columns)
            return PartitionsRead(entries, counts)

    def _table(self, name: str) -> DataFrame:
        options = {"keyspace": self._keyspace, "table": name}
        table = self._session.read.format(_FORMAT).options(**options).load()
        return table.where(F.col("queue") == self._queue)

    def _watermarks(self, versions: Versions) -> DataFrame:
        found = [
            (*partition, str(version.watermark.through), version.watermark.at)
            for partition, version in versions.items()
            if version.watermark is not None
        ]
        schema = "slice_start timestamp, bucket_id int, purged_through string, purged_at timestamp"
        return self._session.createDataFrame(found, schema)


Product = tuple[list[datetime], list[int]]
"""Slice starts and buckets: all partitions of these."""


def products(partitions: Iterable[Partition]) -> list[Product]:
    """Return the partitions as products: those buckets together that have the same slices."""
    slices: defaultdict[int, set[datetime]] = defaultdict(set)
    for partition in partitions:
        slices[partition.bucket_id].add(partition.slice_start)
    buckets: defaultdict[frozenset[datetime], list[int]] = defaultdict(list)
    for bucket, starts in sorted(slices.items()):
        buckets[frozenset(starts)].append(bucket)
    return [(sorted(starts), some) for starts, some in buckets.items()]


def _of(table: DataFrame, columns: Iterable[str], groups: Iterable[Product]) -> DataFrame:
    parts = [
        table.where(F.col("slice_start").isin(*starts) & F.col("bucket_id").isin(*buckets))
        for starts, buckets in groups
    ] or [table.where(F.lit(False))]
    return reduce(DataFrame.unionByName, (part.select(*_KEY, *columns) for part in parts))


def entry_lines(
    rows: DataFrame, marks: DataFrame, watermarks: DataFrame, address: AddressColumn
) -> DataFrame:
    """Return the lines of `lake_schema.ENTRIES`, as the domain decides about rows and marks, with
    `unfinished` (a replacement is under way) and `undecodable`."""
    joined = _with_states(rows.join(marks, _KEY, "left"), watermarks)
    by_purge = F.col("delivered_at").isNull() & F.col("ending").isNull() & F.col("purged")
    sender, recipients = F.coalesce("sender", F.lit("")), F.col("recipients")
    lacks = (F.col(name).isNull() for name in _NEVER_NULL)
    columns = {
        **_addresses(address),
        "sender_domain": domain_of(sender),
        "recipient_count": F.size(recipients),
        "domains": domains_of(recipients),
        "domain_counts": domain_counts_of(recipients),
        "held": F.coalesce("held", F.lit(False)),
        "state": F.col("state.name"),
        "is_final": F.col("state.is_final"),
        "ending": F.when(by_purge, EndingKind.REMOVED.value).otherwise(F.col("ending")),
        "ended_at": F.when(by_purge, F.col("purged_at")).when(
            F.col("ending").isNotNull(), F.col("ended_at")
        ),
        "successor": F.when(F.col("ending") == EndingKind.REPLACED.value, F.col("replaced_by")),
        "outcomes": F.when(F.col("seconds").isNotNull(), _outcomes(joined)),
        "unfinished": F.col("ending").isNotNull() & ~F.col("state.is_final"),
        "undecodable": reduce(Column.__or__, lacks, F.size(recipients) < 1),
    }
    names = [*ENTRIES.columns, "unfinished", "undecodable"]
    types = {name: kind for name, (kind, _) in ENTRIES.columns.items()}
    return joined.select(
        *(
            columns.get(name, F.col(name)).cast(types.get(name, "boolean")).alias(name)
            for name in names
        )
    )


def _addresses(address: AddressColumn) -> dict[str, Column]:
    """Form in the lake of the addresses of a row."""
    return {
        "sender": address(F.coalesce("sender", F.lit(""))),
        "recipients": F.transform("recipients", address),
    }


def entry_states(rows: DataFrame, marks: DataFrame, watermarks: DataFrame) -> DataFrame:
    """Return one line for each entry that has a row or a mark of its own: its place, the columns of
    its row, `has_row`, `has_mark`, `ending`, `state` (the fields of `EntryState`), `over_at` (when
    it was last written that it is over) and `successor`."""
    joined = _with_states(rows.join(marks, _KEY, "full"), watermarks)
    has = (F.coalesce(name, F.lit(False)).alias(name) for name in ("has_row", "has_mark"))
    others = (name for name in rows.columns if name not in {*_KEY, "held", "has_row"})
    return joined.select(
        *_KEY,
        *others,
        F.coalesce("held", F.lit(False)).alias("held"),
        *has,
        "ending",
        "state",
        F.greatest("delivered_at", "ended_at").alias("over_at"),
        F.col("replaced_by").alias("successor"),
    )


def _with_states(joined: DataFrame, watermarks: DataFrame) -> DataFrame:
    """Add `ending`, as far as this release can decode it, and `state`."""
    return (
        joined.join(F.broadcast(watermarks), _PLACE, "left")
        .withColumn("ending", readable_ending())
        .withColumn(
            "purged", F.coalesce(F.col("enqueue_id") <= F.col("purged_through"), F.lit(False))
        )
        .withColumn(
            "state", state_of(*map(F.col, ("ending", "delivered_at", "published", "purged")))
        )
    )


def readable_ending() -> Column:
    """The ending of a mark, as far as this release can decode it; else UNKNOWN. A list that is
    null is empty where the connector reads it; none of these is ever written empty."""
    ending = F.col("ending")
    known = [kind.value for kind in EndingKind]
    change = (F.col(name).isNotNull() for name in ("replaced_by_slice", "new_attempt"))
    has_change = reduce(Column.__and__, change, F.size("remaining") > 0)
    is_whole = F.col("ended_at").isNotNull() & ((ending != EndingKind.REPLACED.value) | has_change)
    is_readable = ending.isin(*known) & is_whole
    return F.when(
        ending.isNotNull(), F.when(is_readable, ending).otherwise(EndingKind.UNKNOWN.value)
    )


def _outcomes(joined: DataFrame) -> Column:
    """The outcomes with the names of their parts: the connector gives those of a tuple numbers."""
    kind = joined.schema["outcomes"].dataType
    assert isinstance(kind, ArrayType)
    places = kind.elementType.names
    names = ("domain", "site", "kind", "code", "reason", "words", "count")
    return F.transform(
        "outcomes",
        lambda each: F.struct(
            *(each[place].alias(name) for place, name in zip(places, names, strict=True))
        ),
    )


def counts_of(lines: DataFrame) -> dict[Partition, ReadCounts]:
    flags = (~F.col("is_final"), F.col("unfinished"), F.col("undecodable"))
    sums = (F.sum(flag.cast("long")) for flag in flags)
    counted = lines.groupBy(*_PLACE).agg(F.count(F.lit(1)), *sums)
    found = counted.select(F.unix_micros("slice_start"), *counted.columns[1:]).collect()
    return {
        Partition(instant(start), bucket): ReadCounts(*counts) for start, bucket, *counts in found
    }
