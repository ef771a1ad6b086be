"""Which ENVELOPEs are read from the log: those of mails that came long ago, or before a start."""

from __future__ import annotations

from contract.queue_harness import letter
from crash.lossy import LossyFiles
from crash.world import opened, start


async def test_recent_mail_is_listed_without_a_read_of_the_log() -> None:
    files = LossyFiles()
    queue = await start(files)
    await queue.maintenance.recovering
    for number in range(3):
        await queue.enqueue(letter(f"mail{number}"))

    assert len([each async for each in queue.browse()]) == 3
    assert queue.engine.reader.bytes_read == 0
    await queue.close()

    async with opened(files.disk) as (_, again):
        assert len([each async for each in again.browse()]) == 3
        assert again.engine.reader.bytes_read > 0
