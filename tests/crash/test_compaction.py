"""One mail that waits for long does not keep the log of all the mail behind it."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from crash.lossy import LossyFiles
from crash.world import Outside, opened, start
from postroad.embedded.log.envelopes import EnvelopeRecord
from postroad.embedded.log.segments import LiveEntry
from postroad.embedded.store.maintenance import Maintenance

DELAY = timedelta(hours=9)
PASSING = 40
"""Mails of several segments."""


async def test_the_mails_of_a_sparse_segment_are_rewritten_and_the_dead_segments_go() -> None:
    files = LossyFiles()
    queue = await start(files)
    await queue.maintenance.recovering
    outside = Outside(files, queue)
    await outside.enqueue("stays", delay=DELAY)
    (before,) = [view async for view in queue.browse()]
    for number in range(PASSING):
        await outside.enqueue(f"passing{number}", delay=DELAY)
        await outside.change("remove", f"passing{number}")
    [lane] = [each for each in queue.engine.lanes.values() if each.segments[0].live]
    assert len(lane.segments) > 2

    for _ in range(4):
        await queue.maintenance.round()

    assert len(lane.segments) <= 2
    await queue.close()
    async with opened(files.disk.copy()) as (_, again):
        (after,) = [view async for view in again.browse()]
    assert (after.enqueue_id, after.due_at) == (before.enqueue_id, before.due_at)


async def test_a_segment_that_goes_while_its_mails_are_rewritten_stops_no_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rounds at intervals, and those that are asked for, may be under way at one time."""
    queue = await start(files := LossyFiles())
    await queue.maintenance.recovering
    outside, rewritten = Outside(files, queue), list[LiveEntry]()
    for name in ("first", "second"):
        await outside.enqueue(name, delay=DELAY)
    for number in range(PASSING):
        await outside.enqueue(f"passing{number}", delay=DELAY)
        await outside.change("remove", f"passing{number}")
    honest = Maintenance._rewrite

    async def rewrite(maintenance: Maintenance, entry: LiveEntry) -> None:
        if rewritten:
            await outside.change("remove", "second")
            await maintenance.checkpoint()
        rewritten.append(entry)
        await honest(maintenance, entry)

    monkeypatch.setattr(Maintenance, "_rewrite", rewrite)
    await queue.maintenance.round()

    assert len(rewritten) == 2
    assert queue.engine.failure is None
    assert (await queue.size()).size == 1
    await queue.close()


async def test_a_segment_that_goes_while_a_removed_mail_is_read_stops_no_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue = await start(files := LossyFiles())
    await queue.maintenance.recovering
    outside, reader = Outside(files, queue), queue.engine.reader
    for number in range(PASSING):
        await outside.enqueue(f"mail{number}", delay=DELAY)
    honest, is_read = reader.read, asyncio.Event()

    async def read(entry: LiveEntry) -> EnvelopeRecord:
        monkeypatch.setattr(reader, "read", honest)
        for number in range(PASSING - 1):
            await outside.change("remove", f"mail{number}")
        await queue.maintenance.checkpoint()
        try:
            return await honest(entry)
        finally:
            is_read.set()

    await outside.change("flush", "mail0")
    queue.engine.content_cache.take(queue.engine.ready_queues.firsts()[0])
    monkeypatch.setattr(reader, "read", read)
    leasing = asyncio.ensure_future(queue.consumer(1).next())
    await is_read.wait()

    assert queue.engine.failure is None
    leasing.cancel()
    assert (await queue.size()).size == 1
    await queue.close()
