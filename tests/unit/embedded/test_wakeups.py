"""Consumers that wait, and which of them a ready entry wakes."""

from __future__ import annotations

import asyncio

from postroad.embedded.store.ready_queues import Wakeups
from support.memory.clock import ManualClock


async def test_a_consumer_that_was_woken_and_cancelled_at_once_wakes_the_next() -> None:
    """Otherwise the ready entry waits until another one comes."""
    wakeups = Wakeups(ManualClock())
    first, second = (asyncio.ensure_future(wakeups.wait(None)) for _ in range(2))
    await asyncio.sleep(0)

    wakeups.wake_one()
    first.cancel()

    await asyncio.wait_for(second, 60)
    assert first.cancelled()


async def test_a_consumer_that_is_cancelled_while_it_waits_wakes_no_other() -> None:
    wakeups = Wakeups(ManualClock())
    first, second = (asyncio.ensure_future(wakeups.wait(None)) for _ in range(2))
    await asyncio.sleep(0)

    first.cancel()
    await asyncio.wait([first])

    assert not second.done()
    wakeups.wake_one()
    await asyncio.wait_for(second, 60)
