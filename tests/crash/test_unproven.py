"""Recovery writes again what it cannot prove durable (FORMAT.md R5): after a failed sync, the page
cache may hold what the disk does not, and another sync alone would not write it."""

from __future__ import annotations

from crash.lossy import LossyFiles, Write
from crash.world import Outside, opened, start

MAILS = 60
"""They fill several segments, so that some are the first of theirs."""


async def test_the_last_mail_is_written_again_wherever_it_lies_in_its_segment() -> None:
    files = LossyFiles()
    queue = await start(files)
    await queue.maintenance.recovering
    outside = Outside(files, queue)
    for number in range(MAILS):
        name = f"mail-{number}-of-many"
        await outside.enqueue(name)
        async with opened(files.disk.copy()) as (recovered, _):
            steps = list(recovered.journal.steps)
        assert any(isinstance(each, Write) and name.encode() in each.data for each in steps), name
    await queue.close()
