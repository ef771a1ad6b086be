"""The content of one mail while it comes in: in memory while it is small, else in a file.

It is complete before it is enqueued, because an enqueue has a deadline and a client has its own
pace. What exceeds the limit is counted and dropped, never kept.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from typing import BinaryIO

from postroad.errors import StoreFull

MEMORY_BYTES = 256 * 1024
"""Octets of one mail kept in memory. Times the most sessions, it bounds what mails can take."""


class Incoming:
    """Collects content behind `first`, which does not count. `discard` it in any case."""

    def __init__(self, limit_bytes: int, first: bytes = b"", folder: Path | None = None) -> None:
        self.size_bytes = 0
        self._limit = limit_bytes
        self._folder = folder
        self._chunks = [first]
        self._path: Path | None = None
        self._file: BinaryIO | None = None

    @property
    def is_too_large(self) -> bool:
        """Whether the limit was exceeded; nothing is kept any more then."""
        return self.size_bytes > self._limit

    async def add(self, chunk: bytes) -> None:
        """Take the next octets. Raises: StoreFull when they cannot be written."""
        self.size_bytes += len(chunk)
        if self.is_too_large:
            self.discard()
            return
        self._chunks.append(chunk)
        if self._file is not None or self.size_bytes > MEMORY_BYTES:
            chunks, self._chunks = self._chunks, []
            try:
                await asyncio.to_thread(self._write, b"".join(chunks))
            except OSError as error:
                raise StoreFull("a large mail cannot be written to a file") from error

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
