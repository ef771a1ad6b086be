"""One mail while it comes in: found its end, judged, and kept, in memory or in a file.

It is complete before it is enqueued, because an enqueue has a deadline and a client has its own
pace. It is read to its end whatever is wrong with it, so that no part of a refused mail is taken
for commands; what exceeds the limit is counted and dropped, never kept.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from typing import BinaryIO

from postroad.domain.replies import Reply
from postroad.domain.transparency import Unstuffer
from postroad.errors import StoreFull
from postroad.intake import answers
from postroad.intake.received import MOST_HOPS, HopCounter

MEMORY_BYTES = 256 * 1024
"""Octets of one mail kept in memory. Times the most sessions, it bounds what mails can take."""


class Incoming:
    """Collects content behind `first`, which does not count. `discard` it in any case."""

    def __init__(self, limit_bytes: int, first: bytes = b"", folder: Path | None = None) -> None:
        self.size_bytes = 0
        self.problem: StoreFull | None = None
        """Why it could not be kept."""

        self._limit = limit_bytes
        self._folder = folder
        self._chunks = [first]
        self._unstuffer, self._hops = Unstuffer(), HopCounter()
        self._path: Path | None = None
        self._file: BinaryIO | None = None

    @property
    def is_too_large(self) -> bool:
        """Whether the limit was exceeded; nothing is kept any more then."""
        return self.size_bytes > self._limit

    @property
    def must_spill(self) -> bool:
        """Whether it has outgrown memory: `spill` it before anything else is fed."""
        return bool(self._chunks) and self.size_bytes > MEMORY_BYTES

    def feed(self, chunk: bytes) -> bytes | None:
        """Take what arrived. Return what follows the mail's end once it has ended, else None."""
        content, rest = self._unstuffer.feed(chunk)
        self._hops.feed(content)
        self.size_bytes += len(content)
        if self.size_bytes > self._limit:
            self.discard()
        elif self.problem is None:
            self._chunks.append(content)
        return rest

    async def spill(self) -> None:
        """Write what is in memory to a file; a failure becomes the mail's `problem`."""
        chunks, self._chunks = self._chunks, []
        try:
            await asyncio.to_thread(self._write, b"".join(chunks))
        except OSError as error:
            self.problem = StoreFull("a large mail cannot be written to a file")
            self.problem.__cause__ = error

    def verdict(self) -> Reply | None:
        """Return the reply that refuses the mail, None when nothing is wrong with it."""
        if self.is_too_large:
            return answers.TOO_LARGE
        if self._unstuffer.has_bare_line_ends:
            return answers.BARE_LINE_ENDS
        if self._hops.hops >= MOST_HOPS:
            return answers.LOOP
        return answers.reply_for(self.problem) if self.problem else None

    async def content(self) -> bytes | Path:
        """Return all of it, as octets or as a file that lives until `discard`."""
        if self._file is None or self._path is None:
            return b"".join(self._chunks)
        await asyncio.to_thread(self._file.flush)
        return self._path

    def discard(self) -> None:
        """Remove what was kept. Idempotent."""
        self._chunks = []
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._path is not None:
            self._path.unlink(missing_ok=True)
            self._path = None

    def _write(self, octets: bytes) -> None:
        if self._file is None:
            descriptor, name = tempfile.mkstemp(".eml", "postroad-", self._folder)
            self._file, self._path = os.fdopen(descriptor, "wb"), Path(name)
        self._file.write(octets)
