"""What no caller waits for is written soon all the same."""

from __future__ import annotations

import asyncio

from crash.lossy import LossyFiles, Write
from crash.world import Outside, start
from postroad.embedded.log.lanes import FLUSH_DELAY_SECONDS


async def test_records_that_no_caller_waits_for_outlive_the_process_after_the_flush_delay() -> None:
    """A lease, for example: a process that is killed later still knows the attempt."""
    files = LossyFiles()
    queue = await start(files)
    await queue.maintenance.recovering
    outside = Outside(files, queue)
    await outside.enqueue("mail")
    await asyncio.sleep(2 * FLUSH_DELAY_SECONDS)
    before = len(files.journal.steps)

    await outside.lease()
    await asyncio.sleep(2 * FLUSH_DELAY_SECONDS)

    assert any(isinstance(each, Write) for each in files.journal.steps[before:])
    await queue.close()
