"""The worker's loop: dequeues what is due, has it delivered, and drains."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import timedelta
from typing import cast

from postroad.ports.mail_queue import Item, MailQueue
from postroad.telemetry.logs import logger
from postroad.worker.runner import SchedulerRunner

_log = logger("worker")


class Consumer:
    """Delivers what a queue has, until `stop` is set. At most `window` mails are in flight."""

    def __init__(self, queue: MailQueue, driving: SchedulerRunner, *, window: int) -> None:
        self._queue = queue
        self._driving = driving
        self._window = window

    async def run(self, stop: asyncio.Event, within: timedelta) -> None:
        """Deliver until `stop` is set; then dequeue no more, and finish what connections have. What
        takes longer than `within` is cut off; mails that were not delivered stay leased and are
        redelivered once the queue is closed. Raises: what `dequeue` raises."""
        consuming = asyncio.create_task(self._consume(), name="dequeue")
        passing = asyncio.create_task(self._driving.run(), name="pass time")
        stopping = asyncio.create_task(stop.wait(), name="wait for stop")
        try:
            await asyncio.wait((consuming, passing, stopping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            # Before the end, which takes back what is in flight: a later item would wait for a
            # retry.
            consuming.cancel()
            ended = [*await asyncio.gather(consuming, return_exceptions=True)]
            if len(self._driving):
                _log.info("draining", queue=self._queue.name, count=len(self._driving))
            await self._driving.end(within)
            passing.cancel()  # behind the end, in which leases and backoffs still run out
            ended += await asyncio.gather(passing, return_exceptions=True)
        for each in ended:
            if isinstance(each, Exception):
                raise each

    async def _consume(self) -> None:
        # No semaphore here: the queue leases at most `prefetch` items that have not ended.
        items = cast("AsyncGenerator[Item, None]", self._queue.dequeue(prefetch=self._window))
        async with aclosing(items):
            async for item in items:
                self._driving.take(item)
