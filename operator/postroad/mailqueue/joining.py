"""Rows of a partition with the marks of their turns."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TypeVar
from uuid import UUID

from postroad.domain.slices import Partition
from postroad.domain.turns import Mark, PurgeLine
from postroad.ports.view import Signs, View

V = TypeVar("V")


async def with_marks(
    view: View,
    partition: Partition,
    rows: AsyncIterator[V],
    id_of: Callable[[V], UUID],
    after: UUID | None = None,
    signs: Signs | None = None,
) -> AsyncIterator[tuple[V, Mark | None]]:
    """Join rows, or what was read of them, with their marks: both come in the order of ids.

    A page of marks can be older than the page of rows it meets: then a turn that just ended is
    seen waiting, never the other way round. The line of a purge is older than the marks, read just
    before them if the caller has no signs: what has no mark behind it never gets one that says
    more.
    """
    line: PurgeLine | None = None
    marks: AsyncIterator[tuple[UUID, Mark]] | None = None
    head: tuple[UUID, Mark] | None = None
    async for row in rows:
        enqueue_id = id_of(row)
        if marks is None:
            line = (signs or await view.signs(partition)).line
            marks = view.marks(partition, after)
            head = await anext(marks, None)
        while head is not None and head[0] < enqueue_id:
            head = await anext(marks, None)
        if head is not None and head[0] == enqueue_id:
            yield row, head[1]
        else:
            yield row, line.mark_of(enqueue_id) if line is not None else None
