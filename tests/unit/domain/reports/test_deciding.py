"""Who is in a report: by NOTIFY, by what the next hop takes over, and by the age of the mail."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import pytest

from postroad.domain.mail.mail import DsnOptions, Envelope, Outcome, RecipientDsn, Responder
from postroad.domain.reports.deciding import (
    DOUBLE_BOUNCE,
    REPORT,
    Action,
    ReportedAttempt,
    ReportRules,
    report_key,
    reported_recipients,
    reporting_address,
)

A, B, C = "a@x.example", "b@example.net", "c@example.net"
HOUR = timedelta(hours=1)
YES, NO, LATER = Outcome.delivered("250 ok"), Outcome.failed("550 no"), Outcome.deferred("450 x")
F, D, R, L = Action.FAILED, Action.DELAYED, Action.RELAYED, Action.DELIVERED
DEFAULT_RULES = ReportRules()


def by(responder: Responder) -> Outcome:
    return replace(YES, responder=responder)


PLAIN, KNOWS_DSN = Responder("mx"), Responder("mx", takes_dsn=True)
LMTP, LMTP_WITH_DSN = Responder("mx", is_final=True), Responder("mx", True, True)


def actions(
    outcome: Outcome,
    notify: str | None = None,
    *,
    is_over: bool = False,
    age: timedelta = HOUR,
    before: timedelta = timedelta(0),
    rules: ReportRules = DEFAULT_RULES,
    sender: str | None = A,
    attributes: Mapping[str, str] | None = None,
) -> list[Action]:
    dsn = None
    if notify is not None:
        dsn = DsnOptions(recipients={B: RecipientDsn(tuple(notify.split(",")))})
    envelope = Envelope(sender, (B,), attributes=attributes or {}, dsn=dsn)
    attempt = ReportedAttempt({B: outcome}, {}, is_over, age, before)
    return [each.action for each in reported_recipients(envelope, attempt, rules)]


@pytest.mark.parametrize(
    ("notify", "reported"),
    [
        (None, [F]),
        ("FAILURE", [F]),
        ("SUCCESS,FAILURE,DELAY", [F]),
        ("NEVER", []),
        ("SUCCESS", []),
        ("DELAY", []),
        ("SUCCESS,DELAY", []),
    ],
)
@pytest.mark.parametrize(("outcome", "is_over"), [(NO, False), (NO, True), (LATER, True)])
def test_a_failure_is_reported_unless_the_sender_asked_for_other_reports(
    notify: str | None, reported: list[Action], outcome: Outcome, is_over: bool
) -> None:
    assert actions(outcome, notify, is_over=is_over) == reported


def test_a_recipient_whose_time_is_over_is_marked_so() -> None:
    envelope = Envelope(A, (B, C))
    attempt = ReportedAttempt({B: LATER}, {C: "451 no time"}, True, 120 * HOUR, HOUR)

    found = reported_recipients(envelope, attempt, DEFAULT_RULES)

    assert [(each.address, each.action, each.is_expired) for each in found] == [
        (B, F, True),
        (C, F, True),
    ]
    assert found[1].outcome.text == "451 no time"


@pytest.mark.parametrize(
    ("age", "before", "reported"),
    [
        (3.9, 0, []),
        (4, 0, [D]),
        (4, 3.9, [D]),
        (100, 3.9, [D]),
        (5, 4, []),
        (100, 96, []),
    ],
)
def test_a_delay_is_reported_by_the_first_attempt_at_its_age(
    age: float, before: float, reported: list[Action]
) -> None:
    assert actions(LATER, age=age * HOUR, before=before * HOUR) == reported
    untried = ReportedAttempt({}, {B: "451 x"}, False, age * HOUR, before * HOUR)
    found = reported_recipients(Envelope(A, (B,)), untried, DEFAULT_RULES)
    assert [each.action for each in found] == reported


@pytest.mark.parametrize(
    ("notify", "reported"),
    [(None, [D]), ("DELAY", [D]), ("FAILURE", []), ("NEVER", []), ("SUCCESS,DELAY", [D])],
)
def test_a_delay_is_reported_to_those_who_asked_for_it_or_for_nothing(
    notify: str | None, reported: list[Action]
) -> None:
    assert actions(LATER, notify, age=5 * HOUR) == reported


@pytest.mark.parametrize(
    ("responder", "notify", "reported"),
    [
        (PLAIN, None, []),
        (PLAIN, "FAILURE,DELAY", []),
        (PLAIN, "NEVER", []),
        (PLAIN, "SUCCESS", [R]),
        (PLAIN, "SUCCESS,FAILURE", [R]),
        (KNOWS_DSN, "SUCCESS", []),
        (LMTP, "SUCCESS", [L]),
        (LMTP_WITH_DSN, "SUCCESS", []),
    ],
)
def test_success_is_reported_where_the_next_hop_does_not(
    responder: Responder, notify: str | None, reported: list[Action]
) -> None:
    assert actions(by(responder), notify) == reported


def test_success_without_a_known_next_hop_is_reported_as_relayed() -> None:
    assert actions(YES, "SUCCESS") == [R]


@pytest.mark.parametrize("notify", [None, "DELAY"])
def test_a_delivery_behind_a_report_of_a_delay_is_not_reported(notify: str | None) -> None:
    assert actions(by(PLAIN), notify, age=6 * HOUR, before=5 * HOUR) == []


@pytest.mark.parametrize("outcome", [NO, LATER, YES])
@pytest.mark.parametrize("notify", [None, "SUCCESS,FAILURE,DELAY"])
def test_mail_of_the_null_reverse_path_is_never_reported(
    outcome: Outcome, notify: str | None
) -> None:
    assert actions(outcome, notify, sender=None, is_over=True, age=5 * HOUR) == []


def test_only_its_failure_is_reported_to_an_administrator_and_that_report_to_no_address() -> None:
    rules = ReportRules(administrator="postmaster@x.example")

    assert actions(NO, sender=None, rules=rules) == [F]
    assert actions(LATER, sender=None, rules=rules, is_over=True) == [F]
    assert actions(LATER, sender=None, rules=rules, age=5 * HOUR) == []
    assert actions(by(PLAIN), "SUCCESS", sender=None, rules=rules, before=5 * HOUR) == []
    of_a_report = {REPORT: F.value}
    assert actions(NO, sender=None, rules=rules, attributes=of_a_report) == [F]
    of_a_double_bounce = {REPORT: DOUBLE_BOUNCE}
    assert actions(NO, sender=None, rules=rules, attributes=of_a_double_bounce) == []


def test_reports_go_to_the_sender_else_to_the_administrator() -> None:
    rules = ReportRules(administrator="postmaster@x.example")

    assert reporting_address(Envelope(A, (B,)), rules) == A
    assert reporting_address(Envelope(None, (B,)), rules) == "postmaster@x.example"
    assert reporting_address(Envelope(None, (B,)), DEFAULT_RULES) is None


def test_one_report_is_about_all_recipients_of_an_attempt() -> None:
    dsn = DsnOptions(recipients={B: RecipientDsn(("NEVER",)), "d@y": RecipientDsn(("SUCCESS",))})
    envelope = Envelope(A, (B, C, "d@y", "e@z"), dsn=dsn)
    attempt = ReportedAttempt(
        {B: NO, C: NO, "d@y": by(PLAIN)}, {"e@z": "451 backs off"}, False, 5 * HOUR, 3 * HOUR
    )

    found = reported_recipients(envelope, attempt, DEFAULT_RULES)

    assert [(each.address, each.action) for each in found] == [(C, F), ("d@y", R), ("e@z", D)]


def test_the_key_of_a_report_names_an_entry_and_what_became_of_whom() -> None:
    envelope = Envelope(A, (B, C))
    one, other = UUID(int=1), UUID(int=2)

    def key(entry: UUID, outcomes: dict[str, Outcome]) -> str:
        attempt = ReportedAttempt(outcomes, {}, True, HOUR, HOUR)
        return report_key(entry, reported_recipients(envelope, attempt, DEFAULT_RULES))

    both = key(one, {B: NO, C: NO})
    assert both == key(one, {C: Outcome.failed("554 other words"), B: NO})
    assert len({both, key(other, {B: NO, C: NO}), key(one, {B: NO}), key(one, {C: NO})}) == 4
    assert len(both) <= 512
