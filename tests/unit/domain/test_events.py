"""Events: their types, their fields, which stream gets which, and what they have of addresses."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any
from uuid import UUID

import pytest

from postroad.domain.delivery import attempts
from postroad.domain.delivery.attempts import Attempted
from postroad.domain.delivery.events import (
    AcceptedMail,
    EventAddresses,
    EventKind,
    EventRule,
    accepted_events,
    attempt_events,
)
from postroad.domain.delivery.suppressed import SuppressedBy, suppressed
from postroad.domain.mail.mail import (
    EVENT_KEY,
    QUARANTINE,
    TENANT,
    Envelope,
    Origin,
    Outcome,
    Responder,
)
from postroad.domain.smtp.bounces import bounce_of
from postroad.errors import InvalidInput

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
ENVELOPE = Envelope(
    "Ann@sender.example",
    ("b@one.example", "c@two.example"),
    "4f2a",
    {TENANT: "acme"},
    Origin("client.example", "192.0.2.9", "ESMTPSA"),
)
ATTEMPTED = Attempted(
    queue="mail.out",
    mail_id=UUID(int=2),
    enqueue_id=UUID(int=1),
    number=1,
    sender=ENVELOPE.sender,
    size_bytes=700,
    accepted_at=NOON - timedelta(minutes=10),
    ended_at=NOON,
    seconds=1.5,
    message_id="<1@sender.example>",
)
YES = Outcome.delivered("250 2.0.0 queued as 4F2A for b@one.example")
LATER = Outcome.deferred("451 4.7.1 greylisted")
NO = Outcome.failed("550 5.1.1 <c@two.example>: no such user")
ON_LIST = suppressed("b@one.example", "asked", SuppressedBy.ADMINISTRATOR, NOON).outcome()
ALL = EventRule("all")


def found(
    *rules: EventRule, given_up: bool = False, **outcomes: Outcome
) -> list[tuple[str, dict[str, Any]]]:
    by_recipient = dict(zip(ENVELOPE.recipients, outcomes.values(), strict=False))
    events = attempt_events(rules, ATTEMPTED, ENVELOPE, by_recipient, given_up=given_up)
    return [(stream, json.loads(body)) for stream, _, body in events]


@pytest.mark.parametrize(
    ("outcome", "given_up", "kind"),
    [
        (YES, False, "Delivered"),
        (LATER, False, "Deferred"),
        (LATER, True, "Failed"),
        (NO, False, "Failed"),
        (ON_LIST, False, "Suppressed"),
        (ON_LIST.from_responder(Responder("mx")), False, "Failed"),
    ],
)
def test_the_type_follows_from_the_outcome(outcome: Outcome, given_up: bool, kind: str) -> None:
    ((_, event),) = found(ALL, given_up=given_up, b=outcome)

    assert event["type"] == kind
    assert event["data"].get("given_up", False) is given_up


def test_an_event_has_the_keys_of_the_attempt_log_and_the_name_and_tenant_of_its_mail() -> None:
    ((_, event),) = found(replace(ALL, addresses=EventAddresses.PLAIN), b=YES)

    data = event.pop("data")
    assert event == {
        "id": event["id"],
        "type": "Delivered",
        "timestamp": "2026-01-02T12:00:00.000Z",
    }
    assert data == {
        "at": "2026-01-02T12:00:00.000Z",
        "queue": "mail.out",
        "mail_id": str(UUID(int=2)),
        "enqueue_id": str(UUID(int=1)),
        "attempt": 1,
        "outcome": "delivered",
        "domain": "one.example",
        "site": "",
        "reply": YES.text,
        "sender_domain": "sender.example",
        "size_bytes": 700,
        "queued_seconds": 600.0,
        "seconds": 1.5,
        "delays": {"queue": 598.5, "connect": 0.0, "transmission": 1.5},
        "sender": "Ann@sender.example",
        "recipient": "b@one.example",
        "message_id": "<1@sender.example>",
        "name": "4f2a",
        "tenant": "acme",
    }


def test_addresses_are_hashed_as_on_the_suppression_list() -> None:
    ((_, event),) = found(replace(ALL, addresses=EventAddresses.HASHED), b=YES)

    data = event["data"]
    assert data["recipient_sha256"] == sha256(b"b@one.example").hexdigest()
    assert data["sender_sha256"] == sha256(b"ann@sender.example").hexdigest()
    assert not {"sender", "recipient", "message_id"} & set(data)


@pytest.mark.parametrize("form", [EventAddresses.HASHED, EventAddresses.NONE])
def test_without_leave_no_event_has_an_address(form: EventAddresses) -> None:
    rule = replace(ALL, addresses=form)
    accepted = AcceptedMail("mail.out", UUID(int=1), ENVELOPE, 700, NOON, "<1@sender.example>")
    text = json.dumps(found(rule, b=YES, c=NO)).lower()
    text += "".join(body.decode() for _, _, body in accepted_events([rule], accepted)).lower()

    words = ("ann@", "b@", "c@", "4F2A", "192.0.2.9", "<1@")
    assert [each for each in words if each in text] == []


def test_a_recipient_without_a_domain_is_left_out_of_hashes() -> None:
    envelope = Envelope(None, ("postmaster",))
    outcomes = {"postmaster": YES}
    rule = replace(ALL, addresses=EventAddresses.HASHED)
    ((_, _, body),) = attempt_events([rule], ATTEMPTED, envelope, outcomes)

    data = json.loads(body)["data"]
    assert (data["sender_sha256"], "recipient_sha256" in data) == ("", False)


@pytest.mark.parametrize(
    ("rule", "recipients"),
    [
        (ALL, ["one.example", "two.example"]),
        (replace(ALL, kinds=frozenset({EventKind.FAILED})), ["two.example"]),
        (replace(ALL, domains=frozenset({"one.example"})), ["one.example"]),
        (replace(ALL, tenants=frozenset({"acme"})), ["one.example", "two.example"]),
        (replace(ALL, tenants=frozenset({"other"})), []),
        (
            replace(ALL, kinds=frozenset({EventKind.FAILED}), domains=frozenset({"one.example"})),
            [],
        ),
    ],
)
def test_a_stream_gets_what_its_filters_take(rule: EventRule, recipients: list[str]) -> None:
    events = found(rule, b=YES, c=NO)

    assert [event["data"]["domain"] for _, event in events] == recipients


@pytest.mark.parametrize(
    ("domain", "is_taken"),
    [
        ("b\u00fccher.example", True),
        ("xn--bcher-kva.example", True),
        ("B\u00dcCHER.example", True),
        ("[192.0.2.1]", False),
        ("", False),
    ],
)
def test_a_rule_with_a_labels_takes_recipients_with_u_labels(domain: str, is_taken: bool) -> None:
    rule = replace(ALL, domains=frozenset({"xn--bcher-kva.example"}))

    assert rule.takes(EventKind.DELIVERED, None, domain) is is_taken


def test_each_stream_gets_its_own() -> None:
    events = found(ALL, replace(ALL, name="other"), b=YES)

    assert [stream for stream, _ in events] == ["all", "other"]


def test_streams_of_one_form_read_a_reply_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def reading(text: str, *known: Any) -> Any:
        read.append(text)
        return bounce_of(text, *known)

    monkeypatch.setattr(attempts, "bounce_of", reading)
    hashed, plain = (
        replace(ALL, name=each.value, addresses=each)
        for each in (EventAddresses.HASHED, EventAddresses.PLAIN)
    )
    events = found(ALL, replace(ALL, name="again"), hashed, plain, b=NO, c=LATER)

    assert len(events) == 2 * 4
    assert read == [NO.text, LATER.text] * 2, "once masked, and once plain"


def test_a_repetition_has_the_same_id_and_everything_else_another_one() -> None:
    def ids(attempted: Attempted, **outcomes: Outcome) -> set[UUID]:
        given = dict(zip(ENVELOPE.recipients, outcomes.values(), strict=False))
        return {each for _, each, _ in attempt_events([ALL], attempted, ENVELOPE, given)}

    once = ids(ATTEMPTED, b=YES)
    again = ids(replace(ATTEMPTED, ended_at=NOON + timedelta(minutes=1), seconds=9.0), b=YES)
    assert once == again
    others = [
        ids(ATTEMPTED, b=LATER),
        ids(replace(ATTEMPTED, number=2), b=YES),
        ids(replace(ATTEMPTED, enqueue_id=UUID(int=9)), b=YES),
        ids(ATTEMPTED, b=YES, c=YES) - once,
    ]
    assert len(set().union(once, *others)) == 5


def test_the_key_of_a_mail_hides_its_recipient_in_ids_and_stays_the_same() -> None:
    envelope = replace(ENVELOPE, attributes={EVENT_KEY: "c0ffee"})
    other = replace(ENVELOPE, attributes={EVENT_KEY: "decaf"})

    def ids(envelope: Envelope) -> list[UUID]:
        outcomes = {"b@one.example": YES, "c@two.example": YES}
        return [each for _, each, _ in attempt_events([ALL], ATTEMPTED, envelope, outcomes)]

    assert ids(envelope) == ids(envelope)
    assert len({*ids(envelope), *ids(other), *ids(ENVELOPE)}) == 6
    bodies = [body for *_, body in attempt_events([ALL], ATTEMPTED, envelope, {"b@x.example": YES})]
    assert all(b"c0ffee" not in each for each in bodies)


@pytest.mark.parametrize(
    "rule",
    [
        ALL,
        EventRule("all", frozenset(EventKind), frozenset({"acme"}), frozenset({"x.example"})),
        EventRule("all", frozenset({EventKind.HELD}), addresses=EventAddresses.HASHED),
        EventRule("all", frozenset()),
    ],
)
def test_a_rule_reads_what_it_wrote(rule: EventRule) -> None:
    assert EventRule.of("all", rule.text()) == rule


def test_a_rule_takes_no_kind_that_only_a_later_release_knows() -> None:
    later = json.dumps({**json.loads(ALL.text()), "kinds": ["opened", "held"]})

    assert EventRule.of("all", later).kinds == frozenset({EventKind.HELD})


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"kinds": 1}', ALL.text().replace("none", "x")])
def test_what_is_no_rule_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        EventRule.of("all", text)


def test_a_mail_in_quarantine_is_accepted_and_held() -> None:
    quarantined = replace(ENVELOPE, attributes={QUARANTINE: "virus: EICAR"})
    accepted = AcceptedMail("mail.out", UUID(int=1), quarantined, 700, NOON, None)
    events = [(each, json.loads(body)) for _, each, body in accepted_events([ALL], accepted)]

    assert [event["type"] for _, event in events] == ["Accepted", "Accepted", "Held", "Held"]
    assert len({each for each, _ in events}) == 4


def test_a_mail_that_was_accepted_has_an_event_for_each_recipient() -> None:
    accepted = AcceptedMail("mail.out", UUID(int=1), ENVELOPE, 700, NOON, "<1@sender.example>")
    events = list(accepted_events([replace(ALL, addresses=EventAddresses.PLAIN)], accepted))

    documents = [json.loads(body) for _, _, body in events]
    assert [each["type"] for each in documents] == ["Accepted", "Accepted"]
    assert documents[0]["data"] == {
        "at": "2026-01-02T12:00:00.000Z",
        "queue": "mail.out",
        "enqueue_id": str(UUID(int=1)),
        "domain": "one.example",
        "sender_domain": "sender.example",
        "size_bytes": 700,
        "name": "4f2a",
        "tenant": "acme",
        "protocol": "ESMTPSA",
        "client": "192.0.2.9",
        "message_id": "<1@sender.example>",
        "sender": "Ann@sender.example",
        "recipient": "b@one.example",
    }
