"""Which configuration may follow which, and that what is accepted loses no mail."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.domain.configuration.documents import configuration_from
from postroad.domain.configuration.history import (
    ConfigurationChanged,
    ConfigurationCreated,
    ConfigurationEvent,
    ConfigurationRefused,
    decide,
    evolve,
    replay,
)
from postroad.domain.configuration.rules import ViewConfiguration, refusal_of
from postroad.domain.queues.entries import place, slices_between
from postroad.domain.values.identifiers import id_at
from postroad.domain.values.instants import parse_duration
from postroad.errors import HistoryMissing, InvalidInput
from support.configuration_cases import CASES, IMPOSSIBLE, Case, Impossible, View, document

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def configured(view: View) -> ViewConfiguration:
    return configuration_from(document(view))


def history_of(*configurations: ViewConfiguration) -> tuple[ConfigurationEvent, ...]:
    history: tuple[ConfigurationEvent, ...] = ()
    for wanted in configurations:
        event = decide(history, wanted, at=NOON).event
        history += (event,) if event else ()
    return history


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_change_is_decided_as_the_table_says(case: Case) -> None:
    before, after = configured(case.before), configured(case.after)

    decision = decide(history_of(before), after, at=NOON)

    if case.accepted:
        assert decision.refusal is None
        assert isinstance(decision.event, ConfigurationChanged | None)
        assert (decision.event is None) == (before == after)
        assert decision.configured.configuration == after
    else:
        assert isinstance(decision.event, ConfigurationRefused)
        assert decision.event.refusal == decision.refusal
        assert decision.configured.configuration == before
        assert decision.refusal is not None
        assert decision.refusal.reason == case.reason
        assert decision.refusal.message == "; ".join(case.messages)
        assert [each for some in decision.refusal.allowed.values() for each in some] == list(
            case.allowed
        )


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_configuration_may_be_the_first(case: Case) -> None:
    decision = decide((), configured(case.after), at=NOON)

    assert isinstance(decision.event, ConfigurationCreated)
    assert (decision.event.sequence, decision.event.version) == (1, 1)


@pytest.mark.parametrize("case", IMPOSSIBLE, ids=str)
def test_what_no_history_could_accept_is_invalid(case: Impossible) -> None:
    with pytest.raises(InvalidInput, match=case.field):
        configured(case.view)


def test_null_is_no_configuration() -> None:
    with pytest.raises(InvalidInput):
        configuration_from(None)


@pytest.mark.parametrize("field", ["bucketCount", "updateBrowseStartPace"])
@pytest.mark.parametrize("value", ["3", 3.5, True], ids=repr)
def test_counts_are_whole_numbers(field: str, value: object) -> None:
    with pytest.raises(InvalidInput, match=field):
        configuration_from({field: value})


def test_a_window_of_a_fraction_of_a_second_is_invalid() -> None:
    with pytest.raises(InvalidInput, match="whole seconds"):
        ViewConfiguration(timedelta(seconds=1, milliseconds=500))


def test_an_empty_history_leads_nowhere_and_a_longer_one_to_its_last_configuration() -> None:
    first, last = ViewConfiguration(), ViewConfiguration(bucket_count=4)

    assert replay(()) is None
    state = replay(history_of(first, last))
    assert state is not None
    assert (state.version, state.configuration) == (2, last)


def test_a_refusal_is_recorded_once_and_keeps_the_version() -> None:
    accepted, refused = ViewConfiguration(), ViewConfiguration(timedelta(minutes=25))
    other = ViewConfiguration(timedelta(hours=2))

    history = history_of(accepted, refused, refused, other, refused, other, accepted)

    assert [type(each).__name__ for each in history] == [
        "ConfigurationCreated",
        "ConfigurationRefused",
        "ConfigurationRefused",
    ]
    state = replay(history)
    assert state is not None
    assert (state.sequence, state.version, state.configuration) == (3, 1, accepted)


def test_a_refusal_is_recorded_again_after_another_change_was_accepted() -> None:
    refused = ViewConfiguration(timedelta(minutes=25))

    history = history_of(
        ViewConfiguration(), refused, ViewConfiguration(update_browse_start_pace=2), refused
    )

    assert [each.sequence for each in history] == [1, 2, 3, 4]
    assert isinstance(history[-1], ConfigurationRefused)


def test_a_new_queue_has_as_many_buckets_as_a_small_cassandra_servers() -> None:
    assert ViewConfiguration().bucket_count == 3


def test_a_queue_of_an_older_default_keeps_its_bucket_and_may_grow_to_the_new_one() -> None:
    one = ViewConfiguration(bucket_count=1)
    history = history_of(one)

    stays = decide(history, one, at=NOON)
    grows = decide(history, ViewConfiguration(), at=NOON)

    assert (stays.event, stays.refusal) == (None, None)
    assert grows.refusal is None
    assert isinstance(grows.event, ConfigurationChanged)
    assert [each.field for each in grows.event.changes] == ["bucketCount"]


def test_a_change_names_what_changed() -> None:
    history = history_of(ViewConfiguration(), ViewConfiguration(timedelta(minutes=30), 4))

    event = history[-1]
    assert isinstance(event, ConfigurationChanged)
    assert [(each.field, each.before, each.after) for each in event.changes] == [
        ("sliceWindow", "1h", "30m"),
        ("bucketCount", "3", "4"),
    ]


def test_a_history_with_a_gap_is_not_replayed() -> None:
    history = history_of(ViewConfiguration(), ViewConfiguration(bucket_count=4))

    with pytest.raises(HistoryMissing, match="between 0 and 2"):
        replay(history[1:])
    with pytest.raises(HistoryMissing, match="between 1 and 1"):
        replay((history[0], history[0]))


windows = st.integers(1, 4 * 3600).map(lambda seconds: timedelta(seconds=seconds))
configurations = st.builds(ViewConfiguration, windows, st.integers(1, 12), st.integers(1, 5000))


@st.composite
def chains(draw: st.DrawFn) -> list[ViewConfiguration]:
    """Wanted configurations, most of them near what is allowed."""
    chain = [draw(configurations)]
    for _ in range(draw(st.integers(1, 6))):
        last = chain[-1]
        seconds = int(last.slice_window.total_seconds())
        divisor = draw(st.sampled_from([each for each in range(1, 61) if seconds % each == 0]))
        near = ViewConfiguration(
            timedelta(seconds=seconds // divisor),
            max(1, last.bucket_count + draw(st.integers(-1, 4))),
        )
        chain.append(draw(st.one_of(st.just(near), configurations)))
    return chain


@given(windows, windows, windows)
def test_division_is_transitive(first: timedelta, second: timedelta, third: timedelta) -> None:
    """Every window divides a few others only, so the middle ones are made to divide."""
    second, third = second * 1, third * 1
    long, middle = first * 6, first * 2

    assert not refusal_of(ViewConfiguration(long), ViewConfiguration(middle))
    assert not refusal_of(ViewConfiguration(middle), ViewConfiguration(first))
    assert not refusal_of(ViewConfiguration(long), ViewConfiguration(first))
    allowed = {
        (a, b)
        for a in (first, second, third)
        for b in (first, second, third)
        if not refusal_of(ViewConfiguration(a), ViewConfiguration(b))
    }
    assert all((a, d) in allowed for a, b in allowed for c, d in allowed if b == c)


@given(
    chains(),
    st.integers(0, 10**9),
    st.integers(0, (1 << 62) - 1),
)
def test_what_was_placed_under_any_accepted_configuration_is_read_under_the_last(
    chain: list[ViewConfiguration], offset: int, randomness: int
) -> None:
    """Held against the slice arithmetic, not against the rules themselves."""
    history: tuple[ConfigurationEvent, ...] = ()
    for wanted in chain:
        event = decide(history, wanted, at=NOON).event
        history += (event,) if event else ()
    state = replay(history)
    assert state is not None
    last = state.configuration
    identifier = id_at(NOON + timedelta(milliseconds=offset), 0, randomness)
    used = [each.configuration for each in history if not isinstance(each, ConfigurationRefused)]

    for earlier in used:
        key = place(identifier, earlier.slice_window, earlier.bucket_count)
        assert key.slice_start in set(
            slices_between(key.slice_start, key.slice_start, last.slice_window)
        )
        assert key.bucket_id in range(last.bucket_count)


@given(configurations, configurations)
def test_a_refused_configuration_would_leave_some_place_unread(
    current: ViewConfiguration, wanted: ViewConfiguration
) -> None:
    """The other direction: nothing is refused that would have been harmless."""
    if refusal_of(current, wanted):
        slices = [NOON.replace(hour=0) + index * current.slice_window for index in range(-2, 99)]
        starts = [next(slices_between(each, each, current.slice_window)) for each in slices]
        found = all(
            next(slices_between(each, each, wanted.slice_window)) == each for each in starts
        )
        assert not found or wanted.bucket_count < current.bucket_count


@given(configurations, configurations)
def test_the_nearest_allowed_values_are_allowed(
    current: ViewConfiguration, wanted: ViewConfiguration
) -> None:
    refusal = refusal_of(current, wanted)
    for window in refusal.allowed.get("sliceWindow", ()) if refusal else ():
        mended = replace(current, slice_window=parse_duration(window))
        assert refusal_of(current, mended) is None
    for buckets in refusal.allowed.get("bucketCount", ()) if refusal else ():
        assert refusal_of(current, replace(current, bucket_count=int(buckets))) is None


@given(chains())
def test_versions_and_sequences_have_no_gaps(chain: list[ViewConfiguration]) -> None:
    history: tuple[ConfigurationEvent, ...] = ()
    for wanted in chain:
        event = decide(history, wanted, at=NOON).event
        history += (event,) if event else ()

    assert [each.sequence for each in history] == list(range(1, len(history) + 1))
    versions = [each.version for each in history if not isinstance(each, ConfigurationRefused)]
    assert versions == list(range(1, len(versions) + 1))
    state = None
    for event in history:
        state = evolve(state, event)
    assert state == replay(history)
