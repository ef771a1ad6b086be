"""The connector reads exactly the partitions that are asked, as the view reads them."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest
from pyspark.sql import SparkSession

import servers
from pipeline.conftest import own_connection
from postroad.adapters.cassandra.connection import Access
from postroad.adapters.cassandra.store import CassandraViewStore
from postroad.distributed.entries.live_slices import with_marks
from postroad.domain.delivery.attempts import AttemptOutcomes, OutcomeCount
from postroad.domain.mail.mail import Envelope, OutcomeKind
from postroad.domain.queues.entries import (
    Change,
    Ending,
    EndingKind,
    Entry,
    EntryKey,
    Partition,
    PurgeWatermark,
    UndecodableRow,
)
from postroad.domain.smtp.bounces import BounceClass
from postroad.domain.values.identifiers import id_at
from postroad.errors import JobFailed
from postroad.pipeline.archive.planning import ReadCounts
from postroad.pipeline.java.key_stores import KeyStores
from postroad.pipeline.spark.columns import plain
from postroad.pipeline.spark.lake.schema import ENTRIES
from postroad.pipeline.spark.reading import PartitionReader
from postroad.pipeline.spark.spark_conf import cassandra_settings
from postroad.ports.view import View
from postroad.tls import ClientTls, Encryption
from support.certificates import Certificates
from support.entry_lines import EntryLine, entry_line
from support.keyspaces import keyspace
from support.lake_frames import in_order, lines_in
from support.tls_lines import tls_line

__all__ = ["keyspace"]

pytestmark = [
    pytest.mark.needs("java", "mvn", "cassandra"),
    pytest.mark.timeout(600),
    # PySpark leaves the socket of a result to the garbage collection.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]

START, HOUR = datetime(2026, 1, 1, 10, tzinfo=UTC), timedelta(hours=1)
MILLISECOND = timedelta(milliseconds=1)
QUEUE = "mail.outgoing"
OUTCOMES = AttemptOutcomes(
    (
        OutcomeCount("example.net", "mx", OutcomeKind.DELIVERED, 250, None, "", 2),
        OutcomeCount("", "", OutcomeKind.DEFERRED, 450, BounceClass.RATE, "slow down", 1),
    ),
    1.5,
)


@pytest.fixture
def configured(spark: SparkSession, keyspace: str, tmp_path: Path) -> Iterator[SparkSession]:
    with configuration(spark, servers.cassandra(keyspace), tmp_path):
        yield spark


@contextmanager
def configuration(spark: SparkSession, access: Access, folder: Path) -> Iterator[None]:
    settings = {**cassandra_settings(access, KeyStores(folder)), **own_connection()}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in settings:
            spark.conf.unset(name)


@pytest.fixture
async def store(keyspace: str) -> AsyncIterator[CassandraViewStore]:
    session = servers.session(keyspace)
    yield CassandraViewStore(session)
    await session.close()


def an_entry(partition: Partition, number: int) -> Entry:
    at = partition.slice_start + number * MILLISECOND
    key = EntryKey(*partition, id_at(at, 0, number))
    return Entry(
        key=key,
        mail_id=id_at(at, 1, number),
        envelope=Envelope(
            None if number % 3 == 0 else "a@Example.org",
            tuple(f"b{each}@{each}.example" for each in range(number % 4 + 1)),
        ),
        blob_key="key",
        size_bytes=100 + number,
        accepted_at=at - HOUR,
        enqueued_at=at,
        due_at=at + HOUR if number % 2 else None,
        held=number % 5 == 0,
        attempt=number,
    )


async def fill(view: View, partition: Partition) -> None:
    """Put entries of every fate into a partition, and a mark without a row."""
    entries = [an_entry(partition, number) for number in range(12)]
    for entry in entries:
        await view.insert(entry)
    at = partition.slice_start + HOUR
    change = Change(("b@example.net",), at, held=False, attempt=2, last_error="450 no")
    successor = EntryKey(START + 9 * HOUR, 1, id_at(at, 5, 5))
    endings = [
        *(Ending(kind, at) for kind in (EndingKind.REMOVED, EndingKind.REJECTED)),
        *(Ending(EndingKind.REPLACED, at, successor, change) for _ in range(2)),
    ]
    for entry, ending in zip(entries[2:], endings, strict=False):
        outcomes = OUTCOMES if ending.kind is EndingKind.REPLACED else None
        assert await view.end(entry.key, ending, entry.traits, outcomes) is None
    assert await view.mark_published(entries[5].key, successor.enqueue_id)
    for entry in entries[6:8]:
        await view.mark_delivered(entry.key, at, entry.traits, OUTCOMES)
    await view.mark_delivered(entries[4].key, at, entries[4].traits)
    withdrawn = an_entry(partition, 99)
    await view.end(withdrawn.key, Ending(EndingKind.WITHDRAWN, at), withdrawn.traits)


def id_of(row: Entry | UndecodableRow) -> UUID:
    return row.enqueue_id


async def expected_of(view: View, partition: Partition) -> tuple[list[EntryLine], ReadCounts]:
    lines, unfinished = [], 0
    async for row, mark in with_marks(view, partition, view.rows(partition), id_of):
        assert isinstance(row, Entry)
        line = entry_line(row, mark)
        unfinished += mark is not None and mark.is_unfinished_replacement
        number = row.size_bytes - 100
        if number in (4, 5, 6, 7):
            (counts, seconds) = entry_line(row, mark, OUTCOMES)[-2:]
            line = line._replace(outcomes=counts, seconds=seconds)
        lines.append(line)
    live = sum(not line.is_final for line in lines)
    return lines, ReadCounts(len(lines), live, unfinished)


async def test_what_was_asked_is_read_as_the_view_reads_it(
    configured: SparkSession, keyspace: str, store: CassandraViewStore
) -> None:
    view, other = store.view(QUEUE), store.view("mail.other")
    wanted = [Partition(START, 0), Partition(START, 1), Partition(START + HOUR, 1)]
    empty, unasked = Partition(START + 2 * HOUR, 2), Partition(START + HOUR, 0)
    for partition in (*wanted, unasked):
        await fill(view, partition)
    await fill(other, wanted[0])
    purged = wanted[1]
    through = an_entry(purged, 9).enqueue_id
    await view.set_watermark(purged, PurgeWatermark(through, START + 2 * HOUR))
    versions = {each: await view.version(each) for each in (*wanted, empty)}
    reader = PartitionReader(configured, keyspace, QUEUE, plain)

    read = await reader.read(versions)

    expected = {each: await expected_of(view, each) for each in wanted}
    assert {line.state for line in expected[purged][0]} == {
        *("delivered", "removed", "rejected", "replaced", "waiting"),
    }
    assert lines_in(read.entries) == in_order(
        line for lines, _ in expected.values() for line in lines
    )
    assert read.counts == {each: counts for each, (_, counts) in expected.items()} | {
        empty: ReadCounts(0, 0, 0)
    }
    assert list(read.entries.columns) == list(ENTRIES.columns)


async def test_an_entry_that_changes_after_the_reading_stays_as_it_was_read(
    configured: SparkSession, keyspace: str, store: CassandraViewStore
) -> None:
    """Counts and entries are of one reading, because cleanup may delete rows between two."""
    view, partition = store.view("mail.changing"), Partition(START, 0)
    entry = an_entry(partition, 1)
    await view.insert(entry)
    reader = PartitionReader(configured, keyspace, "mail.changing", plain)
    read = await reader.read({partition: await view.version(partition)})

    await view.insert(replace(an_entry(partition, 2)))
    await view.delete_rows(partition, datetime(2100, 1, 1, tzinfo=UTC))

    assert lines_in(read.entries) == [entry_line(entry, None)]


async def test_over_tls_a_server_of_another_authority_is_refused(
    spark: SparkSession, keyspace: str, store: CassandraViewStore, tmp_path: Path
) -> None:
    """The server asks for a client certificate too."""
    view, partition = store.view("mail.encrypted"), Partition(START, 0)
    await view.insert(an_entry(partition, 1))
    versions = {partition: await view.version(partition)}
    made, other = (Certificates.make(folder) for folder in made_in(tmp_path, "made", "other"))
    context = made.server_context()
    context.load_verify_locations(made.authority)
    context.verify_mode = ssl.CERT_REQUIRED
    plain_access = servers.cassandra(keyspace)
    async with tls_line(plain_access.port, context) as line:
        for of in (made, other):
            tls = ClientTls(of.authority, made.chain, made.key)
            access = replace(plain_access, port=line.port, encryption=Encryption.VERIFY_CA, tls=tls)
            with configuration(spark, access, of.authority.parent):
                reader = PartitionReader(spark, keyspace, "mail.encrypted", plain)
                if of is other:
                    with pytest.raises(JobFailed):
                        await reader.read(versions)
                else:
                    read = await reader.read(versions)
                    assert read.counts[partition].rows == 1
                    assert line.certified > 0


def made_in(folder: Path, *names: str) -> Iterator[Path]:
    for name in names:
        (folder / name).mkdir()
        yield folder / name
