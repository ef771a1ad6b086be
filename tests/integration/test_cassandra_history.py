"""The configuration history under rivals and kills, in a real Cassandra."""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest

import servers
from postroad.adapters.cassandra.history import CassandraHistory
from postroad.adapters.cassandra.session import Session
from postroad.configuration import settle
from postroad.domain.configuration.documents import from_document, to_document
from postroad.domain.configuration.history import decide, fold, replay
from postroad.domain.configuration.rules import ViewConfiguration
from postroad.errors import HistoryTooNew
from support import configuration_writer
from support.histories import STATUS_BYTES, size_of
from support.keyspaces import keyspace

__all__ = ["keyspace"]

pytestmark = [pytest.mark.needs("cassandra"), pytest.mark.timeout(300)]

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
async def session(keyspace: str) -> AsyncIterator[Session]:
    session = Session(servers.cassandra(keyspace))
    yield session
    await session.close()


@pytest.fixture
def queue() -> str:
    return f"test.{servers.fresh()}"


async def test_writers_fed_the_same_transitions_make_one_history(
    session: Session, keyspace: str, queue: str
) -> None:
    others = [Session(servers.cassandra(keyspace)) for _ in range(3)]

    await asyncio.gather(
        *(
            configuration_writer.want_all(CassandraHistory(each, queue))
            for each in (session, *others)
        )
    )

    configuration_writer.check((await CassandraHistory(session, queue).load()).events)
    await asyncio.gather(*(each.close() for each in others))


async def test_processes_killed_again_and_again_leave_one_complete_history(
    session: Session, keyspace: str, queue: str
) -> None:
    """Two processes at a time, each killed during its work, whenever the history has grown a
    little."""
    history, randomness = CassandraHistory(session, queue), random.Random(7)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

    async def length() -> int:
        return len((await history.load()).events)

    async def live() -> None:
        until = await length() + randomness.randrange(1, 14)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "support.configuration_writer", keyspace, queue),
            env=environment,
        )
        while await length() < until:
            await asyncio.sleep(randomness.random() / 100)
            assert process.returncode is None, "it was to be killed before it came through"
        process.kill()
        await process.wait()

    for _ in range(3):
        await asyncio.gather(live(), live())
    await configuration_writer.want_all(history)

    configuration_writer.check((await history.load()).events)


async def test_after_150_transitions_the_folded_status_replays_to_what_the_mirror_says(
    session: Session, queue: str
) -> None:
    history = CassandraHistory(session, queue)
    first = ViewConfiguration(bucket_count=1)
    settled = await settle(history, first, at=NOON, by="operator")
    for index in range(1, 150):
        wanted = ViewConfiguration(bucket_count=index + 1, update_browse_start_pace=index + 1)
        settled = await settle(history, wanted, at=NOON, by="operator", generation=index)

    mirror = (await history.load()).events
    status = [from_document(each) for each in settled.entries()]

    assert mirror == settled.history
    assert replay(status) == replay(mirror)
    assert len(status) <= 50
    assert size_of(status) <= STATUS_BYTES
    assert status == list(fold(mirror))


@pytest.mark.parametrize("unknown", [{"type": "FromTheFuture"}, {"order": "byRecipient"}], ids=str)
async def test_an_event_of_a_later_release_stops_everything_that_would_follow_from_it(
    session: Session, queue: str, unknown: dict[str, str]
) -> None:
    history = CassandraHistory(session, queue)
    event = decide((), ViewConfiguration(), at=NOON).event
    assert event is not None
    await history.append(event)
    changed = decide((event,), ViewConfiguration(bucket_count=64), at=NOON).event
    assert changed is not None
    document = json.dumps(to_document(changed) | unknown)
    await session.run(
        "INSERT INTO {keyspace}.configuration_events (queue, sequence, document)"
        f" VALUES ('{queue}', 2, '{document}') IF NOT EXISTS"
    )

    with pytest.raises(HistoryTooNew, match="event 2"):
        await history.load()


async def test_a_deleted_event_is_noticed(session: Session, queue: str) -> None:
    history = CassandraHistory(session, queue)
    for buckets in (1, 2, 3):
        await settle(history, ViewConfiguration(bucket_count=buckets), at=NOON, by="test")
    await session.run(
        f"DELETE FROM {{keyspace}}.configuration_events WHERE queue = '{queue}' AND sequence = 2"
        " IF EXISTS"
    )

    result = await settle(history, ViewConfiguration(bucket_count=4), at=NOON, by="test")

    assert result.state is None
    assert result.refusal is not None
    assert result.refusal.reason == "HistoryConflict"
    assert len((await history.load()).events) == 2


async def test_nothing_is_hidden_by_what_was_erased_a_moment_before(
    session: Session, queue: str
) -> None:
    """Deletions carry the order of the transactions, not a client's clock."""
    history = CassandraHistory(session, queue)
    for _ in range(20):
        await settle(history, ViewConfiguration(), at=NOON, by="test")
        assert len((await history.load()).events) == 1
        await history.erase()
        assert (await history.load()).events == ()
