"""A restart with a long queue: how soon there is a 250, what the index costs; Postfix beside it.

BENCH_QUEUED mails of 200 bytes wait for hours on either side, in files on disk as each keeps them.
Ours are queued by the engine itself, without syncs; Postfix' are copies of one deferred queue file
under names as it makes them. Both were started once before, so that nothing is repaired.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

from bench.results import Result, compared
from peers.postfix import UNTHROTTLED, Postfix, smtp_source
from peers.server import Road
from postroad import Mail, open_queue
from postroad.adapters.clocks import MachineClock, SystemRandomness
from postroad.adapters.disk.files import DiskFiles
from postroad.embedded.log.options import StoreOptions
from postroad.embedded.opening import describe, open_store
from postroad.embedded.store.engine import Engine
from postroad.embedded.store.owner import OwnedQueue
from support.cpu_time import cpu_seconds
from support.ports import free_port
from support.programs import Program

T = TypeVar("T")
QUEUED = int(os.environ.get("BENCH_QUEUED", "100000"))
CONTENT = b"Subject: queued\r\n\r\n" + b"x" * 180 + b"\r\n"
HOURS = timedelta(hours=5)
PEER = "postfix (Debian)"
BYTES_AN_ENTRY = 600
"""Of memory, for an entry in the index: what a million may cost is 600 MB."""


class Unsynced(DiskFiles):
    """The machine's files; nothing is durable, which filling does not need."""

    def open(self, path, *, create: bool = False):  # type: ignore[no-untyped-def]
        file = super().open(path, create=create)
        file.sync = lambda: None  # type: ignore[method-assign]
        return file

    def sync_directory(self, path) -> None:  # type: ignore[no-untyped-def]
        """Not now."""


class Inline:
    """Calls made at once."""

    async def run(self, work: Callable[..., T], *arguments: object) -> T:
        return work(*arguments)

    async def close(self) -> None:
        """Nothing is held."""


async def measure(base: Path) -> list[Result]:
    """Fill both, then start both in alternation."""
    store = base / "long"
    await fill(store, QUEUED)
    postfix = await _filled_postfix(base / "long-postfix")
    ours = [await _restart(base, store) for _ in range(3)][1:]
    theirs = [await _restart_postfix(postfix) for _ in range(3)][1:]
    empty = await _restart(base, base / "empty")
    case = f"{QUEUED:,} mails queued"
    first, indexed, cpu, memory = zip(*ours, strict=True)
    an_entry = [(each - empty[3]) / QUEUED for each in memory]
    index_cpu = [each - empty[2] for each in cpu]
    less = {"less_is_better": True}
    shutil.rmtree(store)
    shutil.rmtree(base / "long-postfix")
    return [
        compared("first 250 after a start", case, "s", first, PEER, theirs, **less),
        compared("first 250 after a start", case, "s", first, "an empty store", [empty[0]], **less),
        compared("index rebuilt after a start", case, "s", indexed, "the first 250", first, **less),
        compared("CPU of the index", case, "s", index_cpu, "a second", [1.0], **less),
        compared("index", case, "bytes/mail", an_entry, "the bound", [BYTES_AN_ENTRY], **less),
    ]


async def fill(store: Path, mails: int, senders: int = 1) -> None:
    """Make a directory with so many mails, which wait for hours."""
    files = Unsynced()
    store.mkdir()
    layout, options = describe(files, store, StoreOptions(), create=True)
    engine = Engine(files, layout, options, MachineClock(), SystemRandomness(), Inline(), Inline())
    queue = OwnedQueue("filled", engine, await open_store(engine))
    await queue.maintenance.recovering
    for number in range(mails):
        sender = f"a{number % senders or ''}@x.example"
        to = f"user{number}@host{number % 1000}.example"
        await queue.enqueue(Mail(sender, (to,), CONTENT), HOURS)
    await queue.maintenance.checkpoint()
    await queue.close()
    os.sync()


async def _restart(base: Path, store: Path) -> tuple[float, float, float, float]:
    """Start, and return seconds to the first 250 and to the whole index, then seconds of CPU and
    bytes of memory."""
    began = time.perf_counter()
    program = await Program.start(
        base,
        *("mta", "--queue", f"embedded://{store}", "--listen", "127.0.0.1:0"),
        *("--relay", f"127.0.0.1:{free_port()}", "--tls", "none"),
    )
    try:
        await smtp_source(base, await program.port("listening"), 1, 1, 200)
        first = time.perf_counter() - began
        async with open_queue(f"embedded://{store}") as queue:
            await queue.size()
        indexed = time.perf_counter() - began
        cpu = cpu_seconds([program.pid])
        status = Path(f"/proc/{program.pid}/status").read_text()
        memory = float(status.partition("VmRSS:")[2].split()[0]) * 1024
    finally:
        await program.kill()
    return first, indexed, cpu, memory


async def _filled_postfix(base: Path) -> Postfix:
    """Return a stopped Postfix with a deferred queue."""
    postfix = Postfix(base, Road(free_port()), "defer_transports = smtp\n" + UNTHROTTLED)
    await postfix.start()
    await smtp_source(base, postfix.port, 1, 1, 200)
    deferred = base / "spool" / "deferred"
    while not (found := [each for each in deferred.rglob("*") if each.is_file()]):
        await asyncio.sleep(0.05)
    await postfix.stop()
    await asyncio.to_thread(_copy, found[0], deferred, QUEUED)
    await postfix.start()
    await postfix.stop()
    return postfix


def _copy(original: Path, deferred: Path, count: int) -> None:
    """Copy a queue file, under names of a time in microseconds and the inode (Postfix' own)."""
    content, owner = original.read_bytes(), original.stat()
    due = time.time() + HOURS.total_seconds()
    for number in range(count):
        draft = deferred / "draft"
        draft.write_bytes(content)
        os.chown(draft, owner.st_uid, owner.st_gid)
        draft.chmod(0o700)
        os.utime(draft, (due, due))
        name = f"{number % 0xF4240:05X}{draft.stat().st_ino:X}"
        folder = deferred / name[0]
        if not folder.exists():
            folder.mkdir(0o700)
            os.chown(folder, owner.st_uid, owner.st_gid)
        draft.rename(folder / name)


async def _restart_postfix(postfix: Postfix) -> float:
    """Start, and return seconds to the first 250."""
    began = time.perf_counter()
    await postfix.start()
    await smtp_source(postfix.base, postfix.port, 1, 1, 200)
    first = time.perf_counter() - began
    await postfix.stop()
    return first
