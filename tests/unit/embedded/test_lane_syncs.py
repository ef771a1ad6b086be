"""When a lane syncs what waits for others."""

from __future__ import annotations

import asyncio

import pytest

from crash.lossy import LossyFiles
from crash.world import start
from postroad.embedded.log.layout import NEW
from postroad.embedded.log.records import HoldRecord
from postroad.errors import StoreFailed


async def test_a_record_that_waited_for_the_sync_of_others_gets_its_own() -> None:
    queue = await start(LossyFiles())
    await queue.maintenance.recovering
    lane = queue.engine.lane(NEW)
    written = queue.engine.append(NEW, HoldRecord(bytes(16), 0, held=False))
    assert lane.durable < written.end

    await asyncio.wait_for(lane.commit(written.end, 0.001), 60)

    assert lane.durable >= written.end
    await queue.close()


async def test_nothing_follows_a_sync_that_ends_after_its_store_has_stopped() -> None:
    queue = await start(LossyFiles())
    await queue.maintenance.recovering
    lane, followed = queue.engine.lane(NEW), asyncio.Event()
    written = queue.engine.append(NEW, HoldRecord(bytes(16), 0, held=False))
    lane.when_durable(written.end, followed.set)
    syncing = lane.durable_at(written.end)
    await asyncio.sleep(0)

    queue.engine.stop(StoreFailed("the disk fails"))

    with pytest.raises(StoreFailed):
        await syncing
    while lane.durable < written.end:
        await asyncio.sleep(0)
    assert not followed.is_set()
    await queue.close()
