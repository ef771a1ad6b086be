"""The history as documents: read back equal, and folded without loss, small enough for a status."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.domain.configuration.consistency import REASON_BYTES
from postroad.domain.configuration.documents import configuration_from, from_document, to_document
from postroad.domain.configuration.history import (
    STATUS_ENTRIES,
    ConfigurationAdopted,
    ConfigurationChanged,
    ConfigurationEvent,
    ConfigurationRefused,
    HistoryFolded,
    fold,
    replay,
)
from postroad.domain.configuration.rules import ViewConfiguration, changes_between, refusal_of
from postroad.errors import InvalidInput
from support.histories import NOON, STATUS_BYTES, size_of, transitions

ADOPTED = ConfigurationAdopted(
    sequence=8,
    at=NOON.replace(microsecond=0),
    version=3,
    configuration=ViewConfiguration(timedelta(minutes=20), 4),
    reason="the keyspace was restored from Tuesday's backup",
    supersedes=7,
)


@pytest.mark.parametrize(
    "event",
    [*transitions(4), ADOPTED, fold(transitions(9), entries=3)[0]],
    ids=lambda event: type(event).__name__,
)
def test_an_event_is_read_back_equal(event: ConfigurationEvent) -> None:
    through_json = json.loads(json.dumps(to_document(event)))

    assert from_document(through_json) == event


def test_what_a_document_leaves_out_has_the_default() -> None:
    assert configuration_from({}) == ViewConfiguration()


@pytest.mark.parametrize(
    ("microsecond", "text"),
    [(0, "12:00:00Z"), (120_000, "12:00:00.120Z"), (1_999, "12:00:00.001Z")],
)
def test_times_are_written_in_utc_to_the_millisecond(microsecond: int, text: str) -> None:
    at = NOON.replace(microsecond=microsecond)
    zone = timezone(timedelta(hours=2))

    for each in (at, at.astimezone(zone)):
        written = to_document(replace(ADOPTED, at=each))["at"]
        assert written == f"{NOON:%Y-%m-%d}T{text}"


@pytest.mark.parametrize("broken", ["sequence", "type", "at", "version", "bucketCount"])
def test_a_document_without_what_it_needs_is_refused(broken: str) -> None:
    document = to_document(transitions(1)[0])
    del document[broken]

    with pytest.raises(InvalidInput):
        from_document(document)


def test_a_document_of_an_unknown_type_is_refused() -> None:
    with pytest.raises(InvalidInput):
        from_document(to_document(transitions(1)[0]) | {"type": "ConfigurationForgotten"})


@pytest.mark.parametrize(
    "event",
    [*transitions(4), ADOPTED, fold(transitions(9), entries=3)[0]],
    ids=lambda event: type(event).__name__,
)
def test_a_document_with_a_field_of_a_later_release_is_refused_by_name(
    event: ConfigurationEvent,
) -> None:
    with pytest.raises(InvalidInput, match="unknown: order"):
        from_document(to_document(event) | {"order": "byRecipient"})


@pytest.mark.parametrize("empty", [{"by": ""}, {"generation": None}], ids=str)
def test_a_document_with_an_empty_field_is_read(empty: dict[str, Any]) -> None:
    document = to_document(ADOPTED)

    assert from_document(document | empty) == from_document(document)


@given(st.integers(1, 70), st.integers(2, 12))
def test_a_folded_history_replays_to_the_same_state(count: int, entries: int) -> None:
    history = transitions(count)

    folded = fold(history, entries)

    assert replay(folded) == replay(history)
    assert len(folded) == min(count, entries)
    counted = sum(each.count if isinstance(each, HistoryFolded) else 1 for each in folded)
    assert counted == count


def test_a_fold_is_folded_again_without_losing_count() -> None:
    history = transitions(40)

    twice = fold((*fold(history[:30], entries=5), *history[30:]), entries=5)

    assert twice == fold(history, entries=5)


def test_after_500_transitions_the_status_is_bounded_and_replays_to_the_same_state() -> None:
    history = transitions(500)

    folded = fold(history)

    assert len(folded) <= 50
    assert size_of(folded) <= STATUS_BYTES
    assert replay(folded) == replay(history)
    first = folded[0]
    assert isinstance(first, HistoryFolded)
    assert first.count == 500 - 49


LONG = ViewConfiguration(timedelta(hours=2_666_665, minutes=59, seconds=59), 1024, 10**9)
"""The longest values that the resource definition lets in: a window of 16 characters."""
OTHER = ViewConfiguration(LONG.slice_window - timedelta(seconds=1), 1023, 10**9 - 1)
REFUSAL = refusal_of(LONG, OTHER)
assert REFUSAL is not None


@pytest.mark.parametrize(
    ("kind", "details"),
    [
        (
            ConfigurationChanged,
            {"version": 10**9, "configuration": LONG, "changes": changes_between(OTHER, LONG)},
        ),
        (ConfigurationRefused, {"wanted": OTHER, "refusal": REFUSAL}),
        (
            ConfigurationAdopted,
            {
                "version": 10**9,
                "configuration": LONG,
                "reason": "x" * (REASON_BYTES - 2),
                "supersedes": 10**9,
            },
        ),
    ],
)
def test_a_status_of_the_longest_events_is_below_its_limit(
    kind: type[ConfigurationEvent], details: dict[str, Any]
) -> None:
    """A change takes 485 bytes, a refusal 677 and an adoption 1,202: 50 * 1,202 < 65,536."""
    common: dict[str, Any] = {"at": NOON, "by": "config adopt", "generation": 2**63 - 1}
    begin = HistoryFolded(
        **common, sequence=10**9, version=10**9, configuration=LONG, count=10**9, since=NOON
    )
    history = [begin, *(kind(**common, sequence=10**9 + n, **details) for n in range(1, 60))]

    folded = fold(history)

    assert len(folded) == STATUS_ENTRIES
    assert size_of(folded[-1:]) * STATUS_ENTRIES < STATUS_BYTES
    assert size_of(folded) < STATUS_BYTES
    assert len(to_document(folded[-1]).get("message", "")) <= 1024
