"""The suppression lists of a queue in a directory: one SQLite file, for all processes that may
write there. A list of a million addresses is looked up in without being read.

Every change is synced before it returns: `synchronous = EXTRA` also syncs the directory when the
journal is deleted, without which a power cut may undo a change (sqlite.org/pragma.html).
The file is opened for each change; one connection is kept to look, which costs a fifth of opening
it, and finds a file that was put in its place.
Source: ADR 0068."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from functools import partial
from operator import attrgetter
from pathlib import Path
from threading import Lock
from typing import TypeVar

from postroad.adapters.disk.files import PRIVATE_FILE, DiskFiles, Translated
from postroad.domain.delivery.suppressed import SuppressedAddress, SuppressedBy, strongest
from postroad.errors import StoreDamaged, StoreFailed, StoreFull

T = TypeVar("T")

BUSY_SECONDS = 30
"""Time that another process's change is waited for."""

FOUND_AT_ONCE = 500
"""Tokens of one question: SQLite binds 999 values at least."""

PAGE = 1000
"""Entries in memory."""

CHANGED_KIB = 128 * 1024
"""Pages of the file that a change keeps in memory, at most; it takes no more than it changes. From
the first one that finds no place there until the change is committed, nothing can be looked up."""

_TABLE = """
    CREATE TABLE IF NOT EXISTS suppressed (
        tenant TEXT NOT NULL, token BLOB NOT NULL, address TEXT, reason TEXT NOT NULL,
        by TEXT NOT NULL, added_at TEXT NOT NULL, count INTEGER NOT NULL, pending INTEGER NOT NULL,
        expires_at TEXT, PRIMARY KEY (tenant, token, by)
    ) WITHOUT ROWID
"""
_EXPIRING = """
    CREATE INDEX IF NOT EXISTS expiring ON suppressed (expires_at) WHERE expires_at IS NOT NULL
"""
_EXPIRE = "DELETE FROM suppressed WHERE expires_at <= ?"
_COLUMNS = "token, address, reason, by, added_at, count, pending, expires_at"
_ADD = (
    f"INSERT OR REPLACE INTO suppressed (tenant, {_COLUMNS})"  # noqa: S608
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


_LAST_WORD = "\U0010ffff"
"""Behind every value of `by`."""


class FileSuppressionList:
    """The lists of one queue (see the port), in a file that the first address makes."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = Lock()
        self._kept: tuple[tuple[int, int], sqlite3.Connection] | None = None
        """The device and the inode of the file, with the connection to look in it."""

    async def add(self, tenant: str, entries: Sequence[SuppressedAddress]) -> None:
        if not entries:
            return
        # In the order of the file: each page of it is changed once.
        rows = ((tenant, *_row(each)) for each in sorted(entries, key=attrgetter("token")))
        now = min(each.added_at for each in entries).isoformat()

        def step(open_file: sqlite3.Connection) -> None:
            open_file.execute(_EXPIRE, (now,))
            open_file.executemany(_ADD, rows)

        await self._run(step, create=True)

    async def remove(self, tenant: str, tokens: Collection[bytes]) -> None:
        rows = [(tenant, token) for token in tokens]
        statement = "DELETE FROM suppressed WHERE tenant = ? AND token = ?"
        await self._run(lambda open_file: open_file.executemany(statement, rows))

    async def find(
        self, tenant: str, tokens: Collection[bytes]
    ) -> Mapping[bytes, SuppressedAddress]:
        wanted, found = list(tokens), list[SuppressedAddress]()
        for at in range(0, len(wanted), FOUND_AT_ONCE):
            some = wanted[at : at + FOUND_AT_ONCE]
            among = ",".join("?" * len(some))
            found += await self._read(f"tenant = ? AND token IN ({among})", tenant, *some)
        return strongest(found)

    async def entries(self, tenant: str, after: bytes = b"") -> AsyncIterator[SuppressedAddress]:
        last = after, _LAST_WORD
        while page := await self._read(
            f"tenant = ? AND (token, by) > (?, ?) ORDER BY token, by LIMIT {PAGE}", tenant, *last
        ):
            for each in page:
                yield each
            last = page[-1].token, page[-1].by

    async def _read(self, condition: str, *values: object) -> list[SuppressedAddress]:
        query = f"SELECT {_COLUMNS} FROM suppressed WHERE {condition}"  # noqa: S608  # our own text
        return await asyncio.to_thread(self._read_here, query, values)

    def _read_here(self, query: str, values: Sequence[object]) -> list[SuppressedAddress]:
        with self._lock, _errors_of(self._file):
            looking = self._connection()
            return (
                []
                if looking is None
                else [_entry(*each) for each in looking.execute(query, values)]
            )

    def _connection(self) -> sqlite3.Connection | None:
        """Return the connection that is kept; None where there is no file."""
        try:
            with Translated("read", self._file):
                found = self._file.stat()
        except FileNotFoundError:
            identity = None
        else:
            identity = (found.st_dev, found.st_ino) if found.st_size else None
        if self._kept is not None and self._kept[0] != identity:
            self._kept[1].close()
            self._kept = None
        if identity is None:
            return None
        if self._kept is None:
            opened = sqlite3.connect(self._file, timeout=BUSY_SECONDS, check_same_thread=False)
            self._kept = (identity, opened)
        return self._kept[1]

    async def _run(
        self, step: Callable[[sqlite3.Connection], T], *, create: bool = False
    ) -> T | None:
        """Do a step in a transaction; return None where there is no file."""
        return await asyncio.to_thread(partial(self._run_here, step, create=create))

    def _run_here(self, step: Callable[[sqlite3.Connection], T], *, create: bool) -> T | None:
        is_there = self._file.exists() and self._file.stat().st_size > 0
        if not (is_there or create):
            return None
        if not is_there:
            try:
                with Translated("create", self._file):
                    self._file.touch(PRIVATE_FILE)
            except FileNotFoundError as error:
                raise StoreFailed(f"there is no folder {self._file.parent}") from error
        with (
            _errors_of(self._file),
            closing(sqlite3.connect(self._file, timeout=BUSY_SECONDS)) as open_file,
            open_file,
        ):
            open_file.execute("PRAGMA synchronous = EXTRA")
            open_file.execute(f"PRAGMA cache_size = -{CHANGED_KIB}")
            if create:
                open_file.execute(_TABLE)
                open_file.execute(_EXPIRING)
            found = step(open_file)
        if not is_there:
            DiskFiles().sync_directory(self._file.parent)
        return found


@contextmanager
def _errors_of(file: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.DatabaseError, ValueError) as error:
        code = getattr(error, "sqlite_errorcode", None)
        if code == sqlite3.SQLITE_FULL:
            raise StoreFull(f"there is no room left to write {file}") from error
        if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT) or code is None:
            raise StoreDamaged(
                f"the suppression lists in {file} cannot be read: {error}",
                hint="put a copy in its place, or move it away and import an exported list",
            ) from error
        raise StoreFailed(f"the suppression lists in {file} cannot be used: {error}") from error


def _row(entry: SuppressedAddress) -> tuple[object, ...]:
    until = None if entry.expires_at is None else entry.expires_at.isoformat()
    at = entry.added_at.isoformat()
    return (entry.token, entry.address, entry.reason, entry.by, at, entry.count, entry.is_pending,
            until)  # fmt: skip


def _entry(
    token: bytes, address: str | None, reason: str, by: str, at: str, count: int, pending: int,
    expires_at: str | None,
) -> SuppressedAddress:  # fmt: skip
    when = datetime.fromisoformat(at).astimezone(UTC)
    until = None if expires_at is None else datetime.fromisoformat(expires_at).astimezone(UTC)
    known = SuppressedBy.known(by)
    return SuppressedAddress(
        bytes(token), address, reason, known, when, count, bool(pending), until
    )
