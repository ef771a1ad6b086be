"""One consumer's references on their way to items: several at the same time, the first that is
ready is handed out first.

Order is roughly that of arrival: of those that are ready, the earliest leaves first, and one that
waits for a server delays none behind it (invariant 8). References being dispatched and items in
flight together are at most the prefetch, also when the broker's channel is lost and the next one
brings as many again (invariant 11).
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Callable, Coroutine
from itertools import count

from postroad.distributed.dequeue.items import DistributedItem
from postroad.ports.broker import Delivery

_Task = asyncio.Task[DistributedItem | None]


class PrefetchPlace:
    """One place of a consumer's prefetch: taken by a reference, kept by its item until it ends."""

    def __init__(self, places: asyncio.Semaphore) -> None:
        self._places = places
        self._is_free = False

    def free(self) -> None:
        """Free the place for the next reference. Idempotent."""
        if not self._is_free:
            self._is_free = True
            self._places.release()


Dispatch = Callable[[Delivery, PrefetchPlace], Coroutine[None, None, DistributedItem | None]]
"""Makes an item of a delivery, or None when there is nothing to attempt. The item's lease frees the
place when it ends."""


class DispatchPipeline:
    def __init__(
        self, deliveries: AsyncIterator[Delivery], prefetch: int, dispatch: Dispatch
    ) -> None:
        self._deliveries = deliveries
        self._dispatch = dispatch
        self._places = asyncio.Semaphore(prefetch)
        self._running: set[_Task] = set()
        self._ready: list[tuple[int, _Task]] = []
        self._changed = asyncio.Event()
        self._reader = asyncio.ensure_future(self._read())

    async def next_item(self) -> DistributedItem | None:
        """Return the next item; None when the queue was closed. Raises: permanent errors only."""
        while True:
            if self._ready:
                return heapq.heappop(self._ready)[1].result()
            if self._reader.done() and not self._running:
                self._reader.result()
                return None
            self._changed.clear()
            await self._changed.wait()

    async def close(self) -> None:
        """Cancel the consumer; what was not handed out goes back."""
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)
        left = {*self._running, *(task for _, task in self._ready)}
        for task in left:
            task.cancel()
        results = await asyncio.gather(*left, return_exceptions=True)
        await asyncio.gather(
            *(each.give_back() for each in results if isinstance(each, DistributedItem)),
            return_exceptions=True,
        )
        aclose = getattr(self._deliveries, "aclose", None)
        if aclose is not None:
            await aclose()

    async def _read(self) -> None:
        """Take a place first, then a delivery: the subscription keeps what the broker sent without
        a place for it, and gives it back at the end."""
        try:
            for number in count():
                await self._places.acquire()
                place = PrefetchPlace(self._places)
                try:
                    delivery = await anext(self._deliveries)
                except StopAsyncIteration:
                    return
                task = asyncio.ensure_future(self._dispatch(delivery, place))
                self._running.add(task)
                task.add_done_callback(self._when_done(number, place))
        finally:
            self._changed.set()

    def _when_done(self, number: int, place: PrefetchPlace) -> Callable[[_Task], None]:
        def note(task: _Task) -> None:
            self._running.discard(task)
            if task.cancelled() or (task.exception() is None and task.result() is None):
                place.free()
            else:
                heapq.heappush(self._ready, (number, task))
            self._changed.set()

        return note
