"""`CASE=directory`: `postroad pipeline archive` over a store in a directory, from a cold start, and
once more where nothing is new. The peer is the same command of another checkout (`BENCH_BESIDE`),
over a copy of the same store.

`BENCH_MAILS` (60,000) mails, of which a fifth takes a second attempt; `BENCH_FOLDER` (memory) has
the stores. Needs root."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

from bench.pipeline_commands import Cost, run_with
from bench.results import Result, compared
from crash.world import Inline
from postroad import AttemptOutcomes, Mail, Outcome
from postroad.adapters.disk.files import DiskFiles
from postroad.domain.mail.mail import OutcomeKind
from postroad.embedded.log.options import StoreOptions
from postroad.embedded.opening import describe, open_store
from postroad.embedded.store.engine import Engine
from postroad.embedded.store.owner import OwnedQueue
from support.memory.clock import ManualClock, SeededRandomness
from support.repository import ROOT

MAILS = int(os.environ.get("BENCH_MAILS", "60000"))
HOURS, TOGETHER = 48, 50
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
REPLIES = {OutcomeKind.DEFERRED: "451 4.7.1 greylisted, try later", OutcomeKind.DELIVERED: "250 ok"}


async def measure_directory() -> list[Result]:
    """Fill a store, and archive copies of it."""
    beside = Path(os.environ.get("BENCH_BESIDE", ROOT))
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_FOLDER", "/dev/shm")) as folder:
        entries = await _fill(Path(folder) / "store")
        theirs = await asyncio.to_thread(_archive, Path(folder), beside, entries)
        ours = await asyncio.to_thread(_archive, Path(folder), ROOT, entries)
    return [
        compared(
            f"{run}: {measure}", f"{entries:,} entries", "MiB" if "MiB" in measure else "s",
            [ours[run][measure]], beside.name, [theirs[run][measure]], less_is_better=True,
        )
        for run in ours
        for measure in ours[run]
    ]  # fmt: skip


def _archive(folder: Path, checkout: Path, entries: int) -> dict[str, Cost]:
    """Archive a copy of the store twice; return what each run cost."""
    store, lake = folder / "copy", folder / "lake"
    for each in (store, lake):
        shutil.rmtree(each, ignore_errors=True)
    shutil.copytree(folder / "store", store)
    found = {}
    for run, expected in (("first", entries), ("idle", 0)):
        command = [sys.executable, "-m", "postroad", "pipeline", "archive", "--json"]
        places = ["--queue", f"embedded://{store}", "--lake", str(lake)]
        given = {"POSTROAD_PIPELINE_ADDRESSES": "hashed", "POSTROAD_PIPELINE_ADDRESS_KEY": "k" * 16}
        given["PYTHONPATH"] = str(checkout / "operator")
        (document,), found[run] = run_with(given, [*command, *places])
        assert document["entries"] == expected, document
    return found


async def _fill(root: Path) -> int:
    """Let mail pass for two days, so that the log goes to the archive; return how many entries."""
    clock, files = ManualClock(datetime.now(UTC) - (HOURS + 4) * HOUR), DiskFiles()
    root.mkdir()
    layout, options = describe(files, root, StoreOptions(steps=(MINUTE,)), create=True)
    Path(layout.archive).mkdir()
    parts = (files, layout, options, clock, SeededRandomness(7), Inline(), Inline())
    engine = Engine(*parts)
    queue = OwnedQueue("store", engine, await open_store(engine))
    await queue.maintenance.recovering
    passing = _Passing(queue)
    for _ in range(HOURS):
        for _ in range(0, MAILS // HOURS, TOGETHER):
            await passing.some()
        await clock.advance(HOUR / 2)
        await passing.second_attempts()
        await clock.advance(HOUR / 2)
        await queue.maintenance.checkpoint()
    for _ in range(3):
        await clock.advance(HOUR)
        await queue.maintenance.checkpoint()
    await queue.close()
    return passing.entries


class _Passing:
    """Mail that passes through a store."""

    def __init__(self, queue: OwnedQueue) -> None:
        self._queue, self._draw = queue, Random(5)
        self._consumer = queue.consumer(100)
        self._deferred = self.entries = 0

    async def some(self) -> None:
        await asyncio.gather(*(self._queue.enqueue(self._mail()) for _ in range(TOGETHER)))
        self.entries += TOGETHER
        for _ in range(TOGETHER):
            kind = OutcomeKind.DEFERRED if self._draw.random() < 0.22 else OutcomeKind.DELIVERED
            await self._attempt(kind)

    async def second_attempts(self) -> None:
        self.entries += self._deferred
        for _ in range(self._deferred):
            await self._attempt(OutcomeKind.DELIVERED)
        self._deferred = 0

    def _mail(self) -> Mail:
        draw, count = self._draw, self._draw.choices((1, 2, 3, 6), (70, 15, 10, 5))[0]
        to = (f"r{draw.randrange(3000)}@d{draw.randrange(28):02}.example" for _ in range(count))
        sender = f"user{draw.randrange(43)}@s{draw.randrange(5)}.example"
        return Mail(sender, tuple(dict.fromkeys(to)), b"x" * 200)

    async def _attempt(self, kind: OutcomeKind) -> None:
        item = await self._consumer.next()
        outcomes = AttemptOutcomes.of(
            {
                each: Outcome(kind, REPLIES[kind], f"mx.{each.rpartition('@')[2]}")
                for each in item.mail.recipients
            },
            0.25,
        )
        if kind is OutcomeKind.DELIVERED:
            await item.done(outcomes)
        else:
            await item.retry(MINUTE, outcomes=outcomes)
            self._deferred += 1
