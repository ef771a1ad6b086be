"""The attempt log in a folder: lines of JSON, a new file each hour or 16 MiB, old files deleted.

Several processes may share the folder: each writes files of its own, and deletes those of all."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from postroad.adapters.disk.files import PRIVATE_DIRECTORY, PRIVATE_FILE
from postroad.domain.delivery.attempts import (
    Attempted,
    LoggedAttempt,
    from_document,
    logged,
    to_document,
)
from postroad.domain.mail.mail import Outcome
from postroad.errors import InvalidSettings
from postroad.telemetry.logs import logger
from postroad.telemetry.metrics import UNLOGGED_ATTEMPTS, of_queue

PREFIX, SUFFIX = "attempts-", ".jsonl"
MAX_FILE_AGE = timedelta(hours=1)
MAX_FILE = 16 * 1024 * 1024
_TIMESTAMP = "%Y%m%dT%H%M%S%f"

_log = logger("worker")


@dataclass(frozen=True, slots=True)
class LogLimits:
    """Bounds on what a folder keeps: lines of so long, and so many bytes in all; whether with
    addresses."""

    lifetime: timedelta
    most_bytes: int
    with_addresses: bool


class FileAttemptLog:
    """`ports.delivery.AttemptLog` over a folder. Raises: InvalidSettings, where the folder
    cannot be made or written to."""

    def __init__(self, folder: Path, limits: LogLimits, now: Callable[[], datetime]) -> None:
        self._folder = folder
        self._limits = limits
        self._now = now
        self._file: int | None = None
        self._began = self._now()
        self._size = 0
        self._is_failing = False
        try:
            folder.mkdir(mode=PRIVATE_DIRECTORY, parents=True, exist_ok=True)
            self._begin_file()
        except OSError as error:
            raise InvalidSettings(
                f"the attempt log cannot be written to {folder}: {error.strerror}",
                hint="set POSTROAD_WORKER_ATTEMPT_LOG to a folder that the worker may write to",
            ) from error

    def write(
        self, attempted: Attempted, outcomes: Mapping[str, Outcome], *, given_up: bool = False
    ) -> None:
        with_addresses = self._limits.with_addresses
        lines = logged(attempted, outcomes, with_addresses=with_addresses, given_up=given_up)
        data = "".join(f"{json.dumps(to_document(line))}\n" for line in lines).encode()
        try:
            self._append(data)
        except OSError as error:
            UNLOGGED_ATTEMPTS.labels(*of_queue(attempted.queue)).inc(len(outcomes))
            if not self._is_failing:
                _log.warning("attempt log not written", error=str(error.strerror))
            self._is_failing = True
        else:
            self._is_failing = False

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._close_file()

    def _append(self, data: bytes) -> None:
        is_old = not timedelta(0) <= self._now() - self._began < MAX_FILE_AGE
        if self._file is None or is_old or self._size >= MAX_FILE:
            self._begin_file()
        assert self._file is not None
        if self._is_failing:
            data = b"\n" + data  # else the half line that a full disk left takes this one with it
        while data:
            written = os.write(self._file, data)
            self._size += written
            data = data[written:]

    def _begin_file(self) -> None:
        self._close_file()
        self._began = self._now()
        name = f"{PREFIX}{self._began.strftime(_TIMESTAMP)}-{os.getpid()}{SUFFIX}"
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._file = os.open(self._folder / name, flags, PRIVATE_FILE)
        self._size = 0
        for path in outlived(self._folder, self._limits, self._began):
            path.unlink(missing_ok=True)

    def _close_file(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                os.close(self._file)
            self._file = None


def outlived(folder: Path, limits: LogLimits, now: datetime) -> list[Path]:
    """Return the files that are to be deleted: those whose last line is older than the lifetime,
    then the oldest ones while there is more than `most_bytes`. A file that another process may
    still write to is not among them. Raises: OSError."""
    closed: list[tuple[datetime, Path, int]] = []
    size = 0
    for path, began in _files(folder):
        with suppress(FileNotFoundError):  # another process deleted it
            length = path.stat().st_size
            size += length
            if now - began >= 2 * MAX_FILE_AGE:
                closed.append((began, path, length))
    going: list[Path] = []
    for began, path, length in closed:
        if now - began > limits.lifetime + MAX_FILE_AGE or size > limits.most_bytes:
            going.append(path)
            size -= length
    return going


def _files(folder: Path) -> list[tuple[Path, datetime]]:
    """Return the files of a log, the oldest first."""
    found: list[tuple[datetime, str, Path]] = []
    for path in folder.glob(f"{PREFIX}*{SUFFIX}"):
        with suppress(ValueError):
            written = path.name.removeprefix(PREFIX).partition("-")[0]
            began = datetime.strptime(written, _TIMESTAMP).replace(tzinfo=UTC)
            found.append((began, path.name, path))
    return [(path, began) for began, _, path in sorted(found)]


def read_attempts(folder: Path, since: datetime | None = None) -> Iterator[LoggedAttempt | None]:
    """Yield the lines of all files, the oldest file first; None for each that cannot be read, as
    the last one of a process whose machine lost power. Files that ended before `since` are not
    opened. Raises: OSError."""
    for path, began in _files(folder):
        if since is not None and began + 2 * MAX_FILE_AGE < since:
            continue
        with suppress(FileNotFoundError), path.open(encoding="utf-8", errors="replace") as lines:
            yield from map(_read_line, filter(str.strip, lines))


def _read_line(line: str) -> LoggedAttempt | None:
    try:
        return from_document(json.loads(line))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
