"""An owner that goes: what its threads are at ends before the store can be another's."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path, PurePath

import pytest

from contract.queue_harness import plain_mail
from postroad.adapters.disk.files import DiskFile, DiskFiles, DiskLock
from postroad.bootstrap import embedded_store
from postroad.bootstrap.embedded_store import open_directory


class Slow:
    """What happened, in order, and a gate before the writes of spool files."""

    def __init__(self) -> None:
        self.happened: list[str] = []
        self.begun, self.gate = threading.Event(), threading.Event()


class SlowFile(DiskFile):
    slow: Slow

    def pwrite(self, offset: int, *parts: bytes) -> None:
        self.slow.begun.set()
        self.slow.gate.wait()
        super().pwrite(offset, *parts)
        self.slow.happened.append("written")


class WatchedLock(DiskLock):
    slow: Slow

    def release(self) -> None:
        self.slow.happened.append("released")
        super().release()


def slow_files(slow: Slow) -> type[DiskFiles]:
    """Return the machine's files, except that spool files are written only when the gate opens."""

    class SlowFiles(DiskFiles):
        def open(self, path: PurePath, *, create: bool = False) -> DiskFile:
            file = super().open(path, create=create)
            if path.parent.parent.name == "mail":
                file.__class__, file.slow = SlowFile, slow  # type: ignore[attr-defined]
            return file

        def lock(self, path: PurePath) -> DiskLock | None:
            lock = super().lock(path)
            if lock is not None:
                lock.__class__, lock.slow = WatchedLock, slow  # type: ignore[attr-defined]
            return lock

    return SlowFiles


async def test_the_lock_is_kept_while_a_thread_still_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write of a client that left would fall into a slot that the next owner gave away."""
    slow = Slow()
    monkeypatch.setattr(embedded_store, "DiskFiles", slow_files(slow))
    queue = await open_directory(tmp_path, create=True)
    enqueueing = asyncio.create_task(queue.enqueue(plain_mail("a@example.org")))
    await asyncio.to_thread(slow.begun.wait)
    enqueueing.cancel()
    await asyncio.wait({enqueueing})

    asyncio.get_running_loop().call_later(0.2, slow.gate.set)
    await queue.close()

    assert slow.happened[:2] == ["written", "released"]


async def test_a_store_that_was_closed_leaves_no_threads(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    queue = await open_directory(tmp_path, create=True)
    await queue.enqueue(plain_mail("a@example.org"))
    started = {
        each for each in set(threading.enumerate()) - before if each.name[:4] in ("log-", "mail")
    }
    assert started

    await queue.close()

    for thread in started:
        thread.join(5)
    assert not [thread for thread in started if thread.is_alive()]
