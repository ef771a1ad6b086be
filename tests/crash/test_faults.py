"""Every call to the disk fails once: a refusal or a stop, never a silent loss (P12).

The run goes on as far as the store lets it; then the process dies, and the next one recovers on a
disk that works again.
"""

from __future__ import annotations

import asyncio
import itertools
from datetime import timedelta

import pytest

from crash.lossy import Disk, Event, LossyFiles, Name
from crash.script import Phase, aging, changing_minds, crowd
from crash.world import Outside, check, opened, start
from postroad.embedded.log.lanes import LaneLog
from postroad.embedded.offline_tools.verification import dump, verify
from postroad.errors import PostroadError, StoreFailed, StoreFull
from postroad.ports.files import DiskSpace
from support.memory.clock import ManualClock

SECOND = timedelta(seconds=1)
ERRORS = {
    "EIO": StoreFailed("cannot write: Input/output error"),
    "ENOSPC": StoreFull("no space is left"),
    "EMFILE": StoreFull("this process may open no more files"),
}


async def run_with_fault(call: int, error: PostroadError, phase: Phase) -> tuple[LossyFiles, bool]:
    """Run a phase whose n-th call to the disk fails; return the disk, and whether all went well."""
    files, clock = LossyFiles(), ManualClock()
    queue = await start(files, clock)
    await queue.maintenance.recovering
    outside = Outside(files, queue)
    files.fail[files.calls + call] = error
    try:
        await phase(outside, clock)
    except (StoreFailed, StoreFull):  # transient both: no sender gives up because of them
        went_well = False
    else:
        went_well = True
    await queue.close()
    await outside.receiver.close()
    assert files.open_files == 0
    files.fail.clear()
    return files, went_well


@pytest.mark.parametrize("phase", [crowd, aging, changing_minds], ids=lambda each: each.__name__)
@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS.keys())
async def test_a_call_that_fails_never_loses_what_was_promised(
    phase: Phase, error: PostroadError
) -> None:
    failed = 0
    for call in range(1, 1000):
        files, went_well = await run_with_fault(call, error, phase)
        async with opened(files.disk, seed=1) as (_, queue):
            await check(queue, files.journal.events(len(files.journal.steps)))
        if went_well and files.calls < call:
            break
        failed += not went_well
    assert failed > 20


async def test_full_disk_is_refused_before_anything_is_written() -> None:
    files, clock = LossyFiles(), ManualClock()
    queue = await start(files, clock)
    await queue.maintenance.recovering
    outside = Outside(files, queue)
    await outside.enqueue("fits")
    for room in (DiskSpace(1 << 20, 1 << 20), DiskSpace(1 << 40, 10)):
        files.free = room
        await clock.advance(SECOND)
        before = [step for step in files.journal.steps if not isinstance(step, Event)]

        with pytest.raises(StoreFull) as refused:
            await outside.enqueue("refused")

        assert refused.value.transient
        steps = [step for step in files.journal.steps if not isinstance(step, Event)]
        assert steps[: len(before)] == before
        more = steps[len(before) :]
        assert all(isinstance(each, Name) and each.inode is None for each in more), "freed only"
    files.free = DiskSpace(1 << 40, None)
    await clock.advance(SECOND)
    await outside.enqueue("again")
    assert (await queue.size()).size == 2
    await queue.close()


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), MemoryError()])
async def test_a_flush_that_fails_unexpectedly_stops_the_store(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The records that it took are in no file, so none may count as durable, then or later."""
    files = LossyFiles()
    queue = await start(files)
    await queue.maintenance.recovering
    outside, write = Outside(files, queue), LaneLog._write

    def fail(*_: object) -> None:
        monkeypatch.setattr(LaneLog, "_write", write)
        raise error

    monkeypatch.setattr(LaneLog, "_write", fail)

    for name in ("taken", "behind"):
        with pytest.raises(StoreFailed):
            await asyncio.wait_for(outside.enqueue(name), 60)

    await queue.close()
    async with opened(files.disk, seed=1) as (_, queue):
        await check(queue, files.journal.events(len(files.journal.steps)))


async def test_a_start_that_fails_anywhere_leaves_no_file_open() -> None:
    """A client tries again, in the same process, whenever it uses the queue."""
    async with opened(Disk()) as (files, queue):
        outside = Outside(files, queue)
        for name in ("waits", "held", "ended"):
            await outside.enqueue(name)
        await outside.change("hold", "held")
        await outside.end("ended")
    disk, failed = files.disk, 0
    for call in itertools.count(1):
        files = LossyFiles(disk.copy())
        files.fail = {call: StoreFailed("cannot read: Input/output error")}
        try:
            queue = await start(files, seed=1)
        except StoreFailed:
            failed += 1
        else:
            await queue.close()
        assert files.open_files == 0, call
        if files.calls < call:
            break
    assert failed > 10


async def test_what_only_reads_a_store_leaves_no_file_open() -> None:
    async with opened(Disk()) as (files, queue):
        await Outside(files, queue).enqueue("waits")
    layout, files = queue.engine.layout, LossyFiles(files.disk)

    assert verify(files, layout).mails == 1
    assert files.open_files == 0
    assert len(list(dump(files, layout))) == 2
    assert files.open_files == 0
    files.fail = {files.calls + 5: StoreFailed("cannot read: Input/output error")}
    with pytest.raises(StoreFailed):
        verify(files, layout)
    assert files.open_files == 0
