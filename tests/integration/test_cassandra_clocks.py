"""A process whose clock is ahead or behind: the later write wins all the same."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

import servers
from contract.view_contract import NO_TRAITS, PARTITION, entry, erase, time_of
from postroad.adapters.cassandra.session import Session
from postroad.adapters.cassandra.store import CassandraViewStore
from postroad.domain.mail.mail import Outcome
from postroad.domain.queues.entries import PurgeWatermark
from postroad.domain.values.instants import AgreedTime
from postroad.ports.view import DeadLetter, Record, View
from support.keyspaces import keyspace

__all__ = ["keyspace"]

pytestmark = pytest.mark.needs("cassandra")

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
MAIL = UUID(int=1)
HOUR = timedelta(hours=1)


@contextmanager
def clock_ahead(seconds: float) -> Iterator[None]:
    """Let this process' wall clock be ahead."""
    true_time, true_time_ns = time.time, time.time_ns
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: true_time() + seconds)
        patch.setattr(time, "time_ns", lambda: true_time_ns() + int(seconds * 1e9))
        yield


@pytest.fixture
async def sessions(keyspace: str) -> AsyncIterator[tuple[Session, Session]]:
    """Two sessions, as of two processes."""
    made = servers.session(keyspace), servers.session(keyspace)
    yield made
    for each in made:
        await each.close()


@pytest.fixture
def queue() -> str:
    return f"test.{servers.fresh()}"


@pytest.fixture
def one(sessions: tuple[Session, Session], queue: str) -> View:
    return CassandraViewStore(sessions[0]).view(queue)


@pytest.fixture
def other(sessions: tuple[Session, Session], queue: str) -> View:
    return CassandraViewStore(sessions[1]).view(queue)


def failed(text: str = "550 no") -> tuple[Record, ...]:
    return (Record("b@example.net", Outcome.failed(text), NOON),)


async def test_the_last_outcome_of_a_recipient_stands(one: View, other: View) -> None:
    with clock_ahead(30):
        await one.record(MAIL, failed())
    delivered = Record("b@example.net", Outcome.delivered("250 ok"), NOON)

    await other.record(MAIL, (delivered,))

    assert (await one.records(MAIL))["b@example.net"] == delivered


@pytest.mark.parametrize("seconds", [30, -30])
async def test_a_dead_letter_is_taken_out_and_buried_again(
    one: View, other: View, seconds: float
) -> None:
    dead_letter = DeadLetter(entry().enqueue_id, "2026-01", NOON, "no", entry())
    with clock_ahead(seconds):
        await one.write_dead_letter(dead_letter)

    await other.delete_dead_letter(dead_letter)
    assert [each async for each in other.dead_letters()] == []

    await other.write_dead_letter(replace(dead_letter, reason="again"))
    assert [each.reason async for each in other.dead_letters()] == ["again"]


def let_lag(session: Session, seconds: float) -> None:
    """Make a process take the view's time for earlier than it is."""
    timestamps = session._clocks.timestamps
    theirs = datetime.now(UTC) - timedelta(seconds=seconds)
    timestamps.learn(timestamps.clock_ns(), AgreedTime(theirs, timedelta(0), 2, ()))
    timestamps._last = 0


async def test_what_a_writer_whose_estimate_lags_writes_after_an_erasure_stays(
    sessions: tuple[Session, Session], one: View, other: View
) -> None:
    """A queue is made anew under the same name at once, and has nothing of the queue before."""
    old, dead_letter = entry(), DeadLetter(entry().enqueue_id, "2026-01", NOON, "no", entry())
    new, new_dead_letter = (
        entry(2),
        replace(dead_letter, enqueue_id=entry(2).enqueue_id, entry=entry(2)),
    )
    await one.insert(old)
    await one.mark_delivered(old.key, NOON, NO_TRAITS)
    await one.write_dead_letter(dead_letter)
    await one.set_watermark(PARTITION, PurgeWatermark(old.enqueue_id, NOON))
    await other.server_times()
    let_lag(sessions[1], 4)

    await erase(one)
    await other.insert(new)
    await other.mark_delivered(new.key, NOON, NO_TRAITS)
    await other.write_dead_letter(new_dead_letter)

    assert [each async for each in one.rows(PARTITION)] == [new]
    assert [each async for each, _ in one.marks(PARTITION)] == [new.enqueue_id]
    assert [each async for each in one.dead_letters()] == [new_dead_letter]
    assert (await one.version(PARTITION)).watermark is None


async def test_a_row_of_a_machine_that_was_paused_outlives_an_earlier_cleanup(
    sessions: tuple[Session, Session], one: View, other: View
) -> None:
    """The process stood still, and its estimate of the view's time with it."""
    await one.insert(entry())
    await other.server_times()
    let_lag(sessions[1], 3600)

    await one.delete_rows(PARTITION, await time_of(one) + timedelta(milliseconds=5))
    await asyncio.sleep(0.02)  # the view's clock goes on
    await asyncio.gather(*(other.insert(entry(number)) for number in (2, 3, 4)))

    assert [each async for each in one.rows(PARTITION)] == [entry(2), entry(3), entry(4)]


async def test_what_is_written_after_an_erasure_stays(one: View, other: View) -> None:
    await one.insert(entry())
    with clock_ahead(30):
        await erase(one)

    await other.insert(entry(2))

    assert await other.row(entry(2).key) == entry(2)


async def test_a_row_that_its_owner_has_left_is_free(
    sessions: tuple[Session, Session], queue: str, one: View
) -> None:
    """An earlier release inserted claims, whose row stays when a host that was ahead had stamped
    its marker."""
    await sessions[0].run(
        f"INSERT INTO {{keyspace}}.claims (queue, enqueue_id) VALUES ('{queue}', {MAIL})"
    )

    assert await one.claim(MAIL, UUID(int=2), HOUR)
    assert not await one.claim(MAIL, UUID(int=3), HOUR)
    await one.release_claim(MAIL, UUID(int=2))
    assert await one.claim(MAIL, UUID(int=3), HOUR)


async def test_a_claim_makes_no_row_beside_its_owner(
    sessions: tuple[Session, Session], queue: str, one: View
) -> None:
    assert await one.claim(MAIL, UUID(int=2), HOUR)

    await sessions[0].run(
        f"DELETE owner FROM {{keyspace}}.claims WHERE queue = '{queue}' AND enqueue_id = {MAIL}"
        " IF EXISTS"
    )

    found = await sessions[0].run("SELECT queue FROM {keyspace}.claims")
    assert queue not in [each["queue"] for each in found]
