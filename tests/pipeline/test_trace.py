"""Trace: all entries of the mails that an id or an address leads to."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # its usual name

from pipeline.lake_entries import MINUTE, NOON, Entry, History, deferred, delivered, frame
from postroad.domain.delivery.attempts import OutcomeCount
from postroad.domain.mail.mail import OutcomeKind
from postroad.domain.queues.entries import Partition
from postroad.domain.smtp.bounces import BounceClass
from postroad.errors import InvalidInput
from postroad.pipeline.addresses import hashed_address
from postroad.pipeline.archive.planning import Stretch
from postroad.pipeline.results.lines import TraceLine
from postroad.pipeline.spark.columns import is_among
from postroad.pipeline.spark.jobs.tracing import (
    FEW,
    TraceSelector,
    lines_of,
    mails_of,
    of_mail,
    selector_of,
    trace,
)
from postroad.pipeline.spark.lake.catalogs import LakePlace
from postroad.pipeline.spark.lake.lake import open_lake
from postroad.settings.pipeline import AddressKind

pytestmark = [
    pytest.mark.needs("java", "mvn"),
    pytest.mark.timeout(600),
    # PySpark leaves the socket of a result to the garbage collection.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]

DAY = timedelta(days=1)
ALL = Stretch(NOON, NOON + DAY)


@pytest.fixture(scope="module")
def history() -> History:
    """A mail with a retry, between two others; the last of another day."""
    made = History()
    made.accept("x@one.example", "other@b.example")
    made.now += MINUTE
    first = made.accept("x@one.example", "a@b.example", "b@c.example", size=700)
    made.now += MINUTE
    made.accept("y@one.example", "a@b.example")
    second = made.replace(first, delivered(domain="c.example"), deferred(), left=["a@b.example"])
    made.now += MINUTE
    made.end(second, "delivered", delivered())
    made.now += DAY
    made.accept("x@one.example", "a@b.example")
    return made


def ids(spark: SparkSession, history: History, wanted: Column) -> list[tuple[str, str]]:
    found = trace(lambda: frame(spark, history.entries), None, ALL, TraceSelector(wanted))
    return [(each.mail_id, each.enqueue_id) for each in found]


def test_a_mail_id_and_each_enqueue_id_lead_to_all_entries(
    spark: SparkSession, history: History
) -> None:
    _, first, _, second, _ = history.entries
    expected = [(first["mail_id"], each["enqueue_id"]) for each in (first, second)]

    for identifier in (first["mail_id"], first["enqueue_id"], second["enqueue_id"]):
        assert ids(spark, history, of_mail(identifier)) == expected


def test_an_address_leads_to_what_it_sent_and_what_it_got(
    spark: SparkSession, history: History
) -> None:
    before, first, third, second, _ = history.entries
    keys = [(each["mail_id"], each["enqueue_id"]) for each in (before, first, second, third)]

    assert ids(spark, history, is_among("x@one.example", None)) == keys[:3]
    assert ids(spark, history, is_among("a@b.example", None)) == keys[1:]
    assert ids(spark, history, is_among("b@c.example", None)) == keys[1:3]  # left after one attempt
    assert ids(spark, history, is_among("one.example", None)) == []


def test_an_entry_has_what_came_of_it(spark: SparkSession, history: History) -> None:
    _, first, _, second, _ = history.entries

    asked = selector_of(first["mail_id"], AddressKind.NONE, b"")
    one, other = trace(lambda: frame(spark, history.entries), None, ALL, asked)

    assert (one.state, one.successor, one.size_bytes) == ("replaced", second["enqueue_id"], 700)
    assert (one.accepted_at, one.ended_at) == (NOON + MINUTE, NOON + 2 * MINUTE)
    assert one.outcomes == (
        OutcomeCount("c.example", "mx.b.example", OutcomeKind.DELIVERED, 250, None, ""),
        OutcomeCount(
            *("b.example", "mx.b.example", OutcomeKind.DEFERRED, 450),
            *(BounceClass.GREYLISTED, "try later"),
        ),
    )
    assert (other.attempt, other.recipients, other.state) == (1, ("a@b.example",), "delivered")
    assert (other.delivered_at, other.ended_at, other.seconds) == (NOON + 3 * MINUTE, None, 0.5)


class Beside:
    """Entries of the view, as the lake would have them."""

    def __init__(self, spark: SparkSession, entries: list[Entry]) -> None:
        self._entries = frame(spark, entries)

    def mails(self, found: TraceSelector) -> set[str]:
        return mails_of(self._entries, ALL, found)

    def lines(self, mails: Collection[str]) -> list[TraceLine]:
        return lines_of(self._entries, ALL, mails)


def test_what_the_view_has_stands_in_place_of_what_the_lake_had(spark: SparkSession) -> None:
    """A mail waits in the lake, and goes on in the view alone: to other recipients than the one
    that is asked for, and by an entry that the lake does not have."""
    history = History()
    first = history.accept("x@one.example", "a@b.example", "b@c.example")
    history.accept("x@one.example", "other@c.example")
    archived = [dict(each) for each in history.entries]
    history.now += MINUTE
    second = history.replace(first, delivered(), left=["b@c.example"])
    later = history.accept("x@one.example", "a@b.example")
    beside = Beside(spark, [first, second, later])

    for what in ("a@b.example", first["mail_id"], second["enqueue_id"]):
        asked = selector_of(what, AddressKind.PLAIN, b"")
        found = trace(lambda: frame(spark, archived), beside, ALL, asked)

        mails = [first, second] if what != "a@b.example" else [first, second, later]
        assert [(each.enqueue_id, each.state) for each in found] == [
            (each["enqueue_id"], each["state"]) for each in mails
        ]


def test_more_mails_than_a_condition_can_name(spark: SparkSession) -> None:
    history = History()
    for number in range(FEW + 5):
        history.accept(f"{number % 2}@one.example", "a@b.example")
        history.accept("y@one.example", "c@d.example")

    found = trace(
        lambda: frame(spark, history.entries),
        None,
        ALL,
        TraceSelector(is_among("a@b.example", None)),
    )

    assert [each.enqueue_id for each in found] == [
        each["enqueue_id"] for each in history.entries[::2]
    ]


def test_an_id_is_looked_for_from_its_moment_on(spark: SparkSession, history: History) -> None:
    """Also that of an entry which came later than others of its mail."""
    _, first, _, second, last = history.entries
    asked = selector_of(last["enqueue_id"], AddressKind.NONE, b"")
    assert asked.since is not None
    assert NOON + MINUTE < asked.since < last["enqueued_at"]
    late = replace(
        selector_of(second["enqueue_id"], AddressKind.NONE, b""), since=second["enqueued_at"]
    )
    for identifier in (uuid4(), UUID(int=2**128 - 1)):  # of a time that no mail is of, or of none
        assert trace(
            lambda: frame(spark, history.entries), None, ALL,
            selector_of(str(identifier), AddressKind.NONE, b""),
        ) == ()  # fmt: skip

    found = trace(lambda: frame(spark, history.entries), None, ALL, late)

    assert [each.enqueue_id for each in found] == [first["enqueue_id"], second["enqueue_id"]]


@pytest.mark.parametrize("what", ["mail_id", "enqueue_id", "sender"])
def test_mail_of_a_store_whose_clock_was_set_back_is_found(spark: SparkSession, what: str) -> None:
    """Its ids grow on from where the clock was."""
    history = History()
    history.now += DAY
    entry = history.accept("x@one.example", "a@b.example")
    entry |= {"accepted_at": NOON, "enqueued_at": NOON}
    asked = selector_of(entry[what], AddressKind.PLAIN, b"", have_ids_moments=False)

    (found,) = trace(lambda: frame(spark, [entry]), None, ALL, asked)

    assert found.enqueue_id == entry["enqueue_id"]


@pytest.mark.parametrize("kind", list(AddressKind))
def test_what_can_be_asked_for_depends_on_what_is_kept(kind: AddressKind) -> None:
    with pytest.raises(InvalidInput, match="id"):
        selector_of("nothing", kind, b"key")
    if kind is AddressKind.NONE:
        with pytest.raises(InvalidInput, match="keeps no addresses"):
            selector_of("a@b.example", kind, b"key")


def test_an_address_is_found_by_its_hash(spark: SparkSession, history: History) -> None:
    entries = [
        each | {"recipients": [hashed_address(one, b"key") for one in each["recipients"]]}
        for each in history.entries
    ]

    found = trace(
        lambda: frame(spark, entries),
        None,
        ALL,
        selector_of("a@B.example", AddressKind.HASHED, b"key"),
    )

    assert [each.enqueue_id for each in found] == [
        history.entries[each]["enqueue_id"] for each in (1, 3, 2)
    ]


@pytest.mark.parametrize(("number", "others"), [(1, "2026-03-03-*"), (4, "2026-03-02-*")])
def test_files_without_the_mail_are_not_read(
    spark: SparkSession, history: History, tmp_path: Path, number: int, others: str
) -> None:
    """Those of other hours are deleted, so that it would be noticed."""
    lake = open_lake(
        spark, LakePlace(f"file:{tmp_path}/queue"), create=True, catalog=f"trace{uuid4().hex}"
    )
    start = F.date_trunc("hour", "enqueued_at")
    lines = frame(spark, history.entries).withColumns({"slice_start": start, "bucket_id": F.lit(0)})
    lake.put_entries(lines, [Partition(NOON, 0), Partition(NOON + DAY, 0)])
    (file,) = tmp_path.rglob(f"slice_start_hour={others}/*.parquet")
    file.unlink()
    wanted = history.entries[number]
    asked = selector_of(wanted["mail_id"], AddressKind.NONE, b"")

    found = trace(lake.entries, None, Stretch(NOON, NOON + 2 * DAY), asked)

    assert found[0].enqueue_id == wanted["enqueue_id"]


@pytest.mark.parametrize("spelling", ["a@b\u00fccher.example", "a@XN--bcher-kva.Example"])
@pytest.mark.parametrize("key", [None, b"a key of some length"])
def test_an_address_is_found_in_each_spelling_of_its_domain(
    spark: SparkSession, spelling: str, key: bytes | None
) -> None:
    history = History()
    for label in ("b\u00fccher.example", "xn--bcher-kva.example", "B\u00dccher.example"):
        address = f"a@{label}"
        history.accept("", address if key is None else hashed_address(address, key))

    assert len(ids(spark, history, is_among(spelling, key))) == 3
