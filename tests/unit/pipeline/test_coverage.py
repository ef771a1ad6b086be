"""What an answer lacks: gaps, and what lies before and behind the archive."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from postroad.pipeline.archive.planning import Coverage, Gap, Stretch, coverage_of

NOON, HOUR = datetime(2026, 3, 2, 12, tzinfo=UTC), timedelta(hours=1)
DAY = Stretch(NOON, NOON + 24 * HOUR)
BEGUN, THROUGH = NOON - HOUR, NOON + 25 * HOUR


def at(*hours: int) -> Gap:
    first, before = hours
    return Gap(NOON + first * HOUR, NOON + before * HOUR)


def test_a_lake_that_has_all_lacks_nothing() -> None:
    assert coverage_of(DAY, [], BEGUN, THROUGH) == Coverage(DAY)
    assert Coverage(DAY).sentences() == ()


def test_gaps_are_cut_to_the_stretch() -> None:
    gaps = [at(-5, 2), at(5, 6), at(23, 30), at(-9, 0), at(24, 26)]

    found = coverage_of(DAY, gaps, BEGUN, THROUGH)

    assert found.lacking == (at(0, 2), at(5, 6), at(23, 24))


def test_what_lies_before_the_first_slice_and_what_is_not_archived_yet_is_lacking() -> None:
    found = coverage_of(DAY, [at(1, 4)], NOON + 2 * HOUR, NOON + 20 * HOUR)

    assert found.lacking == (at(0, 4), at(20, 24))


def test_an_empty_lake_lacks_all() -> None:
    assert coverage_of(DAY, [], None, None).lacking == (Gap(*DAY),)


def test_an_answer_names_what_it_lacks() -> None:
    (sentence,) = Coverage(DAY, (at(1, 2),)).sentences()

    assert "2026-03-02T13:00:00.000Z" in sentence
    assert "2026-03-02T14:00:00.000Z" in sentence


def test_an_answer_names_since_when_it_lacks_what_happened() -> None:
    found = coverage_of(DAY, [], BEGUN, THROUGH, NOON + HOUR)
    (sentence,) = found.sentences()

    assert "2026-03-02T13:00:00.000Z" in sentence
    assert coverage_of(DAY, [], BEGUN, THROUGH, DAY.before).sentences() == ()
