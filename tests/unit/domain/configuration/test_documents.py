"""The history as documents: read back equal, folded without loss, held against a status."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.domain.configuration.consistency import disagreement
from postroad.domain.configuration.documents import (
    FoldLimits,
    fold,
    from_document,
    size_of,
    to_document,
)
from postroad.domain.configuration.history import (
    ConfigurationAdopted,
    ConfigurationEvent,
    HistoryFolded,
    decide,
    replay,
)
from postroad.domain.configuration.rules import ViewConfiguration
from postroad.errors import InvalidInput

NOON = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)


def transitions(count: int) -> tuple[ConfigurationEvent, ...]:
    """A history of changes and refusals, each a minute after the one before."""
    history: tuple[ConfigurationEvent, ...] = ()
    buckets, index = 1, 0
    while len(history) < count:
        index += 1
        buckets += index % 3 != 0
        wanted = ViewConfiguration(
            timedelta(hours=1) if index % 3 else timedelta(hours=1, seconds=index),
            buckets,
            1000 + index,
        )
        event = decide(
            history, wanted, at=NOON + index * timedelta(minutes=1), by="test", generation=index
        ).event
        history += (event,) if event else ()
    return history


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
    [*transitions(4), ADOPTED, fold(transitions(9), FoldLimits(entries=3))[0]],
    ids=lambda event: type(event).__name__,
)
def test_an_event_is_read_back_equal(event: ConfigurationEvent) -> None:
    through_json = json.loads(json.dumps(to_document(event)))

    assert from_document(through_json) == event


@pytest.mark.parametrize("broken", ["sequence", "type", "at", "version", "bucketCount"])
def test_a_document_without_what_it_needs_is_refused(broken: str) -> None:
    document = to_document(transitions(1)[0])
    del document[broken]

    with pytest.raises(InvalidInput):
        from_document(document)


def test_a_document_of_an_unknown_type_is_refused() -> None:
    with pytest.raises(InvalidInput):
        from_document(to_document(transitions(1)[0]) | {"type": "ConfigurationForgotten"})


@given(st.integers(1, 70), st.integers(2, 12), st.integers(200, 6000))
def test_a_folded_history_replays_to_the_same_state(
    count: int, entries: int, size_bytes: int
) -> None:
    history = transitions(count)

    folded = fold(history, FoldLimits(entries, size_bytes))

    assert replay(folded) == replay(history)
    assert len(folded) <= entries
    assert size_of(folded) <= size_bytes or len(folded) == 2 or len(history) == 1
    counted = sum(each.count if isinstance(each, HistoryFolded) else 1 for each in folded)
    assert counted == count


def test_a_fold_is_folded_again_without_losing_count() -> None:
    history = transitions(40)

    twice = fold((*fold(history[:30], FoldLimits(entries=5)), *history[30:]), FoldLimits(entries=5))

    assert twice == fold(history, FoldLimits(entries=5))


def test_after_500_transitions_the_status_is_bounded_and_replays_to_the_same_state() -> None:
    history = transitions(500)

    folded = fold(history)

    assert len(folded) <= 50
    assert size_of(folded) <= 64 * 1024
    assert replay(folded) == replay(history)
    first = folded[0]
    assert isinstance(first, HistoryFolded)
    assert first.count == 500 - 49


def documents(history: tuple[ConfigurationEvent, ...]) -> list[dict[str, object]]:
    return [to_document(each) for each in history]


class TestAgreement:
    history = transitions(9)

    @pytest.mark.parametrize(
        "status",
        [
            pytest.param((), id="wiped"),
            pytest.param(history[:4], id="behind"),
            pytest.param(history, id="equal"),
            pytest.param(fold(history, FoldLimits(entries=3)), id="folded"),
        ],
    )
    def test_a_status_that_is_wiped_or_behind_contradicts_nothing(
        self, status: tuple[ConfigurationEvent, ...]
    ) -> None:
        assert disagreement(self.history, documents(status)) is None

    def test_an_unreadable_status_beside_a_history_contradicts_nothing(self) -> None:
        assert disagreement(self.history, [{"type": "FromTheFuture"}]) is None

    def test_a_status_without_a_history_is_a_contradiction(self) -> None:
        assert "gone" in (disagreement((), documents(self.history)) or "")
        assert "gone" in (disagreement((), [{"type": "FromTheFuture"}]) or "")

    def test_a_status_ahead_of_the_history_is_a_contradiction(self) -> None:
        found = disagreement(self.history[:5], documents(self.history))

        assert found is not None
        assert "ends with 5" in found

    def test_a_forked_history_is_a_contradiction(self) -> None:
        other = transitions(4)[:1] + tuple(
            event
            for event in [
                decide(
                    transitions(4)[:1],
                    ViewConfiguration(timedelta(minutes=1), 99),
                    at=NOON,
                ).event
            ]
            if event
        )

        assert "different events 2" in (disagreement(self.history, documents(other)) or "")

    def test_a_fold_to_another_state_is_a_contradiction(self) -> None:
        folded = fold(self.history, FoldLimits(entries=3))
        document = to_document(folded[0])
        document["bucketCount"] = 77

        assert disagreement(self.history, [document]) is not None

    def test_what_an_adoption_settled_is_not_brought_up_again(self) -> None:
        adopted = (ADOPTED,)

        assert disagreement(adopted, documents(transitions(7))) is None
        assert disagreement(adopted, documents(transitions(9))) is not None
