"""The rows of a partition joined with the marks of their entries."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Generic, TypeVar
from uuid import UUID

from postroad.domain.queues.entries import Mark, Partition
from postroad.domain.values.identifiers import FIRST
from postroad.ports.marks import PartitionStamp
from postroad.ports.view import View

V = TypeVar("V")


async def with_marks(
    view: View,
    partition: Partition,
    rows: AsyncIterator[V],
    id_of: Callable[[V], UUID],
    after: UUID | None = None,
    stamp: PartitionStamp | None = None,
) -> AsyncIterator[tuple[V, Mark | None]]:
    """Join rows, or what was read of them, with their marks: both come in the order of ids.

    A page of marks can be older than the page of rows it meets: then an entry that just ended is
    seen waiting, never the other way round. The stamp is read just before the rows, unless the
    caller has one, and its watermark holds: no mark is ever added at or below the purge watermark.
    """
    found = Ascending(view.marks(partition, after))
    async for row in rows:
        if stamp is None:
            stamp = await view.stamp(partition)
        enqueue_id = id_of(row)
        own = await found.at(enqueue_id)
        by_watermark = stamp.watermark.mark_of(enqueue_id) if stamp.watermark is not None else None
        yield row, own or by_watermark


class Ascending(Generic[V]):
    """Looks up ids, given in their order, in a stream in the order of ids."""

    def __init__(self, items: AsyncIterator[tuple[UUID, V]]) -> None:
        """Reads nothing before the first call of `at`."""
        self._items = items
        self._head: tuple[UUID, V | None] | None = (FIRST, None)

    async def at(self, enqueue_id: UUID) -> V | None:
        """Return the value under an id, None where there is none."""
        while self._head is not None and self._head[0] < enqueue_id:
            self._head = await anext(self._items, None)
        return self._head[1] if self._head is not None and self._head[0] == enqueue_id else None
