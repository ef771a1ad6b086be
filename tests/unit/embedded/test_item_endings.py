"""An ending of an item that did not succeed may be tried again."""

from __future__ import annotations

import asyncio

import pytest

from contract.queue_harness import letter
from crash.lossy import Disk
from crash.world import opened
from postroad.errors import EntryEnded


async def test_an_ending_that_was_cancelled_is_tried_again() -> None:
    async with opened(Disk()) as (_, queue):
        await queue.enqueue(letter())
        item = await queue.consumer(1).next()
        ending = asyncio.ensure_future(item.done())
        await asyncio.sleep(0)
        ending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ending

        await item.done()

        assert (await queue.size()).size == 0
        with pytest.raises(EntryEnded):
            await item.done()
