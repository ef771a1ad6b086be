"""Rows and marks as the tables of the view have them become what the domain makes of them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # its usual name

from postroad.adapters.cassandra.mark_statements import MARK_COLUMNS
from postroad.adapters.cassandra.session import UNSET
from postroad.adapters.cassandra.statements import ROW_COLUMNS
from postroad.adapters.cassandra.view import marks as mark_rows
from postroad.adapters.cassandra.view import rows
from postroad.domain.delivery.attempts import AttemptOutcomes, OutcomeCount
from postroad.domain.mail.mail import Envelope, OutcomeKind
from postroad.domain.queues.entries import (
    Change,
    Ending,
    EndingKind,
    Entry,
    EntryKey,
    Mark,
    Partition,
    PurgeWatermark,
)
from postroad.domain.smtp.bounces import BounceClass
from postroad.domain.values.identifiers import LAST, id_at
from postroad.pipeline.addresses import hashed_address
from postroad.pipeline.archive.planning import ReadCounts
from postroad.pipeline.spark import columns
from postroad.pipeline.spark.lake.schema import ENTRIES
from postroad.pipeline.spark.reading import counts_of, entry_lines, products
from postroad.pipeline.states import STATES, EntryFlags
from support.entry_lines import entry_line
from support.lake_frames import in_order, lines_in

pytestmark = [
    pytest.mark.needs("java", "mvn"),
    pytest.mark.timeout(600),
    # PySpark leaves the socket of a result to the garbage collection.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]

START, MILLISECOND = datetime(2026, 1, 1, 10, tzinfo=UTC), timedelta(milliseconds=1)
NOW = START + timedelta(minutes=90, milliseconds=123)
NOT_PURGED, PURGED = Partition(START, 0), Partition(START, 1)
WATERMARK = PurgeWatermark(LAST, NOW + MILLISECOND)

PLACE = "slice_start timestamp, bucket_id int, enqueue_id string"
ROWS = (
    f"{PLACE}, mail_id string, sender string, recipients array<string>, blob_key string,"
    " size_bytes bigint, accepted_at timestamp, enqueued_at timestamp, due_at timestamp,"
    " held boolean, attempt int"
)
COUNT = "`0`:string,`1`:string,`2`:string,`3`:int,`4`:string,`5`:string,`6`:int"
MARKS = (
    f"{PLACE}, delivered_at timestamp, ending string, ended_at timestamp, published boolean,"
    " replaced_by string, replaced_by_slice timestamp, remaining array<string>, new_attempt int,"
    f" outcomes array<struct<{COUNT}>>, seconds float"
)
"""The schemas by which the connector reads the tables."""


def names_of(schema: str) -> list[str]:
    return [each.split()[0] for each in schema.split(", ")]


def cells(values: dict[str, Any], schema: str) -> tuple[Any, ...]:
    """What the connector reads where these values were written."""
    read = {name: None if value is UNSET else value for name, value in values.items()}
    read["enqueue_id"] = str(read["enqueue_id"])
    for name in ("mail_id", "replaced_by"):
        read[name] = None if read.get(name) is None else str(read[name])
    lists = {"recipients", "remaining", "outcomes"}  # read as empty where they are null
    return tuple(
        read.get(name) or ([] if name in lists else read.get(name)) for name in names_of(schema)
    )


def row_cells(entry: Entry) -> tuple[Any, ...]:
    return cells(dict(zip(ROW_COLUMNS, rows.entry_values(entry), strict=True)), ROWS)


def mark_cells(
    key: EntryKey, mark: Mark, outcomes: AttemptOutcomes | None = None, **changed: Any
) -> tuple[Any, ...]:
    values: dict[str, Any] = {**key._asdict(), "delivered_at": mark.delivered_at}
    if mark.ending is not None:
        stored = mark_rows.ending_values(mark.ending)
        values |= dict(zip(MARK_COLUMNS[1:], stored, strict=True)) | {"published": mark.published}
    if outcomes is not None:
        values |= dict(
            zip(("outcomes", "seconds"), mark_rows.outcome_values(outcomes), strict=True)
        )
    return cells(values | changed, MARKS)


def key(number: int, partition: Partition) -> EntryKey:
    return EntryKey(*partition, id_at(START + number * MILLISECOND, 0, number))


def an_entry(number: int, partition: Partition = NOT_PURGED) -> Entry:
    place = key(number, partition)
    return Entry(
        key=place,
        mail_id=key(number + 1000, partition).enqueue_id,
        envelope=Envelope(
            (None, "a@Example.org", "a@ä.example")[number % 3],
            ("b@example.net", "c@EXAMPLE.net", "Postmaster", "d@a.example")[: number % 4 + 1],
        ),
        blob_key="key",
        size_bytes=2**33 + number,
        accepted_at=START - timedelta(hours=number),
        enqueued_at=START + number * MILLISECOND,
        due_at=None if number % 2 else NOW,
        held=number % 5 == 0,
        attempt=number % 7,
    )


def an_ending(kind: EndingKind) -> Ending:
    if kind is not EndingKind.REPLACED:
        return Ending(kind, NOW)
    change = Change(("b@example.net",), None, held=False, attempt=1, last_error=None)
    return Ending(kind, NOW, key(5000, PURGED), change)


def own_mark(flags: EntryFlags) -> Mark | None:
    if flags.ending is None and not flags.delivered:
        return None
    ending = None if flags.ending is None else an_ending(flags.ending)
    return Mark(START if flags.delivered else None, ending, flags.published)


OUTCOMES = AttemptOutcomes(
    (
        OutcomeCount("example.net", "mx", OutcomeKind.DELIVERED, 250, None, "", 2),
        OutcomeCount("", "", OutcomeKind.DEFERRED, 450, BounceClass.RATE, "slow down", 1),
    ),
    1.5,
)


def read(
    spark: SparkSession,
    row_lines: Iterable[tuple[Any, ...]],
    mark_lines: Iterable[tuple[Any, ...]],
    kept: columns.AddressColumn = columns.plain,
) -> DataFrame:
    watermark = (*PURGED, str(WATERMARK.through), WATERMARK.at)
    return entry_lines(
        spark.createDataFrame(list(row_lines), ROWS),
        spark.createDataFrame(list(mark_lines), MARKS),
        spark.createDataFrame(
            [watermark],
            "slice_start timestamp, bucket_id int, purged_through string, purged_at timestamp",
        ),
        kept,
    ).cache()


def test_every_combination_of_flags_is_what_the_domain_says(spark: SparkSession) -> None:
    entries = [an_entry(each, PURGED if flags.purged else NOT_PURGED) for each, flags in all_flags]
    marks = [own_mark(flags) for _, flags in all_flags]
    joined = list(zip(entries, marks, strict=True))
    # The mark that a purge has in its partition, and that of an entry that has no row.
    others = [
        mark_cells(EntryKey(*PURGED, LAST), Mark(ending=an_ending(EndingKind.REMOVED))),
        mark_cells(key(9999, NOT_PURGED), Mark(START)),
    ]
    lines = read(
        spark,
        map(row_cells, entries),
        [*(as_stored(entry.key, mark) for entry, mark in joined if mark is not None), *others],
    )

    expected = []
    for entry, own in joined:
        purged = WATERMARK.mark_of(entry.enqueue_id) if entry.key.partition == PURGED else None
        has_outcomes = own is not None and own.delivered_at is not None
        expected.append(entry_line(entry, own or purged, OUTCOMES if has_outcomes else None))
    assert lines_in(lines.select(*ENTRIES.columns)) == in_order(expected)
    for partition, counts in counts_of(lines).items():
        own_lines = [line for line in expected if line[:2] == partition]
        live = [line for line in own_lines if not line.is_final]
        unfinished = [line for line in live if line.ending is not None]
        assert counts == ReadCounts(len(own_lines), len(live), len(unfinished))


all_flags = list(enumerate(STATES))


def as_stored(at: EntryKey, mark: Mark) -> tuple[Any, ...]:
    outcomes = OUTCOMES if mark.delivered_at is not None else None
    later = mark.ending is not None and mark.ending.kind is EndingKind.UNKNOWN
    return mark_cells(at, mark, outcomes, **({"ending": "forwarded"} if later else {}))


def test_what_this_release_cannot_decode_is_set_aside(spark: SparkSession) -> None:
    """As the view decodes it: an ending without its parts is unknown, a row is undecodable."""
    replaced = Mark(ending=an_ending(EndingKind.REPLACED))
    broken = ({"remaining": None}, {"new_attempt": None}, {"replaced_by_slice": None})
    entries = [an_entry(each) for each in range(len(broken))]
    unreadable = [row_cells(an_entry(100 + each)) for each in range(len(NEVER_NULL))]
    for place, name in enumerate(NEVER_NULL):
        cell = names_of(ROWS).index(name)
        unreadable[place] = (*unreadable[place][:cell], None, *unreadable[place][cell + 1 :])
    lines = read(
        spark,
        [*map(row_cells, entries), *unreadable],
        [
            mark_cells(each.key, replaced, **parts)
            for each, parts in zip(entries, broken, strict=True)
        ],
    )

    decoded = lines_in(lines.where("not undecodable").select(*ENTRIES.columns))
    assert [(line.enqueue_id, line.ending, line.is_final) for line in decoded] == [
        (str(each.enqueue_id), "unknown", True) for each in entries
    ]
    assert counts_of(lines) == {NOT_PURGED: ReadCounts(3 + 7, 7, 0, 7)}


NEVER_NULL = (
    *("mail_id", "recipients", "blob_key", "size_bytes", "accepted_at", "enqueued_at", "attempt"),
)


@pytest.mark.parametrize("secret", [b"key", b"longer than a block of the hash, " * 3])
def test_a_hashed_address_is_the_keyed_hash_of_the_domain(
    spark: SparkSession, secret: bytes
) -> None:
    entries = [an_entry(each) for each in range(6)]
    kept = columns.hashed(secret)
    lines = lines_in(read(spark, map(row_cells, entries), [], kept).select(*ENTRIES.columns))

    for line, entry in zip(lines, entries, strict=True):
        assert line.sender == hashed_address(entry.envelope.sender or "", secret)
        assert line.recipients == tuple(
            hashed_address(each, secret) for each in entry.envelope.recipients
        )
        assert line.domains == entry.envelope.domains


def test_nothing_of_an_address_is_kept_but_its_domain(spark: SparkSession) -> None:
    lines = read(spark, [row_cells(an_entry(1))], [], columns.nothing)

    (found,) = lines.select("sender", "sender_domain", F.to_json("recipients")).collect()
    assert tuple(found) == (None, "example.org", "[null,null]")


def test_partitions_are_read_as_few_products_of_exactly_these() -> None:
    starts = [START + timedelta(hours=each) for each in range(3)]
    wanted = [Partition(*each) for each in product(starts, (0, 1, 4))] + [Partition(starts[0], 2)]

    found = products(wanted)

    assert found == [(starts, [0, 1, 4]), ([starts[0]], [2])]
