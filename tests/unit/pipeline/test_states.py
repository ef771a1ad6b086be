"""The state of an entry is what the domain says of its mark, for every combination of flags."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.domain.queues.entries import (
    Change,
    Ending,
    EndingKind,
    EntryKey,
    Mark,
    PurgeWatermark,
)
from postroad.domain.values.identifiers import FIRST
from postroad.pipeline.states import ENDINGS, STATES, EntryFlags, EntryState

AT = datetime(2026, 1, 1, tzinfo=UTC)
NONE = EntryFlags(None, delivered=False, published=False, purged=False)


def ending(kind: EndingKind) -> Ending:
    if kind is not EndingKind.REPLACED:
        return Ending(kind, AT)
    change = Change(("b@example.net",), AT, held=True, attempt=3, last_error="421 busy")
    return Ending(kind, AT, EntryKey(AT, 2, FIRST), change)


marks = st.builds(
    Mark,
    delivered_at=st.none() | st.just(AT),
    ending=st.none() | st.sampled_from(EndingKind).map(ending),
    published=st.booleans(),
).filter(lambda mark: mark.delivered_at is not None or mark.ending is not None)


@given(own=st.none() | marks, purged=st.booleans())
def test_flags_lead_to_the_state_of_the_mark_that_they_were_taken_from(
    own: Mark | None, purged: bool
) -> None:
    watermark = PurgeWatermark(FIRST, AT).mark_of(FIRST) if purged else None
    flags = EntryFlags(
        own.ending.kind if own is not None and own.ending is not None else None,
        delivered=own is not None and own.delivered_at is not None,
        published=own is not None and own.published,
        purged=purged,
    )

    assert STATES[flags] == EntryState.of(own or watermark)


def test_every_combination_has_a_state_and_a_code_of_its_own() -> None:
    assert len(STATES) == len(ENDINGS) * 2 * 2 * 2
    assert sorted(flags.code for flags in STATES) == list(range(len(STATES)))


@pytest.mark.parametrize(
    ("flags", "state"),
    [
        (NONE, EntryState("waiting", waits=True, is_final=False, needs_bytes=True)),
        (NONE._replace(purged=True), EntryState("removed", False, True, False)),
        (NONE._replace(delivered=True), EntryState("delivered", False, True, False)),
        (NONE._replace(ending=EndingKind.REJECTED), EntryState("rejected", False, True, True)),
        (NONE._replace(ending=EndingKind.REPLACED), EntryState("replaced", True, False, True)),
        (
            NONE._replace(ending=EndingKind.REPLACED, published=True, purged=True),
            EntryState("replaced", False, True, True),
        ),
        (
            NONE._replace(ending=EndingKind.REPLACED, delivered=True),
            EntryState("delivered", False, False, False),
        ),
        (NONE._replace(ending=EndingKind.UNKNOWN), EntryState("unknown", False, True, True)),
    ],
)
def test_states_that_answers_of_the_pipeline_rest_on(flags: EntryFlags, state: EntryState) -> None:
    assert STATES[flags] == state
