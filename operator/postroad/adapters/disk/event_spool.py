"""Events that wait in an SQLite file, for all processes of a store.

A change is synced before it returns. A file that is damaged is put aside, and a new one begun: mail
must not wait for events. Source: ADR 0089."""

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from postroad.adapters.disk.files import PRIVATE_FILE, DiskFiles, Translated
from postroad.domain.delivery.events import StreamEvent
from postroad.errors import InvalidSettings, StoreFailed, StoreFull
from postroad.ports.events import (
    MAX_BATCH,
    MAX_WAITING,
    EventSink,
    WaitingEvent,
)
from postroad.telemetry.logs import logger

T = TypeVar("T")

BUSY_SECONDS = 30
"""Time that another process's change is waited for."""

LOOK_SECONDS = 1.0
"""Between two looks for events of other processes."""

_TABLE = """
    CREATE TABLE IF NOT EXISTS events (
        number INTEGER PRIMARY KEY AUTOINCREMENT, stream TEXT NOT NULL, body BLOB NOT NULL
    )
"""
_BY_STREAM = "CREATE INDEX IF NOT EXISTS by_stream ON events (stream, number)"
_OLDEST = "SELECT number, body FROM events WHERE stream = ? ORDER BY number LIMIT ?"
_BEYOND = "SELECT 1 FROM events WHERE stream = ? LIMIT 1 OFFSET ?"
_ADD = "INSERT INTO events (stream, body) VALUES (?, ?)"
_REMOVE = "DELETE FROM events WHERE number = ?"
_DAMAGED = (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT)

_log = logger("events")


class FileEventSpool:
    """`ports.events.EventSpool` over a file, which the first event makes."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = Lock()
        self._opened: sqlite3.Connection | None = None
        self._appended = asyncio.Event()

    async def append(self, events: Sequence[StreamEvent]) -> None:
        rows = [(stream, body) for stream, _, body in events]
        await asyncio.to_thread(self._change, _ADD, rows)
        self._appended.set()

    async def batches(self, stream: str) -> AsyncGenerator[Sequence[WaitingEvent], None]:
        place = self._file.with_name(f"{self._file.name}.{stream}.lock")
        while (lock := DiskFiles().lock(place)) is None:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_SECONDS)
        try:
            while True:
                self._appended.clear()
                rows = await asyncio.to_thread(self._read, _OLDEST, stream, MAX_BATCH)
                if not rows:
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._appended.wait(), LOOK_SECONDS)
                    continue
                done: list[tuple[int]] = []
                try:
                    yield [WaitingEvent(bytes(body), partial(_end, done, at)) for at, body in rows]
                except BaseException:
                    self._change(_REMOVE, done)  # here: what is closed cannot wait for a thread
                    raise
                await asyncio.to_thread(self._change, _REMOVE, done)
        finally:
            lock.release()

    def exchange(self, name: str) -> EventSink:
        raise InvalidSettings(
            "a queue in a directory has no RabbitMQ", hint="give webhook or file in place of amqp"
        )

    async def is_full(self, stream: str) -> bool:
        return bool(await asyncio.to_thread(self._read, _BEYOND, stream, MAX_WAITING))

    def _change(self, statement: str, rows: Sequence[Sequence[object]]) -> None:
        def step(opened: sqlite3.Connection) -> None:
            opened.executemany(statement, rows).close()  # else another thread would, amid a step

        self._run(step)

    def _read(self, statement: str, *values: object) -> list[Any]:
        return self._run(lambda opened: opened.execute(statement, values).fetchall())

    def _run(self, step: Callable[[sqlite3.Connection], T]) -> T:
        with self._lock:
            try:
                return self._step(step)
            except sqlite3.DatabaseError as error:
                code = getattr(error, "sqlite_errorcode", 0)
                if code == sqlite3.SQLITE_FULL:
                    raise StoreFull(f"there is no room left to write {self._file}") from error
                if code not in _DAMAGED:
                    raise StoreFailed(f"events in {self._file} cannot be kept: {error}") from error
                self._put_aside()
                return self._step(step)

    def _step(self, step: Callable[[sqlite3.Connection], T]) -> T:
        if self._opened is None:
            with Translated("create", self._file):
                self._file.touch(PRIVATE_FILE)
            self._opened = sqlite3.connect(
                self._file, timeout=BUSY_SECONDS, check_same_thread=False
            )
            self._opened.execute("PRAGMA journal_mode = WAL")
            self._opened.execute("PRAGMA synchronous = FULL")
            with self._opened:
                self._opened.execute(_TABLE)
                self._opened.execute(_BY_STREAM)
            DiskFiles().sync_directory(self._file.parent)
        with self._opened:
            return step(self._opened)

    def _put_aside(self) -> None:
        _log.error("events were damaged, and are put aside", file=str(self._file))
        if self._opened is not None:
            self._opened.close()
            self._opened = None
        for end in ("", "-wal", "-shm"):
            with suppress(FileNotFoundError):
                Path(f"{self._file}{end}").replace(f"{self._file}.damaged{end}")


async def _end(done: list[tuple[int]], number: int) -> None:
    done.append((number,))
