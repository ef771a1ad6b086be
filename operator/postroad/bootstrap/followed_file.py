"""A file with the files that it names, read again while the process runs.

The kubelet swaps the files of a mounted ConfigMap or Secret by a symlink, as an administrator does
who wants both ends of a change at once."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Generic, TypeVar

from prometheus_client import Counter, Gauge

from postroad.domain.delivery.webhooks import read_secrets
from postroad.domain.mail.return_paths import ReturnPaths, plain_path
from postroad.errors import InvalidInput, InvalidSettings
from postroad.file_stamps import FileStamp, stamp_of
from postroad.ports.clock import Clock
from postroad.smtp.client.opening import PathOf
from postroad.telemetry.logs import logger

FileContent = TypeVar("FileContent")

LOOK_INTERVAL = timedelta(seconds=10)
"""Between two looks at the files, which cost a system call each."""


class FollowedFile(ABC, Generic[FileContent]):
    """A file. `current`: what was read last and could be used. Later errors are logged once for
    each change of the files, and counted. Raises: InvalidSettings where it, or a file that it
    names, cannot be used at the start."""

    def __init__(self, file: Path, what: str, refused: Gauge, reads: Counter) -> None:
        self.file = file
        self._what, self._log = what, logger(what)
        self._refused, self._reads = refused, reads
        self._watched: dict[Path, FileStamp] = {}
        self._seen: dict[Path, FileStamp] = {}
        """Changes that the last look has seen."""

        self.current = self._read()
        refused.set(0)

    async def follow(self, use: Callable[[FileContent], None], asked: asyncio.Event) -> None:
        """Look at the files again and again, until cancelled; at once when `asked` is set. `use`
        takes up what they have now; it raises InvalidSettings where the process cannot, and what it
        had stays then."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_INTERVAL.total_seconds()):
                    await asked.wait()
            at_once = asked.is_set()
            asked.clear()
            await self.look(use, at_once=at_once)

    async def look(self, use: Callable[[FileContent], None], *, at_once: bool = True) -> None:
        """Read the files again where one has changed; unless `at_once`, where two looks have seen
        the same change, since a file may be half written. They are read in a thread, since a long
        one would block all else."""
        try:
            changes = await asyncio.to_thread(self._changes)
            is_settled, self._seen = at_once or changes == self._seen, changes
            if changes and is_settled:
                self._take(await asyncio.to_thread(self._read), use)
        except InvalidSettings as error:
            self._refuse(error.explain())
        except Exception as error:  # else no later change would be seen
            self._log.exception(f"unexpected error in the {self._what} file")
            self._refuse(type(error).__name__)

    @abstractmethod
    def _read(self) -> FileContent:
        """Read all files, each after a call of `_watch` with its path. Raises: InvalidSettings."""

    def _watch(self, files: Iterable[Path], *, anew: bool = False) -> dict[Path, FileStamp]:
        """Watch files from now on, before they are read, so that no change meanwhile stays unseen;
        return the stamps of all. `anew`: the file itself and these alone."""
        if anew:
            self._watched = {self.file: self._watched[self.file]}
        self._watched |= {each: stamp_of(each) for each in files}
        return self._watched

    def _take(self, found: FileContent, use: Callable[[FileContent], None]) -> None:
        use(found)
        self.current = found
        self._refused.set(0)
        self._reads.labels("used").inc()
        self._log.info(f"{self._what} read again", file=str(self.file))

    def _refuse(self, problem: str) -> None:
        self._refused.set(1)
        self._reads.labels("refused").inc()
        self._log.error(f"{self._what} not changed, what was read before stays", error=problem)

    def _changes(self) -> dict[Path, FileStamp]:
        found = {path: stamp_of(path) for path in self._watched}
        return {path: stamp for path, stamp in found.items() if stamp != self._watched[path]}


def read_return_paths(file: Path) -> ReturnPaths:
    """Read the secrets of reverse-paths. Raises: InvalidSettings, which quotes nothing of them."""
    try:
        return ReturnPaths(read_secrets(file.read_text()))
    except (OSError, UnicodeDecodeError) as error:
        name = type(error).__name__
        raise InvalidSettings(f"the verpSecret {file} cannot be read: {name}") from None
    except InvalidInput as error:
        raise InvalidSettings(f"the verpSecret {file}: {error}") from error


def path_of(paths: Callable[[], ReturnPaths | None], clock: Clock) -> PathOf:
    """Return what makes the reverse-paths of a worker, whose secrets may change meanwhile; without
    any it names recipients and signs nothing."""

    def made(sender: str, recipient: str, tenant: str | None) -> str | None:
        signed = paths()
        if signed is None:
            return plain_path(sender, recipient, tenant)
        return signed.path(sender, recipient, tenant, clock.now().date())

    return made
