"""References survive the wire whole, and nothing else is taken for one."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.domain.mail.mail import DsnOptions, Envelope, Origin, RecipientDsn
from postroad.domain.mail.shapes import Shape
from postroad.domain.queues.entries import Entry, EntryKey, place
from postroad.domain.queues.references import (
    MAX_BODY,
    MAX_ERROR,
    Reference,
    decode,
    encode,
    size_of,
)
from postroad.domain.values.identifiers import EPOCH, id_at
from postroad.errors import UnreadableReference

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
WORD = st.text("abcxyzü0189.-", min_size=1, max_size=12)
ADDRESS = st.builds("{}@{}".format, WORD, WORD)
MOMENT = st.integers(0, 2**41).map(lambda n: EPOCH + timedelta(milliseconds=n))
NATURAL = st.integers(0, 2**40)
KEY = st.builds(
    EntryKey,
    st.integers(0, 2**33).map(lambda n: EPOCH + timedelta(seconds=n)),
    st.integers(0, 100),
    st.uuids(),
)
PRINTABLE = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20)
NOTIFY = st.sampled_from([(), ("NEVER",), ("SUCCESS", "DELAY"), ("FAILURE",)])
DSN = st.builds(
    DsnOptions,
    st.sampled_from([None, "FULL", "HDRS"]),
    st.none() | PRINTABLE,
    st.dictionaries(
        ADDRESS, st.builds(RecipientDsn, NOTIFY, st.none() | PRINTABLE.map("rfc822;{}".format))
    ),
)
ENVELOPE = st.builds(
    Envelope,
    sender=st.none() | ADDRESS,
    recipients=st.lists(ADDRESS, min_size=1, max_size=4).map(tuple),
    name=st.none() | TEXT,
    attributes=st.dictionaries(TEXT, TEXT, max_size=3),
    origin=st.none() | st.builds(Origin, st.none() | TEXT, st.none() | TEXT, st.none() | TEXT),
    dsn=st.none() | DSN,
    priority=st.integers(-100, 100),
)
SHAPE = st.builds(
    Shape,
    header_size=NATURAL,
    has_8bit_header=st.booleans(),
    has_8bit_body=st.booleans(),
    has_leading_dots=st.booleans(),
    bare_line_ends=NATURAL,
    longest_line=NATURAL,
    folds=NATURAL,
    is_terminated=st.booleans(),
    has_nul=st.booleans(),
)
REFERENCE = st.builds(
    Reference,
    key=KEY,
    mail_id=st.uuids(),
    blob_key=TEXT,
    size_bytes=NATURAL,
    accepted_at=MOMENT,
    due_at=st.none() | MOMENT,
    attempt=NATURAL,
    last_error=st.none() | TEXT,
    previous=st.lists(KEY, max_size=8).map(tuple),
    claim=st.booleans(),
    crashes=NATURAL,
    envelope=ENVELOPE,
    shape=st.none() | SHAPE,
)
PLAIN = Reference(
    key=EntryKey(datetime(2026, 1, 1, 10, tzinfo=UTC), 2, UUID(int=7)),
    mail_id=UUID(int=8),
    blob_key="queue/2026/01/01/id",
    size_bytes=10,
    accepted_at=datetime(2026, 1, 1, 10, 20, tzinfo=UTC),
    due_at=datetime(2026, 1, 1, 11, 20, tzinfo=UTC),
    attempt=1,
    last_error="451",
    previous=(EntryKey(datetime(2026, 1, 1, 9, tzinfo=UTC), 1, UUID(int=6)),),
    claim=True,
    crashes=2,
    envelope=Envelope("a@example.org", ("b@example.net",), "n", {"k": "v"}, Origin("h"), None),
)


@given(REFERENCE)
def test_reference_survives_the_wire_whole(reference: Reference) -> None:
    assert decode(encode(reference)) == reference


@given(
    st.binary(max_size=200)
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    ).map(lambda value: json.dumps(value).encode())
)
def test_anything_else_is_unreadable(body: bytes) -> None:
    with pytest.raises(UnreadableReference):
        decode(body)


def values() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(encode(PLAIN))
    return found


def test_a_repetition_names_its_own_entry_among_those_before() -> None:
    entry = PLAIN.entry
    assert entry is not None
    repetition = decode(encode(Reference.repeating(entry)))

    assert repetition.is_repetition
    assert json.loads(encode(repetition)).keys() == values().keys()
    assert (repetition.claim, repetition.previous) == (True, (*PLAIN.previous, PLAIN.key))
    assert repetition.entry == entry


@pytest.mark.parametrize("field", sorted(values()))
def test_reference_without_one_field_is_unreadable(field: str) -> None:
    body = values()
    del body[field]

    with pytest.raises(UnreadableReference):
        decode(json.dumps(body).encode())


WRONG = [-1, 1.5, "no", [0], {"a": 0}, [["x"]]]


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        pytest.param(field, wrong, id=f"{field}={wrong}")
        for field in sorted(values())
        for wrong in WRONG
        if not (
            field in {"error", "blob", "shape"} and isinstance(wrong, str)
        )  # any text will do there
    ],
)
def test_reference_with_a_field_of_another_kind_is_unreadable(field: str, wrong: object) -> None:
    with pytest.raises(UnreadableReference):
        decode(json.dumps(values() | {field: wrong}).encode())


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"v": 2}, id="a later version"),
        pytest.param({"v": True}, id="a version that only equals ours"),
        pytest.param({"more": 1}, id="an unknown field"),
        pytest.param({"accepted": "2026-01-01T10:20:00"}, id="a time without zone"),
        pytest.param({"bucket": True}, id="a number that is a claim"),
        pytest.param({"envelope": values()["envelope"] | {"more": 1}}, id="more in the envelope"),
        pytest.param({"envelope": values()["envelope"] | {"to": []}}, id="no recipients"),
        pytest.param({"envelope": values()["envelope"] | {"to": ["<bad>"]}}, id="no address"),
    ],
)
def test_reference_that_is_only_nearly_right_is_unreadable(change: dict[str, object]) -> None:
    with pytest.raises(UnreadableReference) as caught:
        decode(json.dumps(values() | change).encode())

    assert "example" not in str(caught.value)


def test_envelope_that_is_too_large_is_left_to_the_row() -> None:
    many = tuple(f"recipient-{number}@example.net" for number in range(1000))
    envelope = Envelope("a@example.org", many)

    body = encode(replace(PLAIN, envelope=envelope))

    assert len(body) <= MAX_BODY
    assert decode(body) == replace(PLAIN, envelope=None)
    assert decode(body).entry is None


@pytest.mark.parametrize(("beyond", "is_whole"), [(0, True), (1, False)])
def test_a_message_of_the_largest_size_has_its_envelope(beyond: int, *, is_whole: bool) -> None:
    room = MAX_BODY - len(encode(PLAIN))
    envelope = Envelope(
        "a@example.org", ("b@example.net",), "n" * (1 + room + beyond), {"k": "v"}, Origin("h")
    )

    decoded = decode(encode(replace(PLAIN, envelope=envelope)))

    assert decoded.envelope == (envelope if is_whole else None)


def test_very_long_error_is_cut_so_that_a_message_stays_small() -> None:
    body = encode(replace(PLAIN, last_error="ü" * 10**6))

    assert len(body) <= MAX_BODY
    assert decode(body).last_error == "ü" * MAX_ERROR


@pytest.mark.parametrize("recipients", [1, 10_000])
def test_the_size_of_a_row_is_that_of_its_reference_with_all_recipients(recipients: int) -> None:
    envelope = Envelope("a@example.org", tuple(f"{n}@example.net" for n in range(recipients)))
    key = EntryKey(EPOCH, 0, UUID(int=1))
    entry = Entry(key, UUID(int=2), envelope, "key", 1, EPOCH, EPOCH)

    size = size_of(entry)

    in_body = len(encode(Reference.to(entry, claim=False)))
    assert size == in_body if size <= MAX_BODY else size > 14 * recipients > in_body


def test_a_message_carries_the_whole_entry() -> None:
    key, before = (place(id_at(EPOCH, each, 0), timedelta(hours=1), 3) for each in (2, 1))
    entry = Entry(
        key=key,
        mail_id=UUID(int=1),
        envelope=Envelope("a@example.org", ("b@example.net",)),
        blob_key="blob",
        size_bytes=10,
        accepted_at=EPOCH + timedelta(seconds=1),
        enqueued_at=EPOCH,
        due_at=EPOCH + timedelta(seconds=2),
        attempt=3,
        last_error="451",
        previous=(before,),
        shape=Shape(4, folds=2),
    )

    assert decode(encode(Reference.to(entry, claim=False))).entry == entry
