"""The SQLite file in which events wait: locked, damaged, and put aside by another process."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import aclosing, closing, contextmanager
from pathlib import Path
from uuid import UUID

import pytest

from postroad.adapters.disk import event_spool
from postroad.adapters.disk.event_spool import FileEventSpool
from postroad.domain.delivery.events import StreamEvent
from postroad.errors import StoreFailed


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "events.sqlite"


def events(*numbers: int) -> list[StreamEvent]:
    return [("crm", UUID(int=each + 1), b"%d" % each) for each in numbers]


async def sent(spool: FileEventSpool, count: int) -> list[bytes]:
    found: list[bytes] = []
    async with asyncio.timeout(60), aclosing(spool.batches("crm")) as batches:
        while len(found) < count:
            batch = await anext(batches)
            found += [each.body for each in batch]
            for each in batch:
                await each.done()
    return found


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Hold a file as another process does that writes it."""
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield


def with_another_schema(file: Path) -> None:
    with closing(sqlite3.connect(file)) as other:
        other.executescript("DROP TABLE IF EXISTS events; CREATE TABLE events (other TEXT)")


def moved(file: Path) -> None:
    for end in ("", "-wal", "-shm"):
        Path(f"{file}{end}").replace(f"{file}.moved{end}")


async def test_a_first_use_that_fails_is_made_up_for(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_spool, "BUSY_SECONDS", 0)
    spool = FileEventSpool(file)
    with locked(file), pytest.raises(StoreFailed, match="locked"):
        await spool.append(events(0))

    await spool.append(events(1))

    assert await sent(spool, 1) == [b"1"]


async def test_a_locked_file_takes_no_thread_of_others(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_spool, "BUSY_SECONDS", 600)
    spool = FileEventSpool(file)
    await spool.append(events(0))

    with locked(file):
        waiting = [asyncio.create_task(spool.append(events(each))) for each in range(1, 40)]
        await asyncio.sleep(0)
        async with asyncio.timeout(60):
            assert await asyncio.to_thread(lambda: "free") == "free"
    await asyncio.gather(*waiting)

    assert await sent(spool, 40) == [b"%d" % each for each in range(40)]


async def test_a_locked_file_does_not_stop_the_loop_where_a_stream_is_closed(file: Path) -> None:
    spool = FileEventSpool(file)
    await spool.append(events(0, 1))
    batches = spool.batches("crm")
    await (await anext(batches))[0].done()

    with locked(file):
        closing_it = asyncio.create_task(batches.aclose())
        await asyncio.sleep(0)  # the test goes on, and so the lock is released
    await closing_it

    assert await sent(spool, 1) == [b"1"]


async def test_a_stream_is_closed_although_the_file_stays_locked(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_spool, "MAX_LAST_CHANGE", 0.05)
    spool = FileEventSpool(file)
    await spool.append(events(0))
    batches = spool.batches("crm")
    await (await anext(batches))[0].done()

    with locked(file):
        async with asyncio.timeout(20):
            await batches.aclose()


async def test_damage_that_sqlite_describes_further_is_put_aside(file: Path) -> None:
    spool = FileEventSpool(file)
    await spool.append(events(0))
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("PRAGMA writable_schema = ON")
        name = "name = 'by_stream'"
        other.execute("CREATE TEMP TABLE kept AS SELECT * FROM sqlite_master WHERE " + name)
        other.execute("DELETE FROM sqlite_master WHERE " + name)
        other.execute("PRAGMA writable_schema = RESET")
        other.execute("UPDATE events SET stream = 'bus'")  # the index has crm
        other.execute("PRAGMA writable_schema = ON")
        other.execute("INSERT INTO sqlite_master SELECT * FROM kept")
    reopened = FileEventSpool(file)

    assert await sent(reopened, 1) == [b"0"]  # to remove it is SQLITE_CORRUPT_INDEX
    await reopened.append(events(1))

    assert await sent(reopened, 1) == [b"1"]
    assert Path(f"{file}.damaged").exists()


@pytest.mark.parametrize(
    "schema",
    [
        "CREATE TABLE events (other TEXT)",
        "CREATE TABLE events (number INTEGER, stream TEXT, body BLOB, more TEXT NOT NULL)",
        "CREATE VIEW events AS SELECT 1 AS stream, 2 AS number",
    ],
)
async def test_another_schema_is_put_aside(file: Path, schema: str) -> None:
    with closing(sqlite3.connect(file)) as other:
        other.execute(schema)
    spool = FileEventSpool(file)
    await spool.append(events(0))

    assert await sent(spool, 1) == [b"0"]
    assert Path(f"{file}.damaged").exists()


async def test_processes_that_meet_one_damage_put_it_aside_once(file: Path) -> None:
    first, second = FileEventSpool(file), FileEventSpool(file)
    await first.append(events(0))
    await second.append(events(1))
    with_another_schema(file)

    await first.append(events(2))
    await second.append(events(3))

    assert await sent(FileEventSpool(file), 2) == [b"2", b"3"]
    assert not Path(f"{file}.damaged.1").exists()


async def test_each_file_that_is_put_aside_stays(file: Path) -> None:
    spool = FileEventSpool(file)
    for each in range(3):
        await spool.append(events(each))
        with_another_schema(file)
    await spool.append(events(3))

    ends = sorted(each.name for each in file.parent.glob("events.sqlite.damaged*"))
    assert {"damaged", "damaged.1", "damaged.2"} <= {each.partition("ite.")[2] for each in ends}


async def test_what_follows_a_file_that_was_put_aside_goes_to_the_new_one(file: Path) -> None:
    spool = FileEventSpool(file)
    await spool.append(events(0))
    moved(file)

    await spool.append(events(1))

    assert await sent(FileEventSpool(file), 1) == [b"1"]


async def test_events_of_a_new_file_are_not_removed_for_those_of_the_old_one(file: Path) -> None:
    spool = FileEventSpool(file)
    await spool.append(events(0))
    async with aclosing(spool.batches("crm")) as batches:
        await (await anext(batches))[0].done()
        moved(file)
        await FileEventSpool(file).append(events(1))

    assert await sent(spool, 1) == [b"1"]
