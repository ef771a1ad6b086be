"""Documents are the bytes that releases before this one wrote, and come back as what was meant."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.cli.options import view_cells
from postroad.domain.delivery.attempts import AttemptOutcomes, OutcomeCount
from postroad.domain.mail import envelope_documents
from postroad.domain.mail.mail import (
    QUARANTINE,
    DsnOptions,
    Envelope,
    Mail,
    Origin,
    OutcomeKind,
    RecipientDsn,
)
from postroad.domain.mail.shapes import Shape
from postroad.domain.queues import documents
from postroad.domain.queues.documents import MailView, Sizes
from postroad.domain.queues.entries import EntryKey
from postroad.domain.queues.references import Reference, decode, encode
from postroad.domain.queues.selection import Selector
from postroad.domain.smtp.bounces import BounceClass
from postroad.domain.values.instants import instant, microseconds
from postroad.domain.values.text import to_json

MOMENT = datetime(2026, 1, 1, 10, 20, 0, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
PLAIN = Envelope(None, ("b@example.net",))
FULL = Envelope(
    "a@example.org",
    ("b@example.net", "ü@example.net"),
    "n",
    {"k": "v"},
    Origin("h", "192.0.2.1", "ESMTP"),
    DsnOptions(
        "HDRS", "id", {"b@example.net": RecipientDsn(("SUCCESS", "DELAY"), "rfc822;b@example.net")}
    ),
)
ENVELOPES = {
    "plain": (
        PLAIN,
        b'{"sender":null,"to":["b@example.net"]}',
    ),
    "full": (
        FULL,
        (
            b'{"sender":"a@example.org","to":["b@example.net","\\u00fc@example.net"],"name":"n",'
            b'"attributes":{"k":"v"},"origin":["h","192.0.2.1","ESMTP"],"dsn":["HDRS","id",'
            b'{"b@example.net":[["SUCCESS","DELAY"],"rfc822;b@example.net"]}]}'
        ),
    ),
}
"""Envelopes, and what is stored of them."""

BODY = (
    b'{"v":1,"slice":1767261600,"bucket":2,"id":"00000000-0000-0000-0000-000000000007",'
    b'"mail":"00000000-0000-0000-0000-000000000008","blob":"q/2026/01/01/id","size":10,'
    b'"shape":"2 5 0 1 0 0 0 0 1 0","accepted":"2026-01-01T10:20:00.000001+00:00",'
    b'"due":"2026-01-01T11:20:00.000001+00:00","attempt":1,"error":"451",'
    b'"previous":[[1767258000,1,"00000000-0000-0000-0000-000000000006"]],'
    b'"claim":true,"crashes":2,"envelope":%b}'
)
SHAPE = Shape(5, has_8bit_body=True)


@pytest.fixture(params=sorted(ENVELOPES))
def recorded(request: pytest.FixtureRequest) -> tuple[Envelope, bytes]:
    return ENVELOPES[request.param]


def view(envelope: Envelope, reason: str | None = None) -> MailView:
    due_at = MOMENT + HOUR
    fixed = (envelope, MOMENT, MOMENT, due_at, True, 3, 10)
    return MailView(UUID(int=7), UUID(int=8), *fixed, last_error="451", reason=reason)


def test_envelope_is_the_recorded_bytes(recorded: tuple[Envelope, bytes]) -> None:
    envelope, stored = recorded

    assert to_json(envelope_documents.envelope_value(envelope)) == stored
    assert envelope_documents.envelope_of(json.loads(stored)) == envelope


def test_body_of_the_broker_is_the_recorded_bytes(recorded: tuple[Envelope, bytes]) -> None:
    envelope, stored = recorded
    reference = Reference(
        key=EntryKey(datetime(2026, 1, 1, 10, tzinfo=UTC), 2, UUID(int=7)),
        mail_id=UUID(int=8),
        blob_key="q/2026/01/01/id",
        size_bytes=10,
        accepted_at=MOMENT,
        due_at=MOMENT + HOUR,
        attempt=1,
        last_error="451",
        previous=(EntryKey(datetime(2026, 1, 1, 9, tzinfo=UTC), 1, UUID(int=6)),),
        claim=True,
        crashes=2,
        envelope=envelope,
        shape=SHAPE,
    )

    assert encode(reference) == BODY % stored
    assert decode(BODY % stored) == reference


def test_reader_of_an_envelope_passes_over_a_field_of_a_later_release() -> None:
    value = envelope_documents.envelope_value(FULL) | {"colour": "blue"}

    assert envelope_documents.envelope_of(value) == FULL


@pytest.mark.parametrize("priority", [-100, -1, 1, 100])
def test_priority_is_an_optional_key_of_an_envelope(priority: int) -> None:
    urgent = replace(FULL, priority=priority)

    value = envelope_documents.envelope_value(urgent)

    assert value == envelope_documents.envelope_value(FULL) | {"priority": priority}
    assert envelope_documents.envelope_of(value) == urgent


def test_exact_view_is_the_recorded_bytes(recorded: tuple[Envelope, bytes]) -> None:
    envelope, stored = recorded
    exact = (
        b'{"enqueue_id":"00000000-0000-0000-0000-000000000007",'
        b'"mail_id":"00000000-0000-0000-0000-000000000008","mail":%b,'
        b'"accepted_at":1767262800000001,"enqueued_at":1767262800000001,'
        b'"due_at":1767266400000001,"held":true,"attempt":3,"size_bytes":10,'
        b'"last_error":"451","reason":"why"}'
    )

    assert to_json(documents.exact_view(view(envelope, "why"))) == exact % stored
    assert documents.view_of_exact(json.loads(exact % stored)) == view(envelope, "why")


def test_printed_view_has_times_as_text_and_a_reason_for_the_dead_alone() -> None:
    printed = documents.printed_view(view(FULL))

    assert printed == {
        "enqueue_id": "00000000-0000-0000-0000-000000000007",
        "mail_id": "00000000-0000-0000-0000-000000000008",
        "name": "n",
        "sender": "a@example.org",
        "recipients": ["b@example.net", "ü@example.net"],
        "accepted_at": "2026-01-01T10:20:00.000Z",
        "enqueued_at": "2026-01-01T10:20:00.000Z",
        "due_at": "2026-01-01T11:20:00.000Z",
        "held": True,
        "attempt": 3,
        "priority": 0,
        "size_bytes": 10,
        "last_error": "451",
    }
    assert documents.printed_view(view(FULL, "why")) == printed | {"reason": "why"}


def test_a_view_of_mail_that_a_filter_held_has_its_reason() -> None:
    held = view(replace(FULL, attributes={QUARANTINE: "clamav: EICAR"}))

    assert documents.printed_view(held)["quarantine"] == "clamav: EICAR"
    assert view_cells(replace(held, last_error=None))[-1] == "clamav: EICAR"


@pytest.mark.parametrize(
    ("selector", "recorded_value"),
    [
        (
            Selector(UUID(int=7), "n", "", "r", "d", timedelta(hours=4), ("a", "b")),
            (
                b'{"enqueue_id":"00000000-0000-0000-0000-000000000007","name":"n","sender":"",'
                b'"recipient":"r","domain":"d","older_than":14400000000,"attribute":["a","b"],'
                b'"everything":false}'
            ),
        ),
        (
            Selector.all(),
            (
                b'{"enqueue_id":null,"name":null,"sender":null,"recipient":null,"domain":null,'
                b'"older_than":null,"attribute":null,"everything":true}'
            ),
        ),
        (
            Selector(domains=frozenset({"b.example", "a.example"})),
            (
                b'{"enqueue_id":null,"name":null,"sender":null,"recipient":null,"domain":null,'
                b'"older_than":null,"attribute":null,"everything":false,'
                b'"domains":["a.example","b.example"]}'
            ),
        ),
        (None, b"null"),
    ],
    ids=["each field", "all", "domains", "none"],
)
def test_selector_is_the_recorded_bytes(selector: Selector | None, recorded_value: bytes) -> None:
    assert to_json(documents.selector_value(selector)) == recorded_value
    assert documents.selector_of(json.loads(recorded_value)) == selector


def test_sizes_have_their_names() -> None:
    assert documents.sizes_value(Sizes(3, 2, 1, None)) == {
        "size": 3,
        "delayed": 2,
        "held": 1,
        "dead_letters": None,
        "oldest_due": None,
    }
    assert documents.sizes_value(Sizes(3, 2, 1, 0, at_least=True))["at_least"] is True
    due = datetime(2026, 1, 1, 10, tzinfo=UTC)
    value = documents.sizes_value(Sizes(3, 2, 1, 0, oldest_due=due))
    assert value["oldest_due"] == "2026-01-01T10:00:00.000Z"
    assert documents.sizes_of(json.loads(to_json(value))).oldest_due == due


@given(st.integers(-(2**50), 2**55))
def test_microseconds_come_back(us: int) -> None:
    assert microseconds(instant(us)) == us


def test_a_mail_of_an_envelope_has_all_of_it() -> None:
    assert Mail.of(FULL, b"x").envelope == FULL


COUNT = OutcomeCount("ü.example", "mx", OutcomeKind.FAILED, 550, BounceClass.OTHER, "<name> no", 2)
OUTCOMES = AttemptOutcomes((COUNT,), 0.5)
COUNTED = ["ü.example", "mx", "failed", 550, "other", "<name> no", 2]


@pytest.mark.parametrize("outcomes", [None, OUTCOMES, AttemptOutcomes((), 0.0)])
def test_outcomes_come_back(outcomes: AttemptOutcomes | None) -> None:
    value = json.loads(to_json(documents.outcomes_value(outcomes)))

    assert documents.outcomes_of(value) == outcomes


@pytest.mark.parametrize("seconds", [0.0, 0.5, 1e-07, 12345678.9])
@pytest.mark.parametrize("counts", [(), (COUNT,)])
def test_outcomes_as_json_are_their_value_and_when_the_entry_ends(
    counts: tuple[OutcomeCount, ...], seconds: float
) -> None:
    outcomes = AttemptOutcomes(counts, seconds)

    value = json.loads(documents.outcomes_json(outcomes, 7))

    assert value == json.loads(to_json(documents.outcomes_value(outcomes))) | {"at": 7}


def test_outcomes_of_a_later_release_are_read_as_far_as_they_are_known() -> None:
    later = [*COUNTED[:4], "class of a later release", *COUNTED[5:], "more"]

    read = documents.outcomes_of({"seconds": 0.5, "counts": [later], "more": 1})

    assert read == OUTCOMES


@pytest.mark.parametrize(
    "value",
    [
        None,
        3,
        [],
        {},
        {"seconds": 1},
        {"seconds": "x", "counts": []},
        {"seconds": 1, "counts": 3},
        {"seconds": 1, "counts": [3]},
        {"seconds": 1, "counts": [COUNTED[:6]]},
        {"seconds": 1, "counts": [[*COUNTED[:2], "kind of a later release", *COUNTED[3:]]]},
        {"seconds": 1, "counts": [[*COUNTED[:3], "x", *COUNTED[4:]]]},
    ],
)
def test_outcomes_that_cannot_be_read_are_none(value: object) -> None:
    """An ending does not fail because of what is kept beside it."""
    assert documents.outcomes_of(value) is None
