"""What of rows, marks and objects is a finding, and what is not one yet; and which waiting mail a
selector chooses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from pyspark.sql import DataFrame, SparkSession

from postroad.domain.configuration.rules import ViewConfiguration
from postroad.domain.mail.mail import Envelope
from postroad.domain.queues.entries import Change, Ending, EndingKind, Entry, Mark, Partition, place
from postroad.domain.queues.lost_messages import MessageCount, Messages
from postroad.domain.queues.selection import AGES, Selector, age_name
from postroad.domain.values.identifiers import id_at
from postroad.pipeline.results.findings import AuditTimes
from postroad.pipeline.spark.jobs import auditing
from postroad.pipeline.spark.jobs.waiting import ages, is_selected
from postroad.pipeline.states import EntryState

pytestmark = [
    pytest.mark.needs("java", "mvn"),
    pytest.mark.timeout(600),
    # PySpark leaves the socket of a result to the garbage collection.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]

NOW = datetime(2026, 3, 2, 12, 30, tzinfo=UTC)
SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
TIMES = AuditTimes(NOW, NOW - HOUR, NOW - 25 * SECOND, NOW - 6 * HOUR)
READING = (ViewConfiguration(HOUR, 3, 1000), ViewConfiguration(2 * HOUR, 2, 1000))
LONG_AGO = NOW - 9 * HOUR
STATES = (
    "slice_start timestamp, bucket_id int, enqueue_id string, mail_id string, name string,"
    " sender string, recipients array<string>, attributes map<string,string>, blob_key string,"
    " accepted_at timestamp, due_at timestamp, held boolean, has_row boolean, has_mark boolean,"
    " ending string, state struct<name:string,waits:boolean,is_final:boolean,needs_bytes:boolean>,"
    " over_at timestamp, successor string"
)


def an_entry(number: int, age: timedelta = 9 * HOUR, **more: Any) -> Entry:
    at = NOW - age
    return replace(
        Entry(
            key=place(id_at(at, 1, number), HOUR, 3),
            mail_id=id_at(at, 0, number),
            envelope=Envelope("a@example.org", ("b@example.net",)),
            blob_key=f"key{number:02}",
            size_bytes=1,
            accepted_at=at,
            enqueued_at=at,
        ),
        **more,
    )


def removed(at: datetime, kind: EndingKind = EndingKind.REMOVED) -> Mark:
    return Mark(ending=Ending(kind, at))


def replaced(by: Entry, at: datetime = LONG_AGO) -> Mark:
    change = Change(("b@example.net",), None, held=False, attempt=1, last_error=None)
    return Mark(ending=Ending(EndingKind.REPLACED, at, by.key, change), published=True)


def line(entry: Entry, mark: Mark | None = None, *, row: bool = True) -> tuple[Any, ...]:
    ending = None if mark is None else mark.ending
    moments = [each for each in (mark and mark.delivered_at, ending and ending.at) if each]
    envelope = entry.envelope
    of_row = (
        str(entry.mail_id), envelope.name, envelope.sender, list(envelope.recipients),
        dict(envelope.attributes), entry.blob_key, entry.accepted_at, entry.due_at,
    )  # fmt: skip
    return (
        *(entry.key.slice_start, entry.key.bucket_id, str(entry.enqueue_id)),
        *(of_row if row else [None] * len(of_row)),
        *(entry.held, row, mark is not None, None if ending is None else ending.kind.value),
        tuple(EntryState.of(mark)),
        max(moments, default=None),
        str(mark.successor.enqueue_id) if mark is not None and mark.successor else None,
    )


def states(spark: SparkSession, *lines: tuple[Any, ...]) -> DataFrame:
    return spark.createDataFrame(list(lines), STATES).cache()


def objects(spark: SparkSession, entries: Iterable[Entry]) -> DataFrame:
    found = [(each.blob_key, each.accepted_at) for each in entries]
    return spark.createDataFrame(found, "blob_key string, accepted_at timestamp")


def test_objects_that_no_mail_needs(spark: SparkSession) -> None:
    entries = [an_entry(each) for each in range(12)]
    young = an_entry(20, 5 * HOUR)
    found = states(
        spark,
        line(entries[0]),
        line(entries[1], Mark(LONG_AGO)),  # without a mail
        line(entries[2], Mark(NOW - 20 * SECOND)),
        line(entries[3], removed(LONG_AGO, EndingKind.REJECTED)),
        line(entries[4], replaced(entries[5])),  # without a mail: so did its successor end
        line(replace(entries[5], blob_key="key04"), removed(LONG_AGO)),
        line(entries[6], replaced(an_entry(60))),  # the successor's row was not read
        line(entries[7], removed(LONG_AGO, EndingKind.WITHDRAWN)),  # without a mail
        line(entries[8], removed(LONG_AGO, EndingKind.UNKNOWN)),
        line(entries[9], row=False, mark=Mark(LONG_AGO)),  # without a mail
    )
    bytes_of = objects(spark, [*entries, young])

    orphans = auditing.without_a_mail(bytes_of, found, ["key10"], TIMES)

    keys = [each.blob_key for each in auditing.orphan_lines(orphans, None)]
    assert keys == ["key01", "key04", "key05", "key07", "key09", "key11"]
    assert auditing.orphan_lines(orphans, entries[0].accepted_at) == []
    assert auditing.undecodable_until(found) is None


def test_mail_that_waits_without_bytes(spark: SparkSession) -> None:
    whole, lost, ended = (an_entry(each) for each in range(3))
    held = an_entry(3, held=True)
    young = an_entry(4, 59 * MINUTE)
    found = states(spark, *map(line, (whole, lost, held, young)), line(ended, removed(LONG_AGO)))

    lines = auditing.without_bytes(found, objects(spark, [whole]), TIMES)

    assert [(each.enqueue_id, each.blob_key) for each in lines] == [
        (str(each.enqueue_id), each.blob_key) for each in (lost, held)
    ]
    assert lines[0].at == lost.accepted_at


def test_marks_without_rows(spark: SparkSession) -> None:
    entries = [an_entry(each) for each in range(4)]
    passed, expired = an_entry(5, 12 * HOUR), an_entry(6, 20 * HOUR)
    young = an_entry(7, MINUTE)
    gone = [
        line(entries[0], removed(LONG_AGO), row=False),  # found
        line(entries[1], removed(LONG_AGO, EndingKind.WITHDRAWN), row=False),
        line(entries[2], Mark(NOW - SECOND), row=False),
        line(passed, removed(LONG_AGO), row=False),
        line(young, removed(NOW - 50 * SECOND), row=False),
    ]
    found = states(spark, *gone, line(entries[3], removed(LONG_AGO)))

    lines = auditing.marks_without_rows(found, TIMES, NOW - 10 * HOUR, timedelta(days=14))
    assert [each.enqueue_id for each in lines] == [str(entries[0].enqueue_id)]

    old = states(spark, line(expired, removed(LONG_AGO), row=False))
    assert auditing.marks_without_rows(old, TIMES, None, 15 * HOUR) == []
    assert len(auditing.marks_without_rows(old, TIMES, None, 25 * HOUR)) == 1


def test_a_row_is_where_one_of_the_configurations_puts_it(spark: SparkSession) -> None:
    right = an_entry(0)
    under_the_former = replace(right, key=place(right.enqueue_id, 2 * HOUR, 2))
    bucket = (right.key.bucket_id + 1) % 3
    wrong = replace(right, key=right.key._replace(bucket_id=bucket))
    young = an_entry(1, MINUTE)
    young = replace(young, key=young.key._replace(slice_start=LONG_AGO))
    found = states(spark, *map(line, (right, under_the_former, wrong, young)))

    lines = auditing.misplaced(found, READING, TIMES)

    assert [(each.slice_start, each.bucket_id) for each in lines] == [wrong.key.partition]
    counts = auditing.present(found, READING)
    assert counts == {right.key.partition: 1, under_the_former.key.partition: 1}
    marked = states(spark, line(wrong, removed(LONG_AGO)), line(right, Mark(NOW), row=False))
    assert auditing.present(marked, READING) == {
        Partition(*wrong.key.partition): 1,
        right.key.partition: 1,
    }


def test_waiting_mail_is_counted_as_the_domain_counts_it(spark: SparkSession) -> None:
    entries = [
        an_entry(0),
        an_entry(1, held=True),
        an_entry(2, due_at=NOW + HOUR),
        an_entry(3, due_at=NOW - HOUR),
        an_entry(4, 16 * MINUTE),
        an_entry(5, MINUTE),
    ]
    found = states(spark, *map(line, entries), line(an_entry(6), removed(LONG_AGO)))
    expected = MessageCount(Messages(1, 0, 0), NOW - 2 * MINUTE)
    for entry in entries:
        expected.add(entry)

    counted = auditing.count_waiting(found, MessageCount(Messages(1, 0, 0), NOW - 2 * MINUTE))

    assert counted == expected
    assert counted.missing == 3
    keys = auditing.waiting_keys(found, counted)
    assert set(keys) == {entries[each].key for each in (0, 2, 3, 4)}


WANTED = an_entry(
    0,
    2 * HOUR,
    envelope=Envelope(
        "a@example.org", ("b@Example.net", "c@example.com"), "name1", {"tenant": "t1"}
    ),
)
SELECTORS = [
    Selector.all(),
    Selector(),
    Selector(enqueue_id=WANTED.enqueue_id),
    Selector(enqueue_id=UUID(int=1)),
    Selector(name="name1"),
    Selector(name="name"),
    Selector(sender="a@example.org"),
    Selector(sender=""),
    Selector(recipient="c@example.com"),
    Selector(recipient="c@example.co"),
    Selector(domain="EXAMPLE.net"),
    Selector(domain="ple.net"),
    Selector(domains=frozenset({"example.net", "x.example"})),
    Selector(domains=frozenset()),
    Selector(older_than=HOUR),
    Selector(older_than=2 * HOUR),
    Selector(attribute=("tenant", "t1")),
    Selector(attribute=("tenant", "t2")),
    Selector(name="name1", sender="x@example.org"),
]


def test_a_selector_chooses_in_spark_what_it_chooses_in_the_domain(spark: SparkSession) -> None:
    plain = an_entry(1, HOUR, envelope=Envelope(None, ("postmaster",)))
    entries = {str(each.enqueue_id): each for each in (WANTED, plain)}
    found = states(spark, *map(line, entries.values()))
    names = [f"c{each}" for each in range(len(SELECTORS))]
    columns = [
        is_selected(each, NOW).alias(name) for each, name in zip(SELECTORS, names, strict=True)
    ]

    for row in found.select("enqueue_id", *columns).collect():
        chosen = [row[name] for name in names]
        assert chosen == [each.matches(entries[row.enqueue_id], NOW) for each in SELECTORS]


def test_ages_of_waiting_mail(spark: SparkSession) -> None:
    both = Envelope("a@example.org", ("b@example.net", "c@EXAMPLE.net", "d@b.example"))
    entries = [
        an_entry(0, 4 * MINUTE),
        an_entry(1, 5 * MINUTE, envelope=both),
        an_entry(2, 30 * HOUR),
    ]

    first, second = ages(states(spark, *map(line, entries)), NOW)

    assert (first.domain, first.total) == ("example.net", 3)
    assert {name: count for name, count in first.ages.items() if count} == {
        "5m": 1, "10m": 1, "older": 1,
    }  # fmt: skip
    assert list(first.ages) == [age_name(each) for each in AGES]
    assert (second.domain, second.total, second.ages["10m"]) == ("b.example", 1, 1)
