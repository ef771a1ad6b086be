"""A store in a directory whose history is kept, without opening it: its archive, and the lock of
its lake's directory."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from postroad.adapters.disk.files import DiskFiles
from postroad.bootstrap.embedded_store import root_of
from postroad.bootstrap.open_request import check_parts
from postroad.embedded.archive import Archived, read_archive
from postroad.embedded.opening import describe
from postroad.embedded.options import StoreOptions
from postroad.errors import ArchiveUnderWay, InvalidQueueURL
from postroad.ports.clock import Clock
from postroad.ports.files import Lock

LOCK = "lock"
"""The file of a lake's directory that one writer locks at a time."""

TRIED_AGAIN = timedelta(seconds=1)
"""How often a run that waits for another one tries to lock."""


def is_in_a_directory(url: str) -> bool:
    """Whether a URL names a queue in a directory. Raises: InvalidQueueURL."""
    try:
        return urlsplit(url).scheme == "embedded"
    except ValueError as error:
        raise InvalidQueueURL(f"{url!r} is no URL: {error}") from error


def begin_archive(url: str) -> tuple[Path, Archived]:
    """Return the directory of a store's archive, and what it holds; make it where the store is not
    archived yet, for the user whose processes own the store. Raises: InvalidQueueURL,
    QueueNotFound, StoreDamaged, StoreFailed."""
    parts = urlsplit(url)
    check_parts(parts)
    root, files = root_of(parts), DiskFiles()
    layout, _ = describe(files, root, StoreOptions(), create=False)
    folder = Path(layout.archive)
    found = read_archive(files, layout)
    if found is None:
        files.make_directory(folder)
        store = root.stat()
        if os.geteuid() == 0:
            os.chown(folder, store.st_uid, store.st_gid)
        folder.chmod(store.st_mode & 0o7777)
        files.sync_directory(root)
        found = Archived((), ())
    return folder, found


def name_of(url: str) -> str:
    """Return what a queue in a directory is called in answers. Raises: InvalidQueueURL."""
    return str(root_of(urlsplit(url)))


class LakeLock:
    """The lock of a lake's directory, while a run writes the lake. It ends with the process.
    `patience`: how long it waits for a run that is under way. Raises on entry: ArchiveUnderWay,
    StoreFailed."""

    def __init__(self, folder: Path, clock: Clock, patience: timedelta) -> None:
        self._folder, self._clock, self._patience = folder, clock, patience
        self._lock: Lock | None = None

    async def __aenter__(self) -> Self:
        files, patient_until = DiskFiles(), self._clock.elapsed() + self._patience
        files.make_directory(self._folder)
        while (lock := files.lock(self._folder / LOCK)) is None:
            if self._clock.elapsed() >= patient_until:
                raise ArchiveUnderWay(f"another run writes the lake in {self._folder}")
            await self._clock.sleep(TRIED_AGAIN)
        self._lock = lock
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self._lock is not None:
            self._lock.release()

    async def renew(self) -> None:
        """Nothing: a lock does not lapse."""
