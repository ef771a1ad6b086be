"""Trace: all entries of the mails that an id or an address leads to."""

from __future__ import annotations

from datetime import timedelta

import pytest
from pyspark.sql import Column, SparkSession

from pipeline.lake_entries import MINUTE, NOON, History, deferred, delivered, frame
from postroad.domain.attempts import OutcomeCount
from postroad.domain.bounces import BounceClass
from postroad.domain.mail import OutcomeKind
from postroad.pipeline.coverage import Stretch
from postroad.pipeline.spark.tracing import of_address, of_mail, trace

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
    found = trace(frame(spark, history.entries), ALL, wanted)
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

    assert ids(spark, history, of_address("x@one.example")) == keys[:3]
    assert ids(spark, history, of_address("a@b.example")) == keys[1:]
    assert ids(spark, history, of_address("b@c.example")) == keys[1:3]  # left after one attempt
    assert ids(spark, history, of_address("one.example")) == []


def test_an_entry_has_what_came_of_it(spark: SparkSession, history: History) -> None:
    _, first, _, second, _ = history.entries

    one, other = trace(frame(spark, history.entries), ALL, of_mail(first["mail_id"]))

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
