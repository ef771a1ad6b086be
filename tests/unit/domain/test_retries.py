"""A mail is tried again while it is young, given up when it is not, and done when all have it."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.domain.delivery.retries import (
    DeferItem,
    Done,
    Reject,
    RetryItem,
    RetryPlan,
    decide,
    softened,
)
from postroad.domain.mail.mail import Outcome, OutcomeKind, Responder
from postroad.errors import InvalidSettings

MINUTE = timedelta(minutes=1)
PLAN = RetryPlan((MINUTE, 5 * MINUTE, 15 * MINUTE), timedelta(hours=1), jitter=0.5)
YES, NO, LATER = Outcome.delivered("250"), Outcome.failed("550 no"), Outcome.deferred("450 later")


@pytest.mark.parametrize(
    ("text", "minutes"),
    [
        ("450 4.2.0 greylisted", 1),
        ("450 4.7.28 rate limit exceeded", 15),
        ("554 5.7.1 Service unavailable; host [192.0.2.1] blocked using zen.example.org", 30),
        ("550 5.7.26 DMARC check failed", 15),
        ("452 4.2.2 over quota", 60),
        ("554 5.4.6 too many hops", 60),
    ],
)
def test_a_mail_comes_again_when_the_reason_may_have_passed(text: str, minutes: int) -> None:
    assert RetryPlan(jitter=0).delay_for(0, [text], 0.0) == minutes * MINUTE


TOO_OLD = Reject("not delivered within 1h: x")


def ending(outcomes: dict[str, Outcome], **facts: object) -> object:
    defaults: dict[str, object] = {
        "failures": {},
        "untried": {},
        "attempt": 0,
        "age": timedelta(0),
        "uniform": 0.0,
    }
    return decide(PLAN, outcomes, **{**defaults, **facts})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("outcomes", "facts", "expected"),
    [
        ({"a": YES}, {}, Done()),
        ({"a": YES, "b": YES}, {}, Done()),
        ({"a": LATER}, {}, RetryItem(MINUTE, ("a",), "450 later")),
        ({"a": YES, "b": LATER}, {}, RetryItem(MINUTE, ("b",), "450 later")),
        ({"a": NO, "b": LATER}, {}, RetryItem(MINUTE, ("b",), "450 later")),
        ({"a": NO}, {}, Reject("550 no")),
        ({"a": YES, "b": NO}, {}, Reject("550 no")),
        ({"a": YES}, {"failures": {"c": "550 earlier"}}, Reject("550 earlier")),
        ({"a": LATER}, {"failures": {"c": "x"}}, RetryItem(MINUTE, ("a",), "450 later")),
        ({"a": LATER}, {"age": PLAN.max_age}, Reject("not delivered within 1h: 450 later")),
        ({"a": LATER}, {"attempt": 2}, RetryItem(15 * MINUTE, ("a",), "450 later")),
        ({"a": LATER}, {"attempt": 99}, RetryItem(15 * MINUTE, ("a",), "450 later")),
        ({"a": LATER}, {"backoff": 9 * MINUTE}, RetryItem(9 * MINUTE, ("a",), "450 later")),
        ({"a": LATER}, {"backoff": MINUTE / 2}, RetryItem(MINUTE, ("a",), "450 later")),
        (
            {"b": LATER},
            {"untried": {"a": "x"}, "backoff": 9 * MINUTE},
            RetryItem(MINUTE, ("b", "a"), "450 later"),
        ),
        (
            {},
            {"untried": {"a": "x"}, "backoff": 3 * MINUTE, "is_paced": True, "uniform": 1.0},
            DeferItem(3 * MINUTE, ("a",), "x"),
        ),
        (
            {},
            {"untried": {"a": "x"}, "is_paced": True},
            DeferItem(timedelta(seconds=1), ("a",), "x"),
        ),
        ({}, {"untried": {"a": "backoffs"}}, DeferItem(5 * MINUTE, ("a",), "backoffs")),
        ({"b": NO}, {"untried": {"a": "x"}, "attempt": 9}, DeferItem(5 * MINUTE, ("a",), "x")),
        ({"b": LATER}, {"untried": {"a": "x"}}, RetryItem(MINUTE, ("b", "a"), "450 later")),
        ({}, {"untried": {"a": "x"}, "uniform": 1.0}, DeferItem(7.5 * MINUTE, ("a",), "x")),
        ({"b": YES}, {"untried": {"a": "x"}, "age": PLAN.max_age}, TOO_OLD),
        ({"a": LATER}, {"uniform": 1.0}, RetryItem(1.5 * MINUTE, ("a",), "450 later")),
    ],
)
def test_the_outcomes_decide_the_ending(
    outcomes: dict[str, Outcome], facts: dict[str, object], expected: object
) -> None:
    assert ending(outcomes, **facts) == expected


def test_a_limit_behind_a_wrapper_has_the_delay_of_a_limit() -> None:
    text = "450 4.7.1 <b@x.example>: Recipient address rejected: rate limit exceeded"
    assert RetryPlan(jitter=0).delay_for(0, [text], 0.0) == 15 * MINUTE


LONG = RetryPlan((MINUTE, 5 * MINUTE, 240 * MINUTE), jitter=0.5)
FULL, LIMITED = "452 4.2.2 <b@example.net> is over quota", "450 4.7.28 unusual rate of mail"
GREY = "450 4.7.1 greylisted"


@pytest.mark.parametrize(
    ("texts", "attempt", "minutes"),
    [
        ((FULL,), 0, 60),
        ((FULL,), 1, 60),
        ((FULL,), 2, 240),  # the lane is longer
        ((LIMITED,), 0, 15),
        ((GREY,), 0, 1),
        ((FULL, LIMITED), 0, 15),
        ((FULL, LIMITED, GREY), 0, 1),
        (("451 4.4.1 cannot connect",), 0, 1),
        (("no reply at all",), 1, 5),
        ((), 0, 1),
    ],
)
@pytest.mark.parametrize("uniform", [0.0, 1.0])
def test_a_delay_is_that_of_the_lane_or_of_the_reason_that_passes_first(
    texts: tuple[str, ...], attempt: int, minutes: int, uniform: float
) -> None:
    delay = LONG.delay_for(attempt, texts, uniform)

    assert delay == minutes * MINUTE * (1 + 0.5 * uniform)


def test_no_reason_asks_for_more_than_the_last_lane() -> None:
    assert PLAN.delay_for(0, [FULL], 0.0) == 15 * MINUTE
    assert ending({"a": Outcome.deferred(FULL)}) == RetryItem(15 * MINUTE, ("a",), FULL)


def test_recipients_that_were_not_attempted_wait_for_no_reason_of_others() -> None:
    found = ending({"a": Outcome.deferred(FULL)}, untried={"b": "x"})

    assert found == RetryItem(MINUTE, ("a", "b"), FULL)


def test_softened_outcomes_fail_no_recipient_and_keep_what_was_heard() -> None:
    heard = Outcome(OutcomeKind.FAILED, "550 no", "mx.example.net", Responder("mx"))

    found = softened({"a": YES, "b": heard, "c": LATER})

    assert found == {"a": YES, "b": Outcome.deferred("550 no"), "c": LATER}
    assert (found["b"].site, found["b"].responder) == ("mx.example.net", Responder("mx"))


def test_many_different_failures_make_a_short_reason() -> None:
    outcomes = {str(number): Outcome.failed(f"550 {number}") for number in range(10)}

    assert ending(outcomes) == Reject("550 0; 550 1; 550 2; and 7 more")


kinds = st.sampled_from(OutcomeKind).map(lambda kind: Outcome(kind, "text"))


@given(
    st.dictionaries(st.text(max_size=3), kinds, min_size=1),
    st.dictionaries(st.text(max_size=3), st.just("x")),
    st.dictionaries(st.text("u", min_size=4, max_size=5), st.just("x")),
    st.integers(0, 50),
    st.timedeltas(timedelta(0), timedelta(hours=2)),
    st.floats(0, 1, exclude_max=True),
)
def test_no_recipient_is_forgotten(
    outcomes: dict[str, Outcome],
    failures: dict[str, str],
    untried: dict[str, str],
    attempt: int,
    age: timedelta,
    uniform: float,
) -> None:
    result = decide(PLAN, outcomes, failures, untried, attempt=attempt, age=age, uniform=uniform)

    missed = {r for r, outcome in outcomes.items() if outcome.kind is not OutcomeKind.DELIVERED}
    deferred = {r for r in missed if outcomes[r].kind is OutcomeKind.DEFERRED}
    if isinstance(result, Done):
        assert not missed | failures.keys() | untried.keys()
    elif isinstance(result, RetryItem | DeferItem):
        assert set(result.remaining or ()) == deferred | set(untried)
        assert bool(deferred) == isinstance(result, RetryItem)
        assert PLAN.lanes[0] <= result.delay <= 1.5 * PLAN.lanes[-1]
    else:
        assert missed or failures or untried


@pytest.mark.parametrize("lanes", [(), (timedelta(0),), (MINUTE, -MINUTE), (60,)])
def test_a_plan_without_sense_is_refused(lanes: tuple[timedelta, ...]) -> None:
    with pytest.raises(InvalidSettings):
        RetryPlan(lanes)
