"""When a lane syncs what waits for others."""

from __future__ import annotations

import asyncio

from crash.lossy import LossyFiles
from crash.world import start
from postroad.embedded.layout import NEW
from postroad.embedded.records import HoldRecord


async def test_a_record_that_waited_for_the_sync_of_others_gets_its_own() -> None:
    queue = await start(LossyFiles())
    await queue.maintenance.recovering
    lane = queue.engine.lane(NEW)
    written = queue.engine.append(NEW, HoldRecord(bytes(16), 0, held=False))
    assert lane.durable < written.end

    await asyncio.wait_for(lane.commit(written.end, 0.001), 5)

    assert lane.durable >= written.end
    await queue.close()
