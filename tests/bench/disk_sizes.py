"""The bytes of two keyspaces' aging tables in the local stack's Cassandra."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from postroad.adapters.cassandra.schema import AGING_TABLES
from stack import places

TOLD_EVERY = 30.0


def server() -> Path:
    """Return the folder of the stack's Cassandra."""
    return places.state_directory() / "cassandra"


@dataclass
class Files:
    """What one keyspace's files came to, looked at again and again."""

    keyspace: str
    now: int = 0
    most: int = 0
    _seen: dict[Path, int] = field(default_factory=dict)

    @property
    def written(self) -> int:
        """All files that ever were, compacted ones beside what they were compacted to."""
        return sum(self._seen.values())

    def look(self) -> None:
        sizes = dict(self._sizes())
        self._seen.update(sizes)
        self.now = sum(sizes.values())
        self.most = max(self.most, self.now)

    def _sizes(self) -> Iterator[tuple[Path, int]]:
        """Those that vanish meanwhile count as gone."""
        for table in AGING_TABLES:
            for path in (server() / "data" / self.keyspace).glob(f"{table}-*/*"):
                try:
                    if path.is_file():
                        yield path, path.stat().st_size
                except FileNotFoundError:
                    continue


class Sizes:
    """Both keyspaces."""

    def __init__(self, ours: str, theirs: str) -> None:
        self.ours, self.theirs = Files(ours), Files(theirs)
        self._told = float("-inf")

    async def look(self) -> None:
        for each in (self.ours, self.theirs):
            await asyncio.to_thread(each.look)
        if time.monotonic() - self._told >= TOLD_EVERY:
            self._told = time.monotonic()
            print(f"disk: ours {self.ours.now:,}, theirs {self.theirs.now:,} bytes", flush=True)


class Log:
    """What Cassandra's log says from now on."""

    def __init__(self) -> None:
        self._path = server() / "log" / "system.log"
        self._began = self._path.stat().st_size

    def warnings(self, word: str) -> int:
        """Return how many warnings hold a word."""
        with self._path.open() as lines:
            lines.seek(self._began)
            return sum(word in line and line.startswith("WARN") for line in lines)
