"""The rates' candidate over a queue in memory: what is put in comes out, and is timed."""

from __future__ import annotations

import servers
from bench.queue_rates import Ours, enter
from postroad import open_queue


async def test_every_mail_that_entered_leaves_and_is_timed_twice() -> None:
    async with open_queue(f"memory://{servers.fresh()}", create=True) as queue:
        ours = Ours(queue, b"Subject: measured\r\n\r\nx")
        entering: list[float] = []
        leaving: list[float] = []

        await enter(ours, 4, 25, entering)
        assert (await queue.size()).size == 25
        await ours.leave(25, 4, leaving)

        assert (await queue.size()).size == 0
        assert (len(entering), len(leaving)) == (25, 25)
