"""A mail's spool file goes to another mail only when nothing can bring the first one back (R3)."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from crash.cuts import check_cuts
from crash.lossy import LossyFiles
from crash.world import Outside, start

MINUTE = timedelta(minutes=1)


async def test_the_file_of_a_mail_that_failed_waits_for_its_end() -> None:
    """Without its FINISH such a mail comes back as a dead letter; its content must be there. The
    next mail waits in another lane, whose syncs say nothing of the FINISH."""
    files = LossyFiles()
    queue = await start(files)
    await queue.maintenance.recovering
    outside = Outside(files, queue)
    await outside.enqueue("bad")
    item = await outside.lease()
    await outside.fail("bad", "bad0@example.net")
    files.note("transmitted", "bad", item.mail.recipients)
    await item.done()
    while queue.engine.slots._cleaning is not None:
        await asyncio.sleep(0)
    await outside.enqueue("next", delay=MINUTE)
    await queue.maintenance.checkpoint()
    await queue.close()

    assert await check_cuts(files.journal) > 50
