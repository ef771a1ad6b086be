"""Events that wait in an SQLite file, for all processes of a store.

A change is synced before it returns. A file that is damaged is put aside, and a new one begun: mail
must not wait for events. Beside it, a sink of events: a file of JSON lines. Source: ADR 0089."""

import asyncio
import fcntl
import os
import sqlite3
import stat
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from postroad.adapters.disk.files import PRIVATE_FILE, DiskFiles, ThreadPool, Translated
from postroad.domain.delivery.events import StreamEvent
from postroad.errors import InvalidSettings, PostroadError, StoreFailed, StoreFull
from postroad.ports.events import (
    MAX_BATCH,
    EventSink,
    SinkReply,
    SinkVerdict,
    WaitingEvent,
)
from postroad.telemetry.logs import logger

T = TypeVar("T")

BUSY_SECONDS = 30
"""Time that another process's change is waited for."""

LOOK_SECONDS = 1.0
"""Between two looks for events of other processes."""

MAX_LAST_CHANGE = 5.0
"""Seconds, when the events of a stream are no longer asked for: what is not removed comes again."""

_TABLE = """
    CREATE TABLE IF NOT EXISTS events (
        number INTEGER PRIMARY KEY AUTOINCREMENT, stream TEXT NOT NULL, body BLOB NOT NULL
    )
"""
_BY_STREAM = "CREATE INDEX IF NOT EXISTS by_stream ON events (stream, number)"
_OLDEST = "SELECT number, body FROM events WHERE stream = ? ORDER BY number LIMIT ?"
_BEYOND = "SELECT 1 FROM events WHERE stream = ? LIMIT 1 OFFSET ?"
_ADD = "INSERT INTO events (stream, body) VALUES (?, ?)"
_REMOVE = "DELETE FROM events WHERE number = ? AND body = ?"
"""A file that another process began anew has the same numbers for other events."""

_DAMAGED = (
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_ERROR,  # of statements that never change: the schema is another one
    sqlite3.SQLITE_CONSTRAINT,
)

_log = logger("events")


class FileEventSpool:
    """`ports.events.EventSpool` over a file, which the first event makes. Its thread is its own:
    other processes may hold it up."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._thread = ThreadPool(1, "events")
        self._opened: sqlite3.Connection | None = None
        self._opened_place: tuple[int, int] | None = None
        self._appended = asyncio.Event()

    async def append(self, events: Sequence[StreamEvent]) -> None:
        rows = [(stream, body) for stream, _, body in events]
        await self._thread.run(self._change, _ADD, rows)
        self._appended.set()

    async def batches(self, stream: str) -> AsyncGenerator[Sequence[WaitingEvent], None]:
        place = self._file.with_name(f"{self._file.name}.{stream}.lock")
        while (lock := DiskFiles().lock(place)) is None:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_SECONDS)
        try:
            while True:
                self._appended.clear()
                rows = await self._thread.run(self._read, _OLDEST, stream, MAX_BATCH)
                if not rows:
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._appended.wait(), LOOK_SECONDS)
                    continue
                done: list[tuple[int, bytes]] = []
                try:
                    yield [WaitingEvent(body, partial(_end, done, at, body)) for at, body in rows]
                except BaseException:
                    last = self._thread.run(self._change, _REMOVE, done)
                    with suppress(TimeoutError, PostroadError):
                        await asyncio.wait_for(last, MAX_LAST_CHANGE)
                    raise
                await self._thread.run(self._change, _REMOVE, done)
        finally:
            lock.release()

    def exchange(self, name: str) -> EventSink:
        raise InvalidSettings(
            "a queue in a directory has no RabbitMQ", hint="give webhook or file in place of amqp"
        )

    async def is_beyond(self, stream: str, most: int) -> bool:
        return bool(await self._thread.run(self._read, _BEYOND, stream, most))

    def _change(self, statement: str, rows: Sequence[Sequence[object]]) -> None:
        def step(opened: sqlite3.Connection) -> None:
            opened.executemany(statement, rows).close()  # else another thread would, amid a step

        self._run(step)

    def _read(self, statement: str, *values: object) -> list[Any]:
        return self._run(lambda opened: opened.execute(statement, values).fetchall())

    def _run(self, step: Callable[[sqlite3.Connection], T]) -> T:
        try:
            try:
                return self._step(step)
            except sqlite3.DatabaseError as error:
                if _code_of(error) not in _DAMAGED:
                    raise
                self._put_aside(error)
                return self._step(step)
        except sqlite3.DatabaseError as error:
            if _code_of(error) == sqlite3.SQLITE_FULL:
                raise StoreFull(f"there is no room left to write {self._file}") from error
            raise StoreFailed(f"events in {self._file} cannot be kept: {error}") from error

    def _step(self, step: Callable[[sqlite3.Connection], T]) -> T:
        while True:
            opened = self._opened or self._open()
            with opened:
                result = step(opened)
            if self._place() == self._opened_place:
                return result
            self._close()  # another process has put it aside, so that no one would send from there

    def _place(self) -> tuple[int, int] | None:
        """Return which file has the name now, None without one."""
        with suppress(FileNotFoundError), Translated("stat", self._file):
            found = self._file.stat()
            return found.st_dev, found.st_ino
        return None

    def _open(self) -> sqlite3.Connection:
        with self._alone():
            with Translated("create", self._file):
                self._file.touch(PRIVATE_FILE)
            self._opened_place = self._place()
            opened = sqlite3.connect(self._file, timeout=BUSY_SECONDS, check_same_thread=False)
            try:
                opened.execute("PRAGMA journal_mode = WAL")
                opened.execute("PRAGMA synchronous = FULL")
                with opened:
                    opened.execute(_TABLE)
                    opened.execute(_BY_STREAM)
                DiskFiles().sync_directory(self._file.parent)
            except BaseException:
                opened.close()
                raise
            self._opened = opened
            return opened

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other processes from opening the file, and from putting it aside."""
        name = Path(f"{self._file}.lock")
        with Translated("lock", name):
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            lock = os.open(name, flags, PRIVATE_FILE)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _close(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def _put_aside(self, error: sqlite3.DatabaseError) -> None:
        self._close()
        with self._alone():
            if self._place() != self._opened_place:
                return  # another process was first, and this is its new one
            names = (f"{self._file}.damaged{'.' * bool(at)}{at or ''}" for at in count())
            aside = next(each for each in names if not Path(each).exists())
            _log.error("events were damaged, and are put aside", file=aside, error=str(error))
            for end in ("-wal", "-shm", ""):  # last: a new one must not meet an old log
                with suppress(FileNotFoundError):
                    Path(f"{self._file}{end}").replace(f"{aside}{end}")


def _code_of(error: sqlite3.DatabaseError) -> int:
    """Return the primary code: of each, SQLite has extended ones in the octets above."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


async def _end(done: list[tuple[int, bytes]], number: int, body: bytes) -> None:
    done.append((number, body))


MAX_EVENT_FILE = 64 * 2**20

MAX_WRITE_SECONDS, MAX_CLOSE_SECONDS = 15.0, 1.0
"""Until the sink answers for a write that hangs, and until it leaves the thread of one."""

_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class EventFile:
    """`ports.events.EventSink`: a file of JSON lines. Nothing is synced: a power cut may take the
    last lines. Its thread is its own, so that a file system which hangs holds up nothing else."""

    def __init__(self, path: Path, largest: int = MAX_EVENT_FILE) -> None:
        self._path, self._largest = path, largest
        self._thread = ThreadPool(1, "event file")
        self._alone = asyncio.Lock()
        self._writing: asyncio.Future[SinkReply] | None = None

    async def send(self, event_id: str, body: bytes) -> SinkReply:
        async with self._alone:
            if self._writing is not None and not self._writing.done():
                return SinkReply(SinkVerdict.LATER, "an earlier write to the file hangs")
            self._writing = self._thread.run(self._append, body + b"\n")
            done, _ = await asyncio.wait({self._writing}, timeout=MAX_WRITE_SECONDS)
            if not done:
                return SinkReply(SinkVerdict.LATER, "a write to the file hangs")
            return self._writing.result()

    async def close(self) -> None:
        with suppress(TimeoutError):  # the thread is a daemon
            await asyncio.wait_for(self._thread.close(), MAX_CLOSE_SECONDS)

    def _append(self, line: bytes) -> SinkReply:
        try:
            self._write(line)
        except OSError as error:
            return SinkReply(SinkVerdict.LATER, f"the file cannot be written: {error.strerror}")
        return SinkReply(SinkVerdict.TAKEN)

    def _write(self, line: bytes) -> None:
        file = self._open()
        try:
            size = os.fstat(file).st_size
            if size + len(line) > self._largest:
                self._path.replace(f"{self._path}.1")
                begun = self._open()  # first: where that fails, the other is closed once, below
                os.close(file)
                file, size = begun, 0
            try:
                while line:
                    line = line[os.write(file, line) :]
            except OSError:
                os.ftruncate(file, size)  # else the next line would follow half of this one
                raise
        finally:
            os.close(file)

    def _open(self) -> int:
        file = os.open(self._path, _FLAGS, PRIVATE_FILE)
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise OSError(0, "it is no regular file")
        return file
