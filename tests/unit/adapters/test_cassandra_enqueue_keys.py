"""The transactions of enqueue keys: the first process has the key, and all of a key expires at
once."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

import pytest

from postroad.adapters.cassandra.view import view
from postroad.adapters.cassandra.view.view import CHANGE, COLUMNS, TAKE
from postroad.domain.queues.entries import EntryKey
from postroad.ports.view import KeyedEntry
from support.scripted_session import ScriptedSession

QUEUE, TOKEN = "mail.out", b"t" * 32
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
MINE = KeyedEntry(
    key=EntryKey(NOW, 3, UUID(int=1)),
    mail_id=UUID(int=2),
    blob_key="mail.out/1",
    accepted_at=NOW,
    digest=b"d" * 32,
    is_accepted=False,
)
VALUES = (*MINE.key, MINE.mail_id, MINE.blob_key, NOW, MINE.digest, False)
THEIRS = replace(MINE, key=EntryKey(NOW, 1, UUID(int=7)), mail_id=UUID(int=8), is_accepted=True)


@pytest.fixture
async def session() -> ScriptedSession:
    return ScriptedSession()


async def test_the_first_process_has_the_key(session: ScriptedSession) -> None:
    session.answer(TAKE, [{"[applied]": True}])

    assert await view.take(session, QUEUE, TOKEN, MINE) == MINE

    assert session.values_of(TAKE) == [(QUEUE, TOKEN, *VALUES)]


async def test_a_later_process_gets_what_the_first_wrote(session: ScriptedSession) -> None:
    naive = NOW.replace(tzinfo=None)  # as the driver returns it
    values = (naive, *THEIRS.key[1:], THEIRS.mail_id, THEIRS.blob_key, naive, THEIRS.digest, True)
    row = dict(zip(COLUMNS, values, strict=True))
    session.answer(TAKE, [{"[applied]": False} | row])

    assert await view.take(session, QUEUE, TOKEN, MINE) == THEIRS


@pytest.mark.parametrize("applied", [True, False])
async def test_a_key_changes_only_from_the_state_that_was_read(
    session: ScriptedSession, applied: bool
) -> None:
    session.answer(CHANGE, [{"[applied]": applied}])
    accepted = replace(MINE, is_accepted=True)

    assert await view.change(session, QUEUE, TOKEN, MINE, accepted) == applied

    [values] = session.values_of(CHANGE)
    assert values == (*VALUES[:-1], True, QUEUE, TOKEN, MINE.key.enqueue_id, False)


def test_every_column_of_a_key_lives_for_a_day() -> None:
    for statement in (TAKE, CHANGE):
        assert "USING TTL 86400" in statement.cql
        assert all(f"{each}" in statement.cql for each in COLUMNS)
