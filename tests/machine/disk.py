"""A disk with a volatile cache, as a network block device for one client.

The cache takes writes in any order and keeps them until a flush, or loses them at a power cut. Of
the writes since the last flush, a cut keeps each block of 4 KiB or drops it, by chance: writes are
torn and reordered. The power goes at a request, before it is answered: at a random instant, the
cache would nearly always be empty.

Source: Linux, include/uapi/linux/nbd.h.
"""

from __future__ import annotations

import asyncio
import os
import random
import struct
from pathlib import Path

BLOCK = 4096
REQUEST = struct.Struct(">IHHQQI")
REPLY = struct.Struct(">IIQ")
ASKS, ANSWERS = 0x25609513, 0x67446698
READ, WRITE, DISCONNECT, FLUSH = 0, 1, 2, 3
FORCE_UNIT_ACCESS = 1
EINVAL = 22


class Disk:
    """The disk: a file with what is stable, and the blocks of the cache in memory."""

    def __init__(self, path: Path, chance: random.Random) -> None:
        """Take a file whose size is that of the disk."""
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._chance = chance
        self._volatile: dict[int, bytes] = {}
        self.size = os.fstat(self._file).st_size
        self.flushes = 0
        self.dropped = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._left: int | None = None
        self.failed = asyncio.Event()
        """Set when the power goes."""

    async def serve(self, host: str) -> int:
        """Serve clients from now on; return the port."""
        self._server = await asyncio.start_server(self._talk, host, 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def fail_after(self, requests: int) -> None:
        """Let the power go at a later write or flush: it is not answered, nor is any after it."""
        self._left = requests

    def _fails(self, kind: int) -> bool:
        if self._left is not None and kind in (WRITE, FLUSH):
            self._left -= 1
            if self._left <= 0:
                self.failed.set()
        return self.failed.is_set()

    def cut(self, *, drops: bool) -> None:
        """End the power, if it is not gone yet, and give it back. The cache keeps all, or, with
        `drops`, by chance what it will. Writes that are still on the wire are lost."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()
        for number, content in self._volatile.items():
            if drops and self._chance.random() < 0.5:
                self.dropped += 1
            else:
                os.pwrite(self._file, content, number * BLOCK)
        self._volatile.clear()
        self._left = None
        self.failed.clear()

    def read(self, offset: int, length: int) -> bytes:
        """Return what the disk holds; offset and length are multiples of BLOCK."""
        blocks = range(offset // BLOCK, (offset + length) // BLOCK)
        return b"".join(
            self._volatile.get(number) or os.pread(self._file, BLOCK, number * BLOCK)
            for number in blocks
        )

    def write(self, offset: int, content: bytes) -> None:
        """Put blocks into the cache."""
        for start in range(0, len(content), BLOCK):
            self._volatile[(offset + start) // BLOCK] = content[start : start + BLOCK]

    def flush(self) -> None:
        """Make all that was written stable."""
        self.flushes += 1
        for number, content in self._volatile.items():
            os.pwrite(self._file, content, number * BLOCK)
        self._volatile.clear()

    def close(self) -> None:
        """Serve no more, and close the file."""
        if self._server is not None:
            self._server.close()
        os.close(self._file)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while True:
                header = REQUEST.unpack(await reader.readexactly(REQUEST.size))
                _, flags, kind, handle, offset, length = header
                content = await reader.readexactly(length) if kind == WRITE else b""
                if kind == DISCONNECT or writer not in self._writers:
                    return
                if self._fails(kind):
                    continue
                error, answer = self._act(kind, flags, offset, length, content)
                writer.write(REPLY.pack(ANSWERS, error, handle) + answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the power went, or the run is over
        finally:
            self._writers.discard(writer)
            writer.close()

    def _act(
        self, kind: int, flags: int, offset: int, length: int, content: bytes
    ) -> tuple[int, bytes]:
        if offset % BLOCK or length % BLOCK or offset + length > self.size:
            return EINVAL, b""
        if kind == READ:
            return 0, self.read(offset, length)
        if kind == WRITE:
            self.write(offset, content)
            if flags & FORCE_UNIT_ACCESS:
                # Only these blocks are stable by it, whatever lay in the cache before them.
                for number in range(offset // BLOCK, (offset + length) // BLOCK):
                    os.pwrite(self._file, self._volatile.pop(number), number * BLOCK)
            return 0, b""
        if kind == FLUSH:
            self.flush()
            return 0, b""
        return EINVAL, b""
