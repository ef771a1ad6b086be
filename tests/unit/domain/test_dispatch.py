"""The decision table of dequeue, row by row."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.domain.mail.mail import Envelope
from postroad.domain.queues.dispatch import (
    Redeliver,
    ReferenceArrival,
    Verdict,
    decide,
    decide_claimed,
    deletes_bytes,
)
from postroad.domain.queues.entries import Change, Ending, EndingKind, Entry, Mark, place
from postroad.domain.queues.names import DELAY_SECONDS, next_delay, redelivery_delay_after
from postroad.domain.queues.references import Reference
from postroad.domain.values.identifiers import id_at

NOW = datetime(2026, 1, 1, 10, 20, tzinfo=UTC)
HOUR = timedelta(hours=1)
KEY = place(id_at(NOW, 0, 5), HOUR, 3)
ENTRY = Entry(KEY, UUID(int=1), Envelope(None, ("b@example.net",)), "blob", 1, NOW, NOW)
FIRST = Reference.to(ENTRY, claim=False)
AGAIN = Reference.to(ENTRY, claim=True)
REPETITION = Reference.repeating(ENTRY)
ARRIVAL = ReferenceArrival(NOW, False, 0, NOW - HOUR, timedelta(seconds=8), limit=3, draw=0.0)
REPLACED = Ending(EndingKind.REPLACED, NOW, KEY, Change.nothing(ENTRY))
DELIVERED = Mark(delivered_at=NOW)


def ended(kind: EndingKind) -> Mark:
    return Mark(ending=Ending(kind, NOW))


@pytest.mark.parametrize(
    ("reference", "mark", "arrival", "expected"),
    [
        pytest.param(FIRST, None, ARRIVAL, Verdict.ATTEMPT, id="first delivery: no claim"),
        pytest.param(AGAIN, None, ARRIVAL, Verdict.CLAIM, id="may exist twice: claim"),
        pytest.param(
            REPETITION, None, ARRIVAL, Verdict.REPLACE, id="what it repeats needs no claim: replace"
        ),
        pytest.param(
            REPETITION.again(), None, ARRIVAL, Verdict.REPLACE, id="a deferred repetition is one"
        ),
        pytest.param(REPETITION, DELIVERED, ARRIVAL, Verdict.SETTLE, id="repeated, delivered"),
        pytest.param(
            FIRST,
            None,
            replace(ARRIVAL, browse_start=NOW),
            Verdict.PASSED,
            id="before browse start, and no mark is left: the row decides",
        ),
        pytest.param(
            FIRST,
            DELIVERED,
            replace(ARRIVAL, browse_start=NOW),
            Verdict.SETTLE,
            id="before browse start, and the mark is still there",
        ),
        pytest.param(
            FIRST,
            Mark(ending=REPLACED),
            replace(ARRIVAL, browse_start=NOW),
            Verdict.PASSED,
            id="before browse start, and half replaced: the row decides",
        ),
        pytest.param(FIRST, DELIVERED, ARRIVAL, Verdict.SETTLE, id="delivered"),
        pytest.param(FIRST, ended(EndingKind.REMOVED), ARRIVAL, Verdict.SETTLE, id="removed"),
        pytest.param(FIRST, Mark(ending=REPLACED), ARRIVAL, Verdict.FINISH, id="half replaced"),
        pytest.param(
            FIRST, Mark(NOW, REPLACED), ARRIVAL, Verdict.FINISH, id="delivered and half replaced"
        ),
        pytest.param(
            FIRST, Mark(ending=REPLACED, published=True), ARRIVAL, Verdict.SETTLE, id="replaced"
        ),
        pytest.param(
            FIRST,
            DELIVERED,
            replace(ARRIVAL, redelivered=True, failed_deliveries=1),
            Verdict.SETTLE,
            id="redelivered after its mark: no hop is needed",
        ),
        pytest.param(
            FIRST,
            None,
            replace(ARRIVAL, redelivered=True),
            Redeliver(FIRST.again(), 8),
            id="redelivered: one redelivery delay, with a claim",
        ),
        pytest.param(
            replace(FIRST, crashes=2),
            None,
            replace(ARRIVAL, redelivered=True, failed_deliveries=1, draw=0.99),
            Redeliver(replace(AGAIN, crashes=3), 64),
            id="redelivered often: a wider hop",
        ),
        pytest.param(
            replace(FIRST, crashes=3),
            None,
            replace(ARRIVAL, redelivered=True, failed_deliveries=1),
            Verdict.GIVE_UP,
            id="redelivered too often",
        ),
        pytest.param(
            replace(FIRST, due_at=NOW + HOUR),
            None,
            ARRIVAL,
            Redeliver(replace(AGAIN, due_at=NOW + HOUR), 2048),
            id="not due: the longest step that fits, from now on with a claim",
        ),
        pytest.param(
            replace(FIRST, due_at=NOW + HOUR),
            None,
            replace(ARRIVAL, redelivered=True),
            Redeliver(replace(AGAIN, due_at=NOW + HOUR), 2048),
            id="redelivered and not due: the step is the redelivery delay",
        ),
        pytest.param(
            replace(FIRST, due_at=NOW + HOUR),
            ended(EndingKind.REMOVED),
            ARRIVAL,
            Verdict.SETTLE,
            id="removed while delayed",
        ),
        pytest.param(replace(FIRST, due_at=NOW), None, ARRIVAL, Verdict.ATTEMPT, id="just due"),
    ],
)
def test_decision_about_a_reference(
    reference: Reference,
    mark: Mark | None,
    arrival: ReferenceArrival,
    expected: Verdict | Redeliver,
) -> None:
    assert decide(reference, mark, arrival) == expected


@pytest.mark.parametrize(
    ("mark", "previous", "expected"),
    [
        pytest.param(None, [], Verdict.ATTEMPT, id="nothing happened"),
        pytest.param(None, [None], Verdict.ATTEMPT, id="the predecessor has no mark any more"),
        pytest.param(
            None, [Mark(ending=REPLACED, published=True)], Verdict.ATTEMPT, id="replaced only"
        ),
        pytest.param(
            None,
            [Mark(NOW, REPLACED, True), None],
            Verdict.SETTLE,
            id="a consumer delivered a predecessor",
        ),
        pytest.param(DELIVERED, [], Verdict.SETTLE, id="delivered before we had the claim"),
        pytest.param(Mark(ending=REPLACED), [], Verdict.FINISH, id="being replaced"),
    ],
)
def test_decision_once_the_claims_are_ours(
    mark: Mark | None, previous: list[Mark | None], expected: Verdict
) -> None:
    assert decide_claimed(mark, previous) == expected


@pytest.mark.parametrize(
    ("mark", "expected"),
    [
        (DELIVERED, True),
        (ended(EndingKind.REMOVED), True),
        (ended(EndingKind.EXPIRED), True),
        (ended(EndingKind.REJECTED), False),
        (ended(EndingKind.WITHDRAWN), False),
        (Mark(ending=REPLACED, published=True), False),
        (Mark(NOW, REPLACED, True), True),
        (Mark(NOW, Ending(EndingKind.UNKNOWN, NOW)), False),
    ],
)
def test_bytes_are_deleted_when_no_entry_needs_them(mark: Mark, expected: bool) -> None:
    assert deletes_bytes(mark) is expected


@given(st.integers(1, 10**12))
def test_step_never_passes_the_due_time_by_more_than_a_second(milliseconds: int) -> None:
    left = timedelta(milliseconds=milliseconds)

    step = next_delay(EPOCH_DUE, EPOCH_DUE - left)

    assert step in DELAY_SECONDS
    assert timedelta(seconds=step) <= max(left, timedelta(seconds=1))


@given(st.integers(1, 10**9))
def test_steps_reach_the_due_time_without_being_early(seconds: int) -> None:
    now, steps = EPOCH_DUE - timedelta(seconds=seconds, milliseconds=300), 0
    while step := next_delay(EPOCH_DUE, now):
        now += timedelta(seconds=step)
        steps += 1

    assert EPOCH_DUE <= now < EPOCH_DUE + timedelta(seconds=1)
    assert steps <= seconds // DELAY_SECONDS[-1] + len(DELAY_SECONDS) + 1


@given(st.integers(0, 10**6), st.floats(0, 1, exclude_max=True))
def test_hops_widen_with_crashes_within_bounds(crashes: int, draw: float) -> None:
    redelivery_delay = redelivery_delay_after(crashes, timedelta(seconds=8), draw)

    assert 8 <= redelivery_delay <= 512
    assert redelivery_delay_after(0, timedelta(seconds=8), draw) == 8
    assert redelivery_delay_after(0, timedelta(milliseconds=1), draw) == 1


EPOCH_DUE = datetime(9000, 1, 1, tzinfo=UTC)
