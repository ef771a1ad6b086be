"""The worker's loop: dequeues what is due, delivers at most so many at a time, and drains."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import timedelta
from typing import cast

from postroad.ports.mail_queue import Item, MailQueue
from postroad.telemetry.logs import logger
from postroad.worker.deliveries import Deliverer

_log = logger("worker")


class Consumer:
    """Delivers what a queue has, until `stop` is set."""

    def __init__(self, queue: MailQueue, deliverer: Deliverer, *, concurrency: int) -> None:
        self._queue = queue
        self._deliverer = deliverer
        self._concurrency = concurrency
        self._in_flight: set[asyncio.Task[None]] = set()

    async def run(self, stop: asyncio.Event, within: timedelta) -> None:
        """Deliver until `stop` is set; then dequeue no more and wait for deliveries in flight.

        Deliveries that take longer than `within` are cancelled; their mails stay leased and are
        redelivered once the queue is closed. Raises: what `dequeue` raises.
        """
        consuming = asyncio.create_task(self._consume(), name="dequeue")
        stopping = asyncio.create_task(stop.wait(), name="wait for stop")
        try:
            await asyncio.wait((consuming, stopping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            consuming.cancel()
            ended = (await asyncio.gather(consuming, return_exceptions=True))[0]
            await self._drain(within)
        if isinstance(ended, Exception):
            raise ended

    async def _consume(self) -> None:
        # No semaphore here: the queue leases at most `prefetch` items that have not ended.
        items = cast("AsyncGenerator[Item, None]", self._queue.dequeue(prefetch=self._concurrency))
        async with aclosing(items):
            async for item in items:
                delivery = asyncio.create_task(self._deliverer.deliver(item))
                self._in_flight.add(delivery)
                delivery.add_done_callback(self._forget)

    async def _drain(self, within: timedelta) -> None:
        if not self._in_flight:
            return
        _log.info("draining", queue=self._queue.name, count=len(self._in_flight))
        _, late = await asyncio.wait(self._in_flight, timeout=within.total_seconds())
        for delivery in late:
            delivery.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        if late:
            _log.warning("deliveries cut off", queue=self._queue.name, count=len(late))

    def _forget(self, delivery: asyncio.Task[None]) -> None:
        self._in_flight.discard(delivery)
        if not delivery.cancelled() and (error := delivery.exception()) is not None:
            _log.error("a delivery failed in an unforeseen way", exc_info=error)
