"""One mail that waits for long does not keep the log of all the mail behind it."""

from __future__ import annotations

from datetime import timedelta

from crash.lossy import LossyFiles
from crash.world import Outside, opened, start

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
