"""The bytes of two keyspaces' aging tables in the local stack's Cassandra."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from postroad.adapters.cassandra.schema import AGING_TABLES
from postroad.adapters.cassandra.session import Session
from stack import folders

TOLD_EVERY = 30.0


def server() -> Path:
    """Return the folder of the stack's Cassandra."""
    return folders.state_directory() / "cassandra"


@dataclass
class Files:
    """What one keyspace's files come to, looked at again and again."""

    keyspace: str
    now: int = 0
    most: int = 0

    def look(self) -> None:
        self.now = sum(self._sizes())
        self.most = max(self.most, self.now)

    def _sizes(self) -> Iterator[int]:
        """Those that vanish meanwhile count as gone."""
        for table in AGING_TABLES:
            for path in (server() / "data" / self.keyspace).glob(f"{table}-*/*"):
                try:
                    if path.is_file():
                        yield path.stat().st_size
                except FileNotFoundError:
                    continue


async def flushed(session: Session, files: Files) -> int:
    """Return the bytes that were written before any compaction, where compactions are all that
    took some away: files that are dropped whole are not counted in their history."""
    found = await session.run(
        "SELECT columnfamily_name, bytes_in, bytes_out FROM system.compaction_history"
        f" WHERE keyspace_name = '{files.keyspace}' ALLOW FILTERING"
    )
    saved: int = sum(
        row["bytes_in"] - row["bytes_out"]
        for row in found
        if row["columnfamily_name"] in AGING_TABLES
    )
    return files.now + saved


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
