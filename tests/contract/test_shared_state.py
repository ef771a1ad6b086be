"""The contract of a queue's shared state, over memory, a directory and Cassandra."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest

import servers
from postroad.adapters.cassandra.session import Session
from postroad.adapters.cassandra.store import CassandraViewStore
from postroad.adapters.disk.shared_state import DirectorySharedState
from postroad.adapters.memory.servers import MemoryServers, MemoryWorld
from postroad.domain.queues.names import QueueName
from postroad.ports.delivery import SharedState, Topic
from support.keyspaces import keyspace
from support.memory.clock import ManualClock

__all__ = ["keyspace"]

HOUR = timedelta(hours=1)
SITE, WORKER = Topic.SUSPENSIONS, Topic.WORKERS


class SharedStateContract:
    """What every shared state promises. Subclasses provide `shared_states`: two processes' of one
    queue, and that of another queue."""

    async def test_a_entries_is_seen_by_all_processes_of_its_queue(
        self, shared_states: tuple[SharedState, SharedState, SharedState]
    ) -> None:
        one, other, stranger = shared_states
        await one.publish(SITE, "mx.example:25+1.ab/é", '{"a": "ü\\n"}', HOUR)

        assert await other.published(SITE) == {"mx.example:25+1.ab/é": '{"a": "ü\\n"}'}
        assert await one.published(WORKER) == {}
        assert await stranger.published(SITE) == {}

    async def test_the_last_entries_under_a_name_counts_until_it_is_taken_down(
        self, shared_states: tuple[SharedState, SharedState, SharedState]
    ) -> None:
        one, other, _ = shared_states
        await one.publish(SITE, "a", "first", HOUR)
        await other.publish(SITE, "a", "second", HOUR)
        await other.publish(SITE, "b", "of another name", HOUR)
        assert await one.published(SITE) == {"a": "second", "b": "of another name"}

        await one.take_down(SITE, "a")
        await one.take_down(SITE, "a")
        assert await other.published(SITE) == {"b": "of another name"}

    async def test_several_topics_are_read_at_once(
        self, shared_states: tuple[SharedState, SharedState, SharedState]
    ) -> None:
        one, other, stranger = shared_states
        for topic, name in ((SITE, "a"), (SITE, "b"), (WORKER, "a"), (Topic.LIMITS, "a")):
            await one.publish(topic, name, f"{topic} {name}", HOUR)
        asked = (SITE, WORKER, Topic.REROUTES)

        assert await other.published_about(asked) == {
            SITE: {"a": "suspensions a", "b": "suspensions b"},
            WORKER: {"a": "workers a"},
            Topic.REROUTES: {},
        }
        assert await stranger.published_about(asked) == {topic: {} for topic in asked}

    async def test_many_processes_post_at_once(
        self, shared_states: tuple[SharedState, SharedState, SharedState]
    ) -> None:
        one, other, _ = shared_states
        await asyncio.gather(
            *(
                shared_state.publish(WORKER, f"w{n}", str(n), HOUR)
                for n in range(20)
                for shared_state in (one, other)
            )
        )

        assert await one.published(WORKER) == {f"w{n}": str(n) for n in range(20)}


class LifetimeContract(SharedStateContract):
    """Of shared state whose clock a test moves."""

    async def test_a_entries_ends_with_its_lifetime(
        self, shared_states: tuple[SharedState, SharedState, SharedState], clock: ManualClock
    ) -> None:
        one, other, _ = shared_states
        await one.publish(SITE, "a", "x", HOUR)
        await one.publish(SITE, "b", "x", HOUR)
        await clock.advance(HOUR / 2)
        await other.publish(SITE, "b", "y", HOUR)
        await clock.advance(HOUR / 2)

        assert await one.published(SITE) == {"b": "y"}
        assert await one.published(SITE) == {"b": "y"}


class TestMemorySharedState(LifetimeContract):
    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    @pytest.fixture
    def shared_states(self, clock: ManualClock) -> tuple[SharedState, SharedState, SharedState]:
        world = MemoryWorld(clock)
        one, other = (MemoryServers(world).views() for _ in range(2))
        names = QueueName("a", "one"), QueueName("a", "other")
        mine, yours = map(str, names)
        return (
            one.view(mine).shared_state,
            other.view(mine).shared_state,
            one.view(yours).shared_state,
        )


class TestDirectorySharedState(LifetimeContract):
    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    @pytest.fixture
    def shared_states(
        self, tmp_path: Path, clock: ManualClock
    ) -> tuple[SharedState, SharedState, SharedState]:
        mine, yours = tmp_path / "one" / "shared_state", tmp_path / "other" / "shared_state"
        return tuple(DirectorySharedState(each, clock) for each in (mine, mine, yours))  # type: ignore[return-value]

    async def test_files_that_are_no_entries_are_passed_over(
        self, shared_states: tuple[SharedState, SharedState, SharedState], tmp_path: Path
    ) -> None:
        one, _, _ = shared_states
        await one.publish(SITE, "a", "x", HOUR)
        folder = tmp_path / "one" / "shared_state" / SITE.value
        (folder / "half.json").write_text('{"name": "b", "te')
        (folder / "list.json").write_text("[]")
        (folder / "odd.json").write_text('{"name": "c", "until": "soon"}')
        (folder / "d.new").write_text('{"name": "d", "text": "x", "until": 9e9}')

        assert await one.published(SITE) == {"a": "x"}
        (file,) = (each for each in folder.iterdir() if len(each.name) == 45)
        assert file.stat().st_mode & 0o077 == 0


@pytest.mark.needs("cassandra")
class TestCassandraSharedState(SharedStateContract):
    @pytest.fixture
    async def shared_states(
        self, keyspace: str
    ) -> AsyncIterator[tuple[SharedState, SharedState, SharedState]]:
        sessions = [Session(servers.cassandra(keyspace)) for _ in range(2)]
        one, other = map(CassandraViewStore, sessions)
        name = f"shared_state.{uuid4().hex}"
        yield (
            one.view(name).shared_state,
            other.view(name).shared_state,
            one.view(f"{name}-2").shared_state,
        )
        for each in sessions:
            await each.close()

    async def test_a_entries_is_written_with_its_lifetime(
        self, shared_states: tuple[SharedState, SharedState, SharedState], keyspace: str
    ) -> None:
        await shared_states[0].publish(SITE, "a", "x", HOUR)
        session = Session(servers.cassandra(keyspace))
        rows = await session.run("SELECT TTL(entry) AS left FROM {keyspace}.shared_state")
        await session.close()

        lefts = [row["left"] for row in rows]
        assert lefts
        assert all(0 < left <= HOUR.total_seconds() for left in lefts)
