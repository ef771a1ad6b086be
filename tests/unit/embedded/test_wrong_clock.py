"""A wall clock that was wrong for a while, before or at a start, keeps no mail for longer than its
delay."""

from __future__ import annotations

from datetime import timedelta

import pytest

from contract.queue_harness import plain_mail
from crash.lossy import LossyFiles
from crash.world import opened
from support.memory.clock import ManualClock

DAY, MINUTE = timedelta(days=1), timedelta(minutes=1)


@pytest.mark.parametrize(
    ("at_retry", "at_start"), [(300 * DAY, 0 * DAY), (0 * DAY, -9000 * DAY)], ids=["ahead", "back"]
)
async def test_a_delay_is_no_longer_for_a_clock_that_was_wrong(
    at_retry: timedelta, at_start: timedelta
) -> None:
    files, clock = LossyFiles(), ManualClock(skew=at_retry)
    async with opened(files.disk, clock) as (_, queue):
        await queue.enqueue(plain_mail(), 5 * MINUTE)
        await queue.enqueue(plain_mail())
        item = await queue.consumer(1).next()
        await item.retry(MINUTE)
        await queue.settle()

    clock.skew = at_start
    async with opened(files.disk, clock) as (_, queue):
        assert (await queue.size()).delayed == 2
        clock.skew = timedelta(0)
        await clock.advance(MINUTE)
        assert (await queue.size()).delayed == 1
        await clock.advance(4 * MINUTE)
        assert (await queue.size()).delayed == 0
