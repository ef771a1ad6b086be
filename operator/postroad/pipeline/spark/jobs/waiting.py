"""Mail that waits, as Spark reads it: counted by domain and age, or chosen by a selector."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial, reduce
from operator import and_
from uuid import UUID

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # its usual name

from postroad.distributed.entries.live_slices import occupied
from postroad.domain.queues.entries import EntryKey, Partition
from postroad.domain.queues.selection import AGES, Selector, age_name
from postroad.domain.values.identifiers import EPOCH
from postroad.domain.values.instants import instant
from postroad.pipeline.archive.archive import read_versions
from postroad.pipeline.results.lines import AgesLine
from postroad.pipeline.spark.columns import age_limit_of, domain_of, domains_of, nothing
from postroad.pipeline.spark.jobs.tracing import ViewTables
from postroad.pipeline.spark.lake.lake import in_thread
from postroad.pipeline.spark.reading import SELECTED, PartitionReader

Changer = Callable[[list[EntryKey]], int]
"""Changes the mails of these entries; returns how many. It is sent to executors."""


async def count_ages(
    session: SparkSession, tables: ViewTables, now: datetime, last: datetime
) -> tuple[AgesLine, ...]:
    """Count waiting mails by destination domain and age. `last`: the latest moment of an entry.
    Raises: ViewError, JobFailed, CredentialsRefused."""
    return await in_thread(ages, await _waiting(session, tables, last), now)


async def change_selected(
    session: SparkSession,
    tables: ViewTables,
    selector: Selector,
    changer: Changer,
    now: datetime,
    last: datetime,
) -> int:
    """Let the engine change the selected mails that wait; return how many it did. `last`: the
    latest moment of an entry. Raises: ViewError, JobFailed, CredentialsRefused."""
    entries = await _waiting(session, tables, last)
    return await in_thread(_change, entries.where(is_selected(selector, now)), changer)


async def _waiting(session: SparkSession, tables: ViewTables, last: datetime) -> DataFrame:
    """Return the entries under which mail waits (`reading.entry_states`) in undrained slices."""
    view = tables.view
    first = (await view.limits()).browse_start or last
    drained = {each.slice_start async for each in view.closed_slices(first) if each.drained}
    found = [each async for each in occupied(view, tables.reading, first, last)]
    partitions: list[Partition] = [each for each in found if each.slice_start not in drained]
    reader = PartitionReader(session, tables.keyspace, tables.queue, nothing)
    states = await reader.states(await read_versions(view, partitions), SELECTED)
    return states.where("has_row and state.waits")


def ages(entries: DataFrame, now: datetime) -> tuple[AgesLine, ...]:
    """Count waiting mails by destination domain and age, those with most mail first."""
    domains = entries.select(
        F.explode(domains_of(F.col("recipients"))).alias("domain"),
        age_limit_of(F.col("accepted_at"), F.lit(now)).alias("minutes"),
    )
    counts: defaultdict[str, dict[str, int]] = defaultdict(
        lambda: dict.fromkeys(map(age_name, AGES), 0)
    )
    for domain, minutes, count in domains.groupBy("domain", "minutes").count().collect():
        limit = AGES[-1] if minutes is None else timedelta(minutes=minutes)
        counts[domain][age_name(limit)] = count
    lines = (AgesLine(domain, sum(found.values()), found) for domain, found in counts.items())
    return tuple(sorted(lines, key=lambda each: (-each.total, each.domain)))


def is_selected(selector: Selector, now: datetime) -> Column:
    """`Selector.matches`. The engine asks it again, of the entry as it is then."""
    conditions: list[Column] = [F.lit(not selector.is_empty)]
    if selector.enqueue_id is not None:
        conditions.append(F.col("enqueue_id") == str(selector.enqueue_id))
    if selector.name is not None:
        conditions.append(F.col("name") == selector.name)
    if selector.sender is not None:
        conditions.append(F.coalesce("sender", F.lit("")) == selector.sender)
    if selector.recipient is not None:
        conditions.append(F.array_contains("recipients", selector.recipient))
    if selector.domain is not None:
        wanted = selector.domain.lower()
        conditions.append(F.exists("recipients", lambda each: domain_of(each) == wanted))
    if selector.domains is not None:
        among = sorted(selector.domains)
        conditions.append(F.exists("recipients", lambda each: domain_of(each).isin(among)))
    if selector.older_than is not None:
        before = now - min(selector.older_than, now - EPOCH)
        conditions.append(F.col("accepted_at") < F.lit(before))
    if selector.attribute is not None:
        name, value = selector.attribute
        conditions.append(F.col("attributes")[name] == value)
    return F.coalesce(reduce(and_, conditions), F.lit(False))


def _change(entries: DataFrame, changer: Changer) -> int:
    """Change the mails of these entries, those of one partition in one task."""
    keys = entries.select(F.unix_micros("slice_start").alias("start"), "bucket_id", "enqueue_id")
    parts = 2 * entries.sparkSession.sparkContext.defaultParallelism
    together = keys.repartition(parts, "start", "bucket_id").sortWithinPartitions("enqueue_id")
    counts: Sequence[int] = together.rdd.mapPartitions(partial(_changed, changer)).collect()
    return sum(counts)


def _changed(changer: Changer, rows: Iterator[Row]) -> Iterable[int]:
    keys = [EntryKey(instant(row.start), row.bucket_id, UUID(row.enqueue_id)) for row in rows]
    return [changer(keys)] if keys else []
