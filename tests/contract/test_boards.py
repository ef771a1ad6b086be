"""The contract of a queue's board, over memory, a directory and Cassandra."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest

import servers
from postroad.adapters.cassandra.connection.session import Session
from postroad.adapters.cassandra.store import CassandraViewStore
from postroad.adapters.disk.board import DirectoryBoard
from postroad.adapters.memory.clock import ManualClock
from postroad.adapters.memory.servers import MemoryServers, MemoryWorld
from postroad.domain.queues.names import QueueName
from postroad.ports.delivery import Board, Topic
from support.keyspaces import keyspace

__all__ = ["keyspace"]

HOUR = timedelta(hours=1)
SITE, WORKER = Topic.SUSPENSIONS, Topic.WORKERS


class BoardContract:
    """What every board promises. Subclasses provide `boards`: two processes' of one queue, and that
    of another queue."""

    async def test_a_note_is_seen_by_all_processes_of_its_queue(
        self, boards: tuple[Board, Board, Board]
    ) -> None:
        one, other, stranger = boards
        await one.post(SITE, "mx.example:25+1.ab/é", '{"a": "ü\\n"}', HOUR)

        assert await other.posted(SITE) == {"mx.example:25+1.ab/é": '{"a": "ü\\n"}'}
        assert await one.posted(WORKER) == {}
        assert await stranger.posted(SITE) == {}

    async def test_the_last_note_under_a_name_counts_until_it_is_taken_down(
        self, boards: tuple[Board, Board, Board]
    ) -> None:
        one, other, _ = boards
        await one.post(SITE, "a", "first", HOUR)
        await other.post(SITE, "a", "second", HOUR)
        await other.post(SITE, "b", "of another name", HOUR)
        assert await one.posted(SITE) == {"a": "second", "b": "of another name"}

        await one.take_down(SITE, "a")
        await one.take_down(SITE, "a")
        assert await other.posted(SITE) == {"b": "of another name"}

    async def test_several_topics_are_read_at_once(
        self, boards: tuple[Board, Board, Board]
    ) -> None:
        one, other, stranger = boards
        for topic, name in ((SITE, "a"), (SITE, "b"), (WORKER, "a"), (Topic.LIMITS, "a")):
            await one.post(topic, name, f"{topic} {name}", HOUR)
        asked = (SITE, WORKER, Topic.REROUTES)

        assert await other.posted_about(asked) == {
            SITE: {"a": "suspensions a", "b": "suspensions b"},
            WORKER: {"a": "workers a"},
            Topic.REROUTES: {},
        }
        assert await stranger.posted_about(asked) == {topic: {} for topic in asked}

    async def test_many_processes_post_at_once(self, boards: tuple[Board, Board, Board]) -> None:
        one, other, _ = boards
        await asyncio.gather(
            *(
                board.post(WORKER, f"w{n}", str(n), HOUR)
                for n in range(20)
                for board in (one, other)
            )
        )

        assert await one.posted(WORKER) == {f"w{n}": str(n) for n in range(20)}


class LifetimeContract(BoardContract):
    """Of boards whose clock a test moves."""

    async def test_a_note_ends_with_its_lifetime(
        self, boards: tuple[Board, Board, Board], clock: ManualClock
    ) -> None:
        one, other, _ = boards
        await one.post(SITE, "a", "x", HOUR)
        await one.post(SITE, "b", "x", HOUR)
        await clock.advance(HOUR / 2)
        await other.post(SITE, "b", "y", HOUR)
        await clock.advance(HOUR / 2)

        assert await one.posted(SITE) == {"b": "y"}
        assert await one.posted(SITE) == {"b": "y"}


class TestMemoryBoard(LifetimeContract):
    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    @pytest.fixture
    def boards(self, clock: ManualClock) -> tuple[Board, Board, Board]:
        world = MemoryWorld(clock)
        one, other = (MemoryServers(world).views() for _ in range(2))
        names = QueueName("a", "one"), QueueName("a", "other")
        mine, yours = map(str, names)
        return one.view(mine).board, other.view(mine).board, one.view(yours).board


class TestDirectoryBoard(LifetimeContract):
    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    @pytest.fixture
    def boards(self, tmp_path: Path, clock: ManualClock) -> tuple[Board, Board, Board]:
        mine, yours = tmp_path / "one" / "board", tmp_path / "other" / "board"
        return tuple(DirectoryBoard(each, clock) for each in (mine, mine, yours))  # type: ignore[return-value]

    async def test_files_that_are_no_notes_are_passed_over(
        self, boards: tuple[Board, Board, Board], tmp_path: Path
    ) -> None:
        one, _, _ = boards
        await one.post(SITE, "a", "x", HOUR)
        folder = tmp_path / "one" / "board" / SITE.value
        (folder / "half.json").write_text('{"name": "b", "te')
        (folder / "list.json").write_text("[]")
        (folder / "odd.json").write_text('{"name": "c", "until": "soon"}')
        (folder / "d.new").write_text('{"name": "d", "text": "x", "until": 9e9}')

        assert await one.posted(SITE) == {"a": "x"}
        (file,) = (each for each in folder.iterdir() if len(each.name) == 45)
        assert file.stat().st_mode & 0o077 == 0


@pytest.mark.needs("cassandra")
class TestCassandraBoard(BoardContract):
    @pytest.fixture
    async def boards(self, keyspace: str) -> AsyncIterator[tuple[Board, Board, Board]]:
        sessions = [Session(servers.cassandra(keyspace)) for _ in range(2)]
        one, other = map(CassandraViewStore, sessions)
        name = f"board.{uuid4().hex}"
        yield one.view(name).board, other.view(name).board, one.view(f"{name}-2").board
        for each in sessions:
            await each.close()

    async def test_a_note_is_written_with_its_lifetime(
        self, boards: tuple[Board, Board, Board], keyspace: str
    ) -> None:
        await boards[0].post(SITE, "a", "x", HOUR)
        session = Session(servers.cassandra(keyspace))
        rows = await session.run("SELECT TTL(note) AS left FROM {keyspace}.board")
        await session.close()

        lefts = [row["left"] for row in rows]
        assert lefts
        assert all(0 < left <= HOUR.total_seconds() for left in lefts)
