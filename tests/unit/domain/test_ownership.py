"""The owner object, and what it says of a view."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from postroad.domain.queues.names import QueueName, key_of_owner, mail_of_bytes
from postroad.domain.queues.ownership import Identity, Owner, following, is_older

QUEUE = QueueName("mail", "outgoing")
VIEW = UUID(int=7)
NOW = datetime(2026, 1, 1, 12, 0, 0, 123_000, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)


@pytest.mark.parametrize("as_of", [None, NOW, NOW.replace(microsecond=0)])
def test_an_owner_is_read_as_it_was_written(as_of: datetime | None) -> None:
    owner = Owner(VIEW, as_of)

    assert Owner.decode(owner.encode(QUEUE)) == owner


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff",
        b"[]",
        b"7",
        b"{}",
        b'{"incarnation": "7", "as_of": null}',
        b'{"incarnation": 7, "as_of": null}',
        b'{"incarnation": "00000000-0000-0000-0000-000000000007"}',
        b'{"incarnation": "00000000-0000-0000-0000-000000000007", "as_of": 7}',
        b'{"incarnation": "00000000-0000-0000-0000-000000000007", "as_of": "2026-01-01T12:00:00"}',
    ],
)
def test_what_is_no_owner_object_is_refused_as_one(body: bytes) -> None:
    with pytest.raises(ValueError):
        Owner.decode(body)


def test_fields_of_a_later_release_are_passed_over() -> None:
    body = Owner(VIEW, NOW).encode(QUEUE).replace(b"{", b'{"more": [1], ')

    assert Owner.decode(body) == Owner(VIEW, NOW)


def test_no_mails_bytes_have_the_key_of_the_owner_object() -> None:
    assert mail_of_bytes(QUEUE, key_of_owner(QUEUE)) is None


@pytest.mark.parametrize(
    ("view", "seen", "older"),
    [
        (None, None, False),
        (NOW, None, False),
        (None, NOW, True),
        (NOW, NOW, False),
        (NOW + MILLISECOND, NOW, False),
        (NOW - MILLISECOND, NOW, True),
    ],
)
def test_a_view_is_older_than_what_the_object_saw_of_it(
    view: datetime | None, seen: datetime | None, older: bool
) -> None:
    assert is_older(Identity({VIEW}, view), Owner(VIEW, seen)) is older


def test_as_of_grows_with_the_clock_and_without_it() -> None:
    exact = NOW + timedelta(microseconds=999)

    assert following(Identity({VIEW}, None), exact) == NOW
    assert following(Identity({VIEW}, NOW - MILLISECOND), exact) == NOW
    assert following(Identity({VIEW}, NOW), exact) == NOW + MILLISECOND
    assert following(Identity({VIEW}, NOW + timedelta(hours=1)), exact) == (
        NOW + timedelta(hours=1) + MILLISECOND
    )
