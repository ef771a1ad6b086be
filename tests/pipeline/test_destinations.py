"""Destinations: how sites answered, what came of what they deferred, and anomalies."""

from __future__ import annotations

from collections import defaultdict
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipeline.duck import RECOVERIES, REPLIES, answer
from pipeline.lake_entries import MINUTE, NOON, History, deferred, delivered, drawn, failed, frame
from postroad.domain.smtp.bounces import BounceClass
from postroad.pipeline.archive.planning import Stretch
from postroad.pipeline.results.lines import DestinationLine, ReasonCount, Tally
from postroad.pipeline.spark.jobs.traffic import destinations

pytestmark = [
    pytest.mark.needs("java", "mvn"),
    pytest.mark.timeout(600),
    # PySpark leaves the socket of a result to the garbage collection.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
TODAY = Stretch(NOON, NOON + DAY)
TO = "a@b.example"


def found(spark: SparkSession, history: History) -> tuple[DestinationLine, ...]:
    return destinations(frame(spark, history.entries), TODAY)


def only(spark: SparkSession, history: History) -> DestinationLine:
    (line,) = found(spark, history)
    return line


def test_outcomes_classes_and_the_commonest_reasons(spark: SparkSession) -> None:
    history = History()
    for words, times in (("later", 3), ("slow down", 2), ("busy", 2), ("rare", 1)):
        for _ in range(times):
            history.end(history.accept("", TO), "rejected", deferred(words))
    history.end(history.accept("", TO), "rejected", failed())
    history.end(history.accept("", TO), "delivered", delivered(count=2))

    line = only(spark, history)

    assert (line.domain, line.site) == ("b.example", "mx.b.example")
    assert line.outcomes == Tally(delivered=2, deferred=8, failed=1)
    assert line.classes == {"greylisted": 8, "no-mailbox": 1}
    assert line.reasons == (
        ReasonCount("greylisted", 450, "later", 3),
        ReasonCount("greylisted", 450, "busy", 2),
        ReasonCount("greylisted", 450, "slow down", 2),
    )


def test_sites_are_apart_and_the_busiest_comes_first(spark: SparkSession) -> None:
    history = History()
    history.end(history.accept("", TO), "delivered", delivered(site="mx1"))
    history.end(history.accept("", TO, TO), "delivered", delivered(site="mx2", count=2))

    assert [each.site for each in found(spark, history)] == ["mx2", "mx1"]


def test_what_was_never_attempted_is_no_answer_of_a_site(spark: SparkSession) -> None:
    history = History()
    for state in ("removed", "rejected", "delivered"):
        history.end(history.accept("", TO), state)

    assert found(spark, history) == ()


def test_a_deferred_mail_recovers_when_it_is_delivered_later_wherever(spark: SparkSession) -> None:
    history = History()
    recovered, waiting, given_up = (history.accept("", TO) for _ in range(3))
    recovered, waiting = (
        history.replace(each, deferred(), left=[TO]) for each in (recovered, waiting)
    )
    history.end(given_up, "rejected", deferred())
    history.now += 2 * DAY
    history.end(recovered, "delivered", delivered(site="another"))

    line = only(spark, history)

    assert (line.deferred_mails, line.recovered) == (3, 1)


def test_the_delivery_to_another_recipient_in_the_same_attempt_is_no_recovery(
    spark: SparkSession,
) -> None:
    history = History()
    history.end(history.accept("", TO, TO), "rejected", delivered(), deferred())

    line = only(spark, history)

    assert (line.deferred_mails, line.recovered) == (1, 0)


def test_a_class_that_the_days_before_hardly_had_is_an_anomaly(spark: SparkSession) -> None:
    history = History(now=NOON - 3 * DAY)
    history.end(history.accept("", TO), "delivered", delivered(count=95))
    history.end(history.accept("", TO), "rejected", failed(count=5))
    history.now = NOON
    history.end(history.accept("", TO), "delivered", delivered(count=60))
    history.end(history.accept("", TO), "rejected", failed(count=5))
    history.end(
        history.accept("", TO), "rejected", failed("listed", reason=BounceClass.BLOCKED, count=35)
    )

    line = only(spark, history)

    assert [str(each) for each in line.anomalies] == [
        "refused 40.0% (before: 5.0%)",
        "blocked 35.0% (before: 0.0%)",
    ]


def test_replies_of_more_than_seven_days_ago_are_no_measure(spark: SparkSession) -> None:
    history = History(now=NOON - 7 * DAY - MINUTE)
    history.end(history.accept("", TO), "delivered", delivered(count=100))
    history.now = NOON
    history.end(history.accept("", TO), "rejected", failed(count=100))

    assert only(spark, history).anomalies == ()


@pytest.mark.parametrize("seed", [3, 4])
def test_destinations_are_what_duckdb_finds(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    entries = frame(spark, drawn(seed))
    entries.write.parquet(str(tmp_path / "entries"))
    stretch = Stretch(NOON + HOUR, NOON + 3 * HOUR)

    lines = {(each.domain, each.site): each for each in destinations(entries, stretch)}

    tallies: dict[tuple[str, str], dict[str, int]] = defaultdict(lambda: defaultdict(int))
    classes: dict[tuple[str, str], dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for domain, site, kind, reason, count in answer(tmp_path / "entries", REPLIES, stretch):
        tallies[domain, site][kind] += count
        if reason:
            classes[domain, site][reason] += count
    recoveries = answer(tmp_path / "entries", RECOVERIES, stretch)
    assert len(tallies) >= 6
    assert {place: each.outcomes for place, each in lines.items()} == {
        place: Tally(**each) for place, each in tallies.items()
    }
    assert {place: each.classes for place, each in lines.items()} == {
        place: dict(classes[place]) for place in lines
    }
    deferring = {place: each for place, each in lines.items() if each.deferred_mails}
    assert {place: (each.deferred_mails, each.recovered) for place, each in deferring.items()} == {
        (domain, site): (mails, recovered) for domain, site, mails, recovered in recoveries
    }
