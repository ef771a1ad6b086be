"""What contradicts a history, the ways out of a lost or forked one, and what is no adoption."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from postroad.domain.configuration.consistency import REASON_BYTES, adopt, find_conflict
from postroad.domain.configuration.documents import to_document
from postroad.domain.configuration.history import (
    ConfigurationAdopted,
    ConfigurationEvent,
    decide,
    fold,
    replay,
)
from postroad.domain.configuration.rules import ViewConfiguration
from postroad.errors import ConfigurationRefused, HistoryMissing, InvalidInput
from support.histories import documents, transitions

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOUR, HALF, TENTH, OTHER = (
    ViewConfiguration(timedelta(minutes=60), 1),
    ViewConfiguration(timedelta(minutes=30), 2),
    ViewConfiguration(timedelta(minutes=6), 3),
    ViewConfiguration(timedelta(minutes=20), 4),
)

Events = tuple[ConfigurationEvent, ...]


def history_of(*configurations: ViewConfiguration, after: Events = ()) -> Events:
    for wanted in configurations:
        event = decide(after, wanted, at=NOON).event
        after += (event,) if event else ()
    return after


def adopted(
    mirror: Events, status: Events, wanted: ViewConfiguration | None, **more: object
) -> Events:
    return adopt(mirror, documents(status), wanted, at=NOON, by="test", reason="lost", **more)  # type: ignore[arg-type]


THREE = history_of(HOUR, HALF, TENTH)


def check(mirror: Events, status: Events, appended: Events, wanted: ViewConfiguration) -> None:
    """What holds after every adoption: the view's history continues, the status agrees with it."""
    complete = (*mirror, *appended)
    state = replay(complete)
    assert state is not None
    assert state.configuration == wanted
    assert isinstance(complete[-1], ConfigurationAdopted)
    assert find_conflict(complete, documents(status)) is None
    assert find_conflict(complete, documents(fold(complete))) is None


@pytest.mark.parametrize(
    "status",
    [THREE, fold(THREE, entries=2)],
    ids=["complete", "folded"],
)
def test_a_lost_history_is_brought_back_from_the_status(status: Events) -> None:
    appended = adopted((), status, None)

    check((), status, appended, TENTH)
    assert appended[:-1] == status
    assert (appended[-1].sequence, getattr(appended[-1], "version", 0)) == (4, 4)


def test_a_history_restored_from_a_backup_is_continued_with_what_the_status_remembers() -> None:
    appended = adopted(THREE[:1], THREE, None)

    check(THREE[:1], THREE, appended, TENTH)
    assert appended[:-1] == THREE[1:]


def test_a_gap_is_filled_from_the_status() -> None:
    mirror = (THREE[0], THREE[2])
    assert find_conflict(mirror, ()) is not None

    appended = adopted(mirror, THREE, None)

    assert appended[0] == THREE[1]
    check((), THREE, tuple(sorted((*mirror, *appended), key=lambda each: each.sequence)), TENTH)


def test_a_gap_that_nothing_fills_is_left_to_a_backup() -> None:
    with pytest.raises(HistoryMissing):
        adopted((THREE[0], THREE[2]), (), HALF)


def test_a_status_with_a_gap_of_its_own_brings_nothing_back() -> None:
    """What it remembers last still supersedes, and is the default."""
    appended = adopted(THREE[:1], THREE[2:], None)

    [adoption] = appended
    assert isinstance(adoption, ConfigurationAdopted)
    assert (adoption.sequence, adoption.version, adoption.supersedes) == (2, 2, 3)
    check(THREE[:1], THREE[2:], appended, TENTH)


def test_rows_without_any_history_are_adopted_under_a_given_configuration() -> None:
    appended = adopted((), (), HALF)

    check((), (), appended, HALF)
    assert len(appended) == 1


def test_without_any_history_an_adoption_needs_a_configuration() -> None:
    with pytest.raises(InvalidInput, match="nothing remembers it"):
        adopted((), (), None)


def test_a_fork_is_settled_by_what_reaches_both() -> None:
    """The view went one way, the status another; neither may be forgotten."""
    mirror, status = (
        history_of(HOUR, HALF),
        history_of(HOUR, OTHER, ViewConfiguration(timedelta(minutes=10), 5)),
    )
    assert find_conflict(mirror, documents(status)) is not None

    both = ViewConfiguration(timedelta(minutes=10), 5)
    appended = adopted(mirror, status, both)

    check(mirror, status, appended, both)
    assert len(appended) == 1


def test_what_would_leave_a_fork_unread_is_refused_with_what_reaches_all() -> None:
    mirror, status = history_of(HOUR, HALF), history_of(HOUR, OTHER)

    with pytest.raises(ConfigurationRefused) as refused:
        adopted(mirror, status, HALF)

    assert "10m and 4 buckets" in refused.value.hint


def test_what_the_rows_were_written_under_must_stay_reachable() -> None:
    with pytest.raises(ConfigurationRefused):
        adopted((), (), HALF, used=[TENTH])


def test_a_history_that_nothing_contradicts_cannot_be_adopted_over() -> None:
    with pytest.raises(InvalidInput, match="nothing to adopt"):
        adopted(THREE, THREE, TENTH)
    with pytest.raises(InvalidInput, match="nothing to adopt"):
        adopted(THREE, (), TENTH)


def test_a_reason_that_the_status_has_no_room_for_is_refused() -> None:
    """The API server would refuse every status that has such an event, for ever."""
    appended = adopt((), (), HALF, at=NOON, by="test", reason="x" * (REASON_BYTES - 2))

    assert len(appended) == 1
    with pytest.raises(InvalidInput, match="too long"):
        adopt((), (), HALF, at=NOON, by="test", reason="x" * 1025)


def test_an_adoption_that_was_cut_short_is_finished_by_the_next() -> None:
    appended = adopted((), THREE, None)

    again = adopted(appended[:1], THREE, None)

    assert again == appended[1:]


def test_after_an_adoption_the_rules_go_on_from_it() -> None:
    complete = adopted((), THREE, None)

    refused = decide(complete, HOUR, at=NOON)

    assert refused.refusal is not None
    assert refused.configured.configuration == TENTH


class TestConflicts:
    history = transitions(9)

    @pytest.mark.parametrize(
        "status",
        [
            pytest.param((), id="wiped"),
            pytest.param(history[:4], id="behind"),
            pytest.param(history, id="equal"),
            pytest.param(fold(history, entries=3), id="folded"),
        ],
    )
    def test_a_status_that_is_wiped_or_behind_contradicts_nothing(
        self, status: tuple[ConfigurationEvent, ...]
    ) -> None:
        assert find_conflict(self.history, documents(status)) is None

    def test_an_unreadable_status_beside_a_history_contradicts_nothing(self) -> None:
        assert find_conflict(self.history, [{"type": "FromTheFuture"}]) is None

    def test_a_status_without_a_history_is_a_contradiction(self) -> None:
        assert "gone" in (find_conflict((), documents(self.history)) or "")
        assert "gone" in (find_conflict((), [{"type": "FromTheFuture"}]) or "")

    def test_a_status_ahead_of_the_history_is_a_contradiction(self) -> None:
        found = find_conflict(self.history[:5], documents(self.history))

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

        assert "different events 2" in (find_conflict(self.history, documents(other)) or "")
        assert "different events 2" in (find_conflict(other, documents(self.history[:2])) or "")

    def test_a_fold_to_another_state_is_a_contradiction(self) -> None:
        folded = fold(self.history, entries=3)
        document = to_document(folded[0])
        document["bucketCount"] = 77

        assert find_conflict(self.history, [document]) is not None

    def test_what_an_adoption_settled_is_not_brought_up_again(self) -> None:
        adoption = ConfigurationAdopted(
            sequence=8, at=NOON, version=3, configuration=OTHER, reason="restored", supersedes=7
        )

        assert find_conflict((adoption,), documents(transitions(7))) is None
        assert find_conflict((adoption,), documents(transitions(9))) is not None

    def test_an_adoption_settles_all_before_it(self) -> None:
        adoption = ConfigurationAdopted(
            sequence=8, at=NOON, version=3, configuration=OTHER, reason="restored", supersedes=0
        )

        assert find_conflict((adoption,), documents(transitions(7))) is None
