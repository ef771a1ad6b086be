"""How James 3.8.1 browses, over our rows: what its ADR 32 gives up for a mark of its own per mail.

A slice is read whole and sorted before its first mail is shown; then each mail costs one read of
its mark, four at a time. Its further download of every mail's two blobs is left out in its favour.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from bench.bulk import BUCKETS, WINDOW, Bulk
from postroad.domain.queues.entries import Entry, Mark, Partition

IN_FLIGHT = 4


async def browse(queue: Bulk, slices: int) -> AsyncIterator[Entry]:
    """Yield the waiting mails of a loaded queue's first slices, oldest first."""
    view = queue.where.servers.views().view(str(queue.name))
    for number in range(min(slices, queue.slices)):
        start = queue.first + number * WINDOW
        partitions = [Partition(start, bucket) for bucket in range(BUCKETS)]
        rows = [row for each in partitions async for row in view.rows(each)]
        found = [row for row in rows if isinstance(row, Entry)]
        found.sort(key=lambda entry: entry.enqueued_at)
        asked: deque[tuple[Entry, asyncio.Task[Mark | None]]] = deque()
        for entry in found:
            if len(asked) == IN_FLIGHT:
                first, mark = asked.popleft()
                if await mark is None:
                    yield first
            asked.append((entry, asyncio.create_task(view.mark(entry.key))))
        for entry, mark in asked:
            if await mark is None:
                yield entry
