"""A file of JSON lines as a sink of events. Source: ADR 0089."""

import asyncio
import os
import stat
from contextlib import suppress
from pathlib import Path

from postroad.adapters.disk.files import PRIVATE_FILE, ThreadPool
from postroad.ports.events import SinkReply, SinkVerdict

MAX_EVENT_FILE = 64 * 2**20

MAX_WRITE_SECONDS, MAX_CLOSE_SECONDS = 15.0, 1.0
"""Until the sink answers for a write that hangs, and until it leaves the thread of one."""

_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class EventFile:
    """`ports.events.EventSink`: a file of JSON lines. Nothing is synced: a power cut may take the
    last lines. Its thread is its own, so that a file system which hangs holds up nothing else."""

    def __init__(self, path: Path, largest: int = MAX_EVENT_FILE) -> None:
        self._path, self._largest = path, largest
        self._thread = ThreadPool(1, "event file")
        self._alone = asyncio.Lock()
        self._writing: asyncio.Future[SinkReply] | None = None

    async def send(self, event_id: str, body: bytes) -> SinkReply:
        async with self._alone:
            if self._writing is not None and not self._writing.done():
                return SinkReply(SinkVerdict.LATER, "an earlier write to the file hangs")
            self._writing = self._thread.run(self._append, body + b"\n")
            done, _ = await asyncio.wait({self._writing}, timeout=MAX_WRITE_SECONDS)
            if not done:
                return SinkReply(SinkVerdict.LATER, "a write to the file hangs")
            return self._writing.result()

    async def close(self) -> None:
        with suppress(TimeoutError):  # the thread is a daemon
            await asyncio.wait_for(self._thread.close(), MAX_CLOSE_SECONDS)

    def _append(self, line: bytes) -> SinkReply:
        try:
            self._write(line)
        except OSError as error:
            return SinkReply(SinkVerdict.LATER, f"the file cannot be written: {error.strerror}")
        return SinkReply(SinkVerdict.TAKEN)

    def _write(self, line: bytes) -> None:
        file = self._open()
        try:
            size = os.fstat(file).st_size
            if size + len(line) > self._largest:
                self._path.replace(f"{self._path}.1")
                os.close(file)
                file = self._open()
                size = 0
            try:
                while line:
                    line = line[os.write(file, line) :]
            except OSError:
                os.ftruncate(file, size)  # else the next line would follow half of this one
                raise
        finally:
            os.close(file)

    def _open(self) -> int:
        file = os.open(self._path, _FLAGS, PRIVATE_FILE)
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise OSError(0, "it is no regular file")
        return file
