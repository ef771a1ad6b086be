"""Whether a sync waits for other mails, and recovery for mail that arrives."""

from __future__ import annotations

import pytest

from contract.queue_harness import plain_mail
from crash.lossy import LossyFiles
from crash.world import start
from postroad.errors import StoreFull


async def test_mails_that_were_received_or_refused_are_under_way_no_longer() -> None:
    """Otherwise each later mail waits for others that never come."""
    files = LossyFiles()
    queue = await start(files)
    await queue.maintenance.recovering
    rate = queue.engine.arrival_rate
    await queue.enqueue(plain_mail("one"))
    assert rate.under_way == 0

    files.fail = {call: StoreFull("no space is left") for call in range(1000)}
    with pytest.raises(StoreFull):
        await queue.enqueue(plain_mail("two"))
    files.fail = {}

    assert rate.under_way == 0
    await queue.close()
