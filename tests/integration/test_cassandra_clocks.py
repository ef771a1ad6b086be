"""A process whose clock is ahead or behind: what is written later wins all the same."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

import servers
from contract.view_contract import turn
from postroad.adapters.cassandra.session import Session
from postroad.adapters.cassandra.store import CassandraViewStore
from postroad.domain.mail import Outcome
from postroad.ports.view import DeadLetter, Record, TableOptions, View

pytestmark = pytest.mark.needs("cassandra")

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
OPTIONS = TableOptions(
    {"class": "SimpleStrategy", "replication_factor": "1"},
    timedelta(days=14),
    timedelta(hours=12),
    timedelta(hours=3),
)
MAIL = UUID(int=1)


@contextmanager
def clock_ahead(seconds: float) -> Iterator[None]:
    """Let this process' wall clock be ahead."""
    true_time, true_time_ns = time.time, time.time_ns
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: true_time() + seconds)
        patch.setattr(time, "time_ns", lambda: true_time_ns() + int(seconds * 1e9))
        yield


@pytest.fixture
async def sessions() -> AsyncIterator[tuple[Session, Session]]:
    """Two sessions, as of two processes, on a keyspace of their own."""
    keyspace = servers.fresh()
    made = servers.session(keyspace), servers.session(keyspace)
    await CassandraViewStore(made[0]).create(OPTIONS)
    yield made
    await made[0].run("DROP KEYSPACE {keyspace}", timedelta(seconds=60))
    for each in made:
        await each.close()


@pytest.fixture
def one(sessions: tuple[Session, Session]) -> View:
    return CassandraViewStore(sessions[0]).view("test.clocks")


@pytest.fixture
def other(sessions: tuple[Session, Session]) -> View:
    return CassandraViewStore(sessions[1]).view("test.clocks")


def failed(text: str = "550 no") -> tuple[Record, ...]:
    return (Record("b@example.net", Outcome.failed(text), NOON),)


async def test_the_last_outcome_of_a_recipient_stands(one: View, other: View) -> None:
    with clock_ahead(30):
        await one.record(MAIL, failed())
    delivered = Record("b@example.net", Outcome.delivered("250 ok"), NOON)

    await other.record(MAIL, (delivered,))

    assert (await one.records(MAIL))["b@example.net"] == delivered


@pytest.mark.parametrize("seconds", [30, -30])
async def test_a_letter_is_taken_out_and_buried_again(
    one: View, other: View, seconds: float
) -> None:
    letter = DeadLetter(turn().enqueue_id, "2026-01", NOON, "no", turn())
    with clock_ahead(seconds):
        await one.bury(letter)

    await other.unbury(letter)
    assert [each async for each in other.buried()] == []

    await other.bury(replace(letter, reason="again"))
    assert [each.reason async for each in other.buried()] == ["again"]


async def test_what_is_written_after_an_erasure_stays(one: View, other: View) -> None:
    await one.insert(turn())
    with clock_ahead(30):
        await one.erase()

    await other.insert(turn())

    assert await other.row(turn().key) == turn()
