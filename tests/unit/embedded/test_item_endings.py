"""An ending of an item that did not succeed may be tried again."""

from __future__ import annotations

import asyncio

import pytest

from contract.queue_harness import letter
from crash.lossy import Disk
from crash.world import opened
from postroad.errors import EntryEnded


async def test_a_done_that_is_cancelled_once_it_is_recorded_ends_the_item() -> None:
    async with opened(Disk()) as (_, queue):
        await queue.enqueue(letter())
        item = await queue.consumer(1).next()
        ending = asyncio.ensure_future(item.done())
        await asyncio.sleep(0)
        ending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ending

        assert (await queue.size()).size == 0
        with pytest.raises(EntryEnded):
            await item.done()
