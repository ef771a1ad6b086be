"""A file as a sink of events: whole lines, a file system that hangs, what is no file."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, get_ident

import pytest

from postroad.adapters.disk import event_spool
from postroad.adapters.disk.event_spool import EventFile
from postroad.ports.events import MAX_AT_ONCE, SinkVerdict


class HangingFile(EventFile):
    """Hangs in the kernel, as a file of an NFS server that is away does."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.back = Event()

    def _open(self) -> int:
        self.back.wait()
        return super()._open()


class NotedFile(EventFile):
    """Notes which threads write."""

    def __init__(self, path: Path, largest: int) -> None:
        super().__init__(path, largest)
        self.threads: set[int] = set()

    def _open(self) -> int:
        self.threads.add(get_ident())
        return super()._open()


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_a_file_that_hangs_has_a_thread_of_its_own_and_a_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_spool, "MAX_WRITE_SECONDS", 0.05)
    monkeypatch.setattr(event_spool, "MAX_CLOSE_SECONDS", 0.05)
    file = HangingFile(tmp_path / "events.jsonl")
    try:
        async with asyncio.timeout(60):
            sends = (file.send(str(each), b"{}") for each in range(4 * MAX_AT_ONCE))
            replies = await asyncio.gather(*sends)
            assert {each.verdict for each in replies} == {SinkVerdict.LATER}
            assert "hangs" in replies[0].reason
            assert await asyncio.to_thread(lambda: "free") == "free"

            file.back.set()
            while (await file.send("after", b'{"n":1}')).verdict is not SinkVerdict.TAKEN:
                await asyncio.sleep(0)
            file.back.clear()
            assert (await file.send("again", b"{}")).verdict is SinkVerdict.LATER
            await file.close()
    finally:
        file.back.set()
    lines = (tmp_path / "events.jsonl").read_bytes().splitlines()
    assert lines[:2] == [b"{}", b'{"n":1}']  # of those that hung, one


@pytest.mark.parametrize("kind", ["fifo", "read fifo", "directory", "link"])
async def test_what_is_no_file_is_not_written(tmp_path: Path, kind: str) -> None:
    path, reader = tmp_path / "events.jsonl", -1
    if "fifo" in kind:
        os.mkfifo(path)
        if kind == "read fifo":
            reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to(tmp_path / "other")

    file = EventFile(path)
    async with asyncio.timeout(60):
        reply = await file.send("1", b"{}")
    await file.close()

    if reader >= 0:
        os.close(reader)
    assert reply.verdict is SinkVerdict.LATER
    assert "the file cannot be written: " in reply.reason
    assert not (tmp_path / "other").exists()


async def test_events_at_once_rotate_a_full_file_once(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    file = NotedFile(path, largest=20 * 16)
    line = b"x" * 15
    path.write_bytes((line + b"\n") * 20)

    await asyncio.gather(*(file.send(str(each), line) for each in range(MAX_AT_ONCE)))
    await file.close()

    sizes = [each.stat().st_size for each in (tmp_path / "events.jsonl.1", path)]
    assert sizes == [20 * 16, MAX_AT_ONCE * 16]
    assert len(file.threads) == 1  # two that rotate at once lose what the first one moved


async def test_a_line_that_had_no_room_leaves_no_half_behind(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    file = EventFile(path)
    await file.send("1", b"x" * 59)
    with files_of_at_most(100):
        reply = await file.send("2", b"y" * 59)
    assert reply.verdict is SinkVerdict.LATER

    assert (await file.send("2", b"y" * 59)).verdict is SinkVerdict.TAKEN
    await file.close()

    assert path.read_bytes().splitlines() == [b"x" * 59, b"y" * 59]


async def test_a_file_that_cannot_be_begun_has_no_descriptor_closed_twice(tmp_path: Path) -> None:
    """The number may be that of another file by then, which another thread has opened."""
    others: list[int] = []

    class FullFile(EventFile):
        def _open(self) -> int:
            if path.exists():
                return super()._open()
            others.append(os.open(os.devnull, os.O_RDONLY))
            raise OSError(errno.ENOSPC, "no space")

    path = tmp_path / "events.jsonl"
    path.touch()
    file = FullFile(path, largest=100)
    await file.send("1", b"x" * 59)
    reply = await file.send("2", b"y" * 59)
    await file.close()

    assert reply.verdict is SinkVerdict.LATER
    (other,) = others
    os.close(other)
