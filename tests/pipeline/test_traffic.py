"""Traffic: counts of recipients by hour and place, from the entries of a queue's history."""

from __future__ import annotations

from dataclasses import astuple
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipeline.duck import TRAFFIC, answer
from pipeline.lake_entries import MINUTE, NOON, History, deferred, delivered, drawn, failed, frame
from postroad.domain.values.instants import instant
from postroad.pipeline.archive.planning import Stretch
from postroad.pipeline.results.lines import TrafficLine
from postroad.pipeline.spark.jobs.traffic import traffic

pytestmark = [
    pytest.mark.needs("java", "mvn"),
    pytest.mark.timeout(600),
    # PySpark leaves the socket of a result to the garbage collection.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]

HOUR = timedelta(hours=1)
ALL = Stretch(NOON, NOON + 12 * HOUR)


def total(spark: SparkSession, history: History, stretch: Stretch = ALL) -> TrafficLine:
    (line,) = traffic(frame(spark, history.entries), stretch, by=())
    return line


def test_a_mail_that_is_delivered_after_a_retry(spark: SparkSession) -> None:
    history = History()
    entry = history.accept("x@one.example", "a@b.example", "b@b.example", size=700)
    history.now += MINUTE
    entry = history.replace(entry, delivered(), deferred(), left=["b@b.example"])
    history.now += HOUR
    history.end(entry, "delivered", delivered())

    found = traffic(frame(spark, history.entries), ALL)

    names = ("one.example", "b.example")
    assert [astuple(each) for each in found] == [
        (NOON, *names, "", 2, 0, 0, 0, 0, 0, 0, None, None, None),
        (NOON, *names, "mx.b.example", 0, 1, 1, 0, 0, 1, 700, 60, 60, 60),
        (NOON + HOUR, *names, "mx.b.example", 0, 1, 0, 0, 0, 1, 700, 3660, 3660, 3660),
    ]


def test_those_who_are_refused_for_good_and_those_who_are_given_up_are_rejected(
    spark: SparkSession,
) -> None:
    history = History()
    entry = history.accept("", "a@b.example", "b@b.example", "c@b.example")
    history.now += MINUTE
    history.end(entry, "rejected", deferred(count=2), failed())

    found = total(spark, history)

    assert (found.accepted, found.deferred, found.rejected, found.delivered) == (3, 2, 3, 0)
    assert found.attempts == 1
    assert found.bytes == 0


def test_endings_of_administration_count_the_recipients_left(spark: SparkSession) -> None:
    history = History()
    removed, rejected = (history.accept("x@one.example", "a@b.example") for _ in range(2))
    history.now += MINUTE
    history.end(history.replace(removed, left=["a@b.example"]), "removed")
    history.end(rejected, "rejected")

    found = total(spark, history)

    assert (found.accepted, found.removed, found.rejected, found.attempts) == (2, 1, 1, 0)


def test_a_withdrawn_entry_was_not_accepted(spark: SparkSession) -> None:
    history = History()
    history.end(history.accept("x@one.example", "a@b.example"), "withdrawn")

    assert traffic(frame(spark, history.entries), ALL) == ()


def test_a_delivery_beside_a_replacement_counts_once(spark: SparkSession) -> None:
    history = History()
    entry = history.accept("x@one.example", "a@b.example")
    successor = history.replace(entry, left=["a@b.example"])
    history.now += MINUTE
    history.end(entry, "delivered", delivered())
    history.end(successor, "delivered")

    assert total(spark, history).delivered == 1


def test_a_delivery_that_an_older_release_marked_counts(spark: SparkSession) -> None:
    history = History()
    history.end(history.accept("x@one.example", "a@b.example", "b@b.example"), "delivered")

    assert total(spark, history).delivered == 2


def test_a_stretch_has_its_first_moment_and_not_its_last(spark: SparkSession) -> None:
    history = History()
    history.accept("x@one.example", "a@b.example")
    history.now += MINUTE
    history.accept("x@one.example", "a@b.example")

    assert total(spark, history, Stretch(NOON, NOON + MINUTE)).accepted == 1


@pytest.mark.parametrize("seed", [1, 2])
def test_traffic_is_what_duckdb_finds(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    entries = frame(spark, drawn(seed))
    entries.write.parquet(str(tmp_path / "entries"))
    stretch = Stretch(NOON + HOUR / 2, NOON + 3 * HOUR)

    expected = answer(tmp_path / "entries", TRAFFIC, stretch)
    found = traffic(entries, stretch)

    assert len(expected) > 50
    for line, (hour, *numbers, waited) in zip(found, expected, strict=True):
        *known, p50, p95, p99 = astuple(line)
        assert known == [instant(hour), *numbers]
        assert (p50, p95, p99) == pytest.approx(
            (None,) * 3 if waited is None else [each / 1000 for each in waited]
        )


def test_domain_is_one_in_each_of_its_spellings(spark: SparkSession) -> None:
    history = History()
    labels = ("b\u00fccher.example", "xn--bcher-kva.example")
    entry = history.accept(f"x@{labels[0]}", *(f"a@{each}" for each in labels), size=10)
    history.end(entry, "delivered", *(delivered(domain=each) for each in labels))

    found = traffic(frame(spark, history.entries), ALL, by=("sender_domain", "domain"))

    (line,) = found
    assert (line.sender_domain, line.domain) == (labels[1], labels[1])
    assert (line.accepted, line.delivered, line.attempts, line.bytes) == (2, 2, 1, 10)
