"""Files beside the tables of a lake in a directory: of which time the lake has what the store
recorded, and what was read of the store. No table has them, so that a run without anything new
commits nothing, and needs no Spark."""

import hashlib
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from postroad.adapters.disk.files import DiskFiles
from postroad.domain.values.instants import instant, microseconds

TIMES, READ = "times", "read"

KEPT_STATES = timedelta(days=1)
"""Time for which a former state of the lake can be read: as a job may take that began before. As
often at least, a run expires older ones."""


class KnownTimes(NamedTuple):
    """Times between which the recorded history is in the lake, but for its gaps."""

    begun: datetime
    through: datetime


class LastRead(NamedTuple):
    """Digest of the offsets up to which a run had read segments, and the moment at which the
    run began, which expired former states."""

    digest: str
    began: datetime


def digest_of(ends: Mapping[str, int]) -> str:
    """Return a digest of up to which offset segments were read, by their salts."""
    text = ",".join(f"{salt}:{end}" for salt, end in sorted(ends.items()))
    return hashlib.sha256(text.encode()).hexdigest()


class LakeFiles:
    """The files of a directory. `namespace`: that of the tables, where a catalog names them: the
    files of another one's say nothing of these."""

    def __init__(self, folder: Path, namespace: str | None = None) -> None:
        self._folder = folder
        self._end = "" if namespace is None else f".{namespace}"

    def times(self) -> KnownTimes | None:
        """Return of which time the lake has what the store recorded; None: of none."""
        if (text := self._text(TIMES)) is None:
            return None
        return KnownTimes(*(instant(int(each)) for each in text.split()))

    def put_times(self, times: KnownTimes) -> None:
        self._put(TIMES, " ".join(str(microseconds(each)) for each in times))

    def last_read(self) -> LastRead | None:
        """Return what the last whole run had read; None: nothing is known."""
        if (text := self._text(READ)) is None:
            return None
        digest, began = text.split()
        return LastRead(digest, instant(int(began)))

    def put_last_read(self, read: LastRead) -> None:
        self._put(READ, f"{read.digest} {microseconds(read.began)}")

    def forget(self) -> None:
        """Delete what is known of former tables."""
        for name in (TIMES, READ):
            DiskFiles().unlink(self._folder / f"{name}{self._end}")

    def _text(self, name: str) -> str | None:
        try:
            return (self._folder / f"{name}{self._end}").read_text()
        except FileNotFoundError:
            return None

    def _put(self, name: str, text: str) -> None:
        files, place = DiskFiles(), self._folder / f"{name}{self._end}"
        draft = self._folder / f"{place.name}.new"
        files.unlink(draft)
        file = files.open(draft, create=True)
        file.pwrite(0, text.encode())
        file.sync()
        file.close()
        draft.chmod(0o644)  # who may read the lake may read this
        files.rename(draft, place)
        files.sync_directory(self._folder)
