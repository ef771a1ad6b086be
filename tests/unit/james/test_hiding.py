"""Which rows James' browse misses; what his events record."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from postroad.domain.configuration.history import ConfigurationEvent, decide
from postroad.domain.configuration.rules import ViewConfiguration
from postroad.domain.queues.entries import Partition
from postroad.errors import ConfigurationRefused, InvalidInput
from postroad.james.hiding import configurations_of, hidden_by, left_to_record

START = datetime(2026, 1, 2, 10, tzinfo=UTC)
HALF_HOURS = ViewConfiguration(timedelta(minutes=30), 4, 500)


def event(**changed: Any) -> dict[str, Any]:
    """An event as James 3.8.1 stores it."""
    return {
        "type": "cassandra-mail-queue-view-configuration",
        "eventId": 0,
        "aggregateKey": "CassandraMailQueueViewConfiguration",
        "bucketCount": 3,
        "updateBrowseStartPace": 1000,
        "sliceWindow": 3600.0,
    } | changed


def history(*configurations: ViewConfiguration) -> tuple[ConfigurationEvent, ...]:
    events: tuple[ConfigurationEvent, ...] = ()
    for each in configurations:
        decided = decide(events, each, at=START)
        assert decided.event is not None
        events = (*events, decided.event)
    return events


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        (Partition(START, 0), None),
        (Partition(START + timedelta(minutes=30), 3), None),
        (Partition(START - timedelta(minutes=30), 0), "before his browse start"),
        (Partition(START, 4), "bucketCount"),
        (Partition(START + timedelta(minutes=20), 0), "sliceWindow"),
    ],
)
def test_rows_that_his_browse_misses(place: Partition, reason: str | None) -> None:
    found = hidden_by(place, START, HALF_HOURS)

    assert found is None if reason is None else reason in str(found)


def test_queue_that_he_never_opened_hides_all() -> None:
    assert hidden_by(Partition(START, 0), None, HALF_HOURS)


def test_without_a_recorded_configuration_only_browse_start_hides() -> None:
    assert hidden_by(Partition(START + timedelta(minutes=7), 99), START, None) is None
    assert hidden_by(Partition(START - timedelta(minutes=7), 0), START, None)


def test_events_are_read_in_their_order() -> None:
    changed = event(eventId=1, bucketCount=4, sliceWindow=1800.0, updateBrowseStartPace=500)

    assert configurations_of([event(), changed]) == (ViewConfiguration(), HALF_HOURS)


@pytest.mark.parametrize(
    "changed", [{"type": "other"}, {"bucketCount": None}, {"sliceWindow": 0.5}, {"bucketCount": 0}]
)
def test_other_events_are_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        configurations_of([event(**changed)])


def test_import_goes_on_where_it_was_cut_short() -> None:
    first, second = ViewConfiguration(), HALF_HOURS

    assert left_to_record((), [first, first, second]) == (first, second)
    assert left_to_record(history(first), [first, second]) == (second,)
    assert left_to_record(history(first, second), [first, second]) == ()


def test_history_that_began_otherwise_is_left_alone() -> None:
    with pytest.raises(ConfigurationRefused):
        left_to_record(history(HALF_HOURS), [ViewConfiguration()])
    with pytest.raises(ConfigurationRefused):
        left_to_record(history(ViewConfiguration(), HALF_HOURS), [ViewConfiguration()])
    with pytest.raises(InvalidInput, match="recorded no configuration"):
        left_to_record((), [])
