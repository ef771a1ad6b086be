"""Entries, marks and dead letters survive the way into columns and back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from postroad.adapters.cassandra import mark_statements, statements
from postroad.adapters.cassandra.session import UNSET
from postroad.adapters.cassandra.view import marks as mark_rows
from postroad.adapters.cassandra.view import rows
from postroad.domain.mail.mail import DsnOptions, Envelope, Origin, RecipientDsn
from postroad.domain.mail.shapes import Shape
from postroad.domain.queues.entries import Change, Ending, EndingKind, Entry, EntryKey, Mark
from postroad.ports.view import DeadLetter
from support.stored_rows import stored

texts = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=20)
addresses = st.sampled_from(["a@example.org", "ü@exämple.net", '"a b"@example.com', "postmaster"])
START = datetime(2020, 1, 1, tzinfo=UTC)
NOW = datetime(2026, 1, 1, 10, tzinfo=UTC)
instants = st.integers(0, 80 * 365 * 86_400_000).map(
    lambda milliseconds: START + timedelta(milliseconds=milliseconds)
)
keys = st.builds(EntryKey, instants, st.integers(0, 99), st.uuids())
chains = st.lists(keys, max_size=3).map(tuple)
notify = st.lists(st.sampled_from(["NEVER", "SUCCESS", "FAILURE", "DELAY"]), max_size=2).map(tuple)
printable = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20)
dsn = st.builds(
    DsnOptions,
    ret=st.none() | st.just("FULL"),
    envid=st.none() | printable,
    recipients=st.dictionaries(
        addresses,
        st.builds(RecipientDsn, notify, st.none() | printable.map("rfc822;".__add__)),
        max_size=2,
    ),
)
origins = st.builds(Origin, st.none() | texts, st.none() | texts, st.none() | texts).filter(
    lambda each: each != Origin()
)
envelopes = st.builds(
    Envelope,
    sender=st.none() | addresses,
    recipients=st.lists(addresses, min_size=1, max_size=3).map(tuple),
    name=st.none() | texts,
    attributes=st.dictionaries(texts, texts, max_size=3),
    origin=st.none() | origins,
    dsn=st.none() | dsn,
)
entries = st.builds(
    Entry,
    key=keys,
    mail_id=st.uuids(),
    envelope=envelopes,
    blob_key=texts,
    size_bytes=st.integers(0, 2**40),
    accepted_at=instants,
    enqueued_at=instants,
    due_at=st.none() | instants,
    held=st.booleans(),
    attempt=st.integers(0, 1000),
    last_error=st.none() | texts,
    previous=chains,
    shape=st.none()
    | st.builds(Shape, st.integers(0, 2**20), st.booleans(), bare_line_ends=st.integers(0, 9)),
)
changes = st.builds(
    Change,
    remaining=st.lists(addresses, min_size=1, max_size=3).map(tuple),
    due_at=st.none() | instants,
    held=st.booleans(),
    attempt=st.integers(0, 1000),
    last_error=st.none() | texts,
    previous=chains,
)
endings = st.one_of(
    st.builds(
        Ending,
        st.sampled_from([kind for kind in EndingKind if kind is not EndingKind.REPLACED]),
        instants,
    ),
    st.builds(Ending, st.just(EndingKind.REPLACED), instants, keys, changes),
)


@given(entries)
def test_an_entry_survives(entry: Entry) -> None:
    row = stored(statements.ROW_COLUMNS, rows.entry_values(entry))

    assert rows.entry_of(row) == entry


@given(endings)
def test_an_ending_survives(ending: Ending) -> None:
    row = stored(mark_statements.MARK_COLUMNS, (UNSET, *mark_rows.ending_values(ending)))

    assert mark_rows.mark_of(row) == Mark(ending=ending)


@given(endings, instants, st.booleans())
def test_a_delivery_beside_an_ending_survives(ending: Ending, at: datetime, is_done: bool) -> None:
    row = stored(mark_statements.MARK_COLUMNS, (at, *mark_rows.ending_values(ending)))

    mark = mark_rows.mark_of(row | {"published": is_done})

    assert mark == Mark(delivered_at=at, ending=ending, published=is_done)


@given(entries, st.none() | keys)
def test_a_dead_letter_survives(entry: Entry, requeued_as: EntryKey | None) -> None:
    dead_letter = DeadLetter(entry.enqueue_id, "2026-01", NOW, "no", entry, None, requeued_as)

    row = stored(statements.DEAD_LETTER_COLUMNS, rows.dead_letter_values("mail.out", dead_letter))

    assert rows.dead_letter_of(row) == dead_letter


@given(st.uuids(), st.binary(max_size=20))
def test_an_unreadable_dead_letter_survives(enqueue_id: UUID, body: bytes) -> None:
    dead_letter = DeadLetter(enqueue_id, "2026-01", NOW, "unreadable", None, body)

    row = stored(statements.DEAD_LETTER_COLUMNS, rows.dead_letter_values("mail.out", dead_letter))

    assert rows.dead_letter_of(row) == dead_letter


@given(instants)
def test_later_limits_have_later_timestamps(limit: datetime) -> None:
    earlier = rows.own_timestamp(limit - timedelta(microseconds=1))

    assert earlier + 1 == rows.own_timestamp(limit)


def test_a_dead_letter_without_a_reason_is_set_aside() -> None:
    """It does not say when it was written, so it cannot be written anew or deleted."""
    dead_letter = DeadLetter(UUID(int=1), "2026-01", NOW, "no", None, b"body")
    row = stored(statements.DEAD_LETTER_COLUMNS, rows.dead_letter_values("mail.out", dead_letter))

    found = rows.dead_letter_of(row | {"reason": None})

    assert (found.is_decoded, found.reason, found.entry) == (False, "", None)
