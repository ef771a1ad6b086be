"""Stores mails that are whole in memory: those that come while a file is synced share its next
sync. FORMAT.md 4."""

import asyncio
from collections.abc import Sequence

from postroad.domain.mail.shapes import Shape
from postroad.embedded.log.layout import file_of
from postroad.embedded.log.spool_files import NewMail, SpoolFiles
from postroad.ports.files import Threads

StoredShapes = asyncio.Future[list[Shape]]


class SpoolWriter:
    """Writes and syncs each spool file by one call in a thread at a time, because a second sync of
    a file may pass over what the first one lost (A1). For one event loop."""

    def __init__(self, spool_files: SpoolFiles, threads: Threads) -> None:
        self._spool_files, self._threads = spool_files, threads
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, list[tuple[Sequence[NewMail], StoredShapes]]] = {}
        self._writing: dict[int, asyncio.Task[None]] = {}

    def store(self, *mails: NewMail) -> StoredShapes:
        """Store mails in slots of one file. Returns a future of their shapes, which is done when
        they are durable. The work goes on when the future is cancelled."""
        file, stored = file_of(mails[0].slot), self._loop.create_future()
        self._waiting.setdefault(file, []).append((mails, stored))
        if file not in self._writing:
            self._writing[file] = self._loop.create_task(self._write(file))
        return stored

    async def _write(self, file: int) -> None:
        while (waiting := self._waiting.pop(file, None)) is not None:
            mails = [mail for part, _ in waiting for mail in part]
            try:
                shapes = await self._threads.run(self._spool_files.store, *mails)
            except Exception as error:  # of any kind, for each caller: none of them is durable
                for _, stored in waiting:
                    if not stored.done():
                        stored.set_exception(error)
                continue
            first = 0
            for part, stored in waiting:
                if not stored.done():
                    stored.set_result(shapes[first : first + len(part)])
                first += len(part)
        del self._writing[file]
