"""Lines of the attempt log: what they have, and what they leave out without leave."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from postroad.domain.delivery.attempts import (
    Attempted,
    AttemptSelector,
    LoggedAttempt,
    from_document,
    logged,
    to_document,
)
from postroad.domain.mail.mail import ConnectionFacts, Outcome, OutcomeKind, Responder
from postroad.domain.smtp.bounces import BounceClass

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
ATTEMPTED = Attempted(
    queue="outgoing",
    mail_id=UUID(int=2),
    enqueue_id=UUID(int=1),
    number=3,
    sender="Ann@Sender.example",
    size_bytes=700,
    accepted_at=NOON - timedelta(minutes=10),
    ended_at=NOON,
    seconds=1.23456,
)
REFUSED = Outcome(OutcomeKind.FAILED, "550 5.1.1 <b@example.net>: no such user", "mx.example.net")


def lines(*, with_addresses: bool, **outcomes: Outcome) -> list[LoggedAttempt]:
    by_recipient = {f"{name}@Example.net": outcome for name, outcome in outcomes.items()}
    return list(logged(ATTEMPTED, by_recipient, with_addresses=with_addresses))


def test_a_line_has_the_attempt_and_how_long_the_mail_waited() -> None:
    (line,) = lines(with_addresses=True, b=REFUSED)

    assert to_document(line) == {
        "at": "2026-01-02T12:00:00.000Z",
        "queue": "outgoing",
        "mail_id": str(UUID(int=2)),
        "enqueue_id": str(UUID(int=1)),
        "attempt": 3,
        "outcome": "failed",
        "domain": "example.net",
        "site": "mx.example.net",
        "reply": REFUSED.text,
        "reason": "no-mailbox",
        "sender": "Ann@Sender.example",
        "sender_domain": "sender.example",
        "recipient": "b@Example.net",
        "size_bytes": 700,
        "queued_seconds": 600.0,
        "seconds": 1.235,
        "delays": {"queue": 598.765, "connect": 0.0, "transmission": 1.235},
    }


def test_a_line_tells_which_server_replied_over_which_connection_and_when() -> None:
    tls: dict[str, Any] = {"tls": "TLSv1.3", "cipher": "TLS_AES_256_GCM_SHA384", "verified": True}
    secured = ConnectionFacts("192.0.2.1", 25, "198.51.100.7", "TLSv1.3", tls["cipher"], True)
    outcome = Outcome.delivered("250 ok").from_responder(
        Responder("mx.example.net", connection=secured)
    )
    attempted = replace(ATTEMPTED, connect_seconds=0.5, message_id="<1@sender.example>")
    (line,) = logged(attempted, {"b@example.net": outcome}, with_addresses=True)

    document = to_document(line)
    assert document["host"] == "mx.example.net"
    assert document["connection"] == {
        "address": "192.0.2.1",
        "port": 25,
        "source": "198.51.100.7",
        **tls,
    }
    assert document["delays"] == {"queue": 598.765, "connect": 0.5, "transmission": 0.735}
    assert document["message_id"] == "<1@sender.example>"
    assert from_document(json.loads(json.dumps(document))) == line


def test_without_leave_no_line_has_the_message_id() -> None:
    attempted = replace(ATTEMPTED, message_id="<1@sender.example>")
    (line,) = logged(attempted, {"b@example.net": REFUSED}, with_addresses=False)

    assert "message_id" not in to_document(line)


def test_without_leave_no_line_has_an_address_or_a_queue_id_of_the_next_hop() -> None:
    delivered = Outcome.delivered("250 2.0.0 queued as 4F2A for b@example.net")
    quoting = Outcome.deferred("451 4.7.1 ann@sender.example may not write to b@example.net yet")
    found = lines(with_addresses=False, b=REFUSED, c=delivered, d=quoting)

    text = json.dumps([to_document(each) for each in found]).lower()
    assert [each.recipient for each in found] == [None, None, None]
    assert not any(word in text for word in ("ann", "b@", "c@", "d@", "4f2a"))
    assert [each.reply for each in found] == [
        "550 <address>: no such user",
        "250",
        "451 <address> may not write to <address> yet",
    ]


def test_the_null_reverse_path_is_kept_apart_from_a_sender_that_is_not_kept() -> None:
    null = Attempted(**{**{each: getattr(ATTEMPTED, each) for each in FIELDS}, "sender": None})
    outcomes = {"b@example.net": REFUSED}
    (with_addresses,) = logged(null, outcomes, with_addresses=True)
    (without,) = logged(null, outcomes, with_addresses=False)

    assert (with_addresses.sender, without.sender) == ("", None)
    assert (with_addresses.sender_domain, without.sender_domain) == ("", "")


FIELDS = tuple(Attempted.__slots__)


@pytest.mark.parametrize("with_addresses", [True, False])
def test_a_line_is_read_as_it_was_written(with_addresses: bool) -> None:
    outcomes = {"b": REFUSED, "c": Outcome.delivered("250 ok"), "d": Outcome.deferred("")}
    for line in lines(with_addresses=with_addresses, **outcomes):
        document = json.loads(json.dumps(to_document(line) | {"of a later release": 1}))
        assert from_document(document) == line


def test_a_reason_of_a_later_release_is_another_one() -> None:
    (line,) = lines(with_addresses=True, b=REFUSED)
    assert from_document(to_document(line) | {"reason": "new"}).reason is BounceClass.OTHER


def test_a_recipient_that_is_given_up_has_a_line_that_tells_it() -> None:
    (line,) = logged(ATTEMPTED, {"b@x.example": REFUSED}, with_addresses=False, given_up=True)
    assert to_document(line)["given_up"] is True
    assert from_document(to_document(line)).given_up


@pytest.mark.parametrize(
    ("searched", "fits"),
    [
        (AttemptSelector(recipient="B@example.NET"), True),
        (AttemptSelector(recipient="c@example.net"), False),
        (AttemptSelector(sender="ann@sender.example"), True),
        (AttemptSelector(sender=""), False),
        (AttemptSelector(domain="EXAMPLE.net", site="mx.example.net"), True),
        (AttemptSelector(domain="example.net", site="mx.example.org"), False),
        (AttemptSelector(identifier=UUID(int=2), outcome=OutcomeKind.FAILED), True),
        (AttemptSelector(identifier=UUID(int=3)), False),
        (AttemptSelector(identifier=UUID(int=1)), True),
        (AttemptSelector(address="B@example.net"), True),
        (AttemptSelector(address="ann@Sender.example"), True),
        (AttemptSelector(address="c@example.net"), False),
        (AttemptSelector(before=NOON), False),
        (AttemptSelector(before=NOON + timedelta(seconds=1)), True),
        (AttemptSelector(outcome=OutcomeKind.DEFERRED), False),
        (AttemptSelector(since=NOON), True),
        (AttemptSelector(since=NOON + timedelta(seconds=1)), False),
    ],
)
def test_a_search_joins_its_fields_by_and(searched: AttemptSelector, fits: bool) -> None:
    (line,) = lines(with_addresses=True, b=REFUSED)
    assert searched.fits(line) is fits


def test_a_search_by_address_fits_no_line_without_addresses() -> None:
    (line,) = lines(with_addresses=False, b=REFUSED)
    assert not AttemptSelector(recipient="b@example.net").fits(line)
    assert AttemptSelector(recipient="b@example.net").needs_addresses
    assert not AttemptSelector(domain="example.net").needs_addresses
