"""Reads the dead letters of a queue, however many were deleted.

The letters of a month are one partition, and each that is requeued or discarded leaves a tombstone
there until `gc_grace_seconds` are over. Cassandra refuses a request that meets more than 100,000 of
them (`tombstone_failure_threshold`). So the reader reads a month in ranges of ids, and halves a
range that is refused. Source: ADR 0025.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from uuid import UUID

from postroad.adapters.cassandra.connection.loop_bridge import Row
from postroad.adapters.cassandra.connection.session import Session
from postroad.adapters.cassandra.connection.translation import TooManyTombstones
from postroad.adapters.cassandra.statements import letters
from postroad.domain.values.identifiers import EPOCH, FIRST, LAST, id_at

Range = tuple[UUID, UUID]
"""Ids after the first, up to the second inclusive."""


def month_of_gone(month: str) -> str:
    """Return the partition of the notes about letters of a month that were deleted."""
    return f"{month} gone"


class LetterReader:
    """Reads the letters of one queue. It remembers the ranges of a month, so that it requests a
    refused one only once."""

    def __init__(self, session: Session, queue: str) -> None:
        self._session = session
        self._queue = queue
        self._bounds: dict[str, set[UUID]] = {}

    async def months(self) -> list[str]:
        """Return the months that may hold letters, in order."""
        found = self._session.pages(letters.SELECT_MONTHS, (self._queue,))
        return [row["month"] async for page in found for row in page]

    async def letters(self, month: str) -> AsyncIterator[Row]:
        """Yield the letters of a month in the order of their ids, page by page."""
        ranges = self._ranges(month)
        while ranges:
            after, through = ranges.pop()
            try:
                place = (self._queue, month, after, through)
                async for page in self._session.pages(letters.SELECT_LETTERS, place):
                    for row in page:
                        yield row
                        after = row["enqueue_id"]
            except TooManyTombstones as error:
                ranges += self._halves(month, after, through, error)

    async def count(self, month: str) -> int:
        """Count the letters of a month, on the server."""
        total, ranges = 0, self._ranges(month)
        while ranges:
            after, through = ranges.pop()
            try:
                place = (self._queue, month, after, through)
                [row] = await self._session.execute(letters.COUNT_LETTERS, place)
                total += row["count"]
            except TooManyTombstones as error:
                ranges += self._halves(month, after, through, error)
        return total

    def _ranges(self, month: str) -> list[Range]:
        """Return the ranges of a month, the first one last: they are popped."""
        bounds = sorted(self._bounds.get(month, ()))
        return list(pairwise([FIRST, *bounds, LAST]))[::-1]

    def _halves(
        self, month: str, after: UUID, through: UUID, refusal: TooManyTombstones
    ) -> list[Range]:
        """Halve a refused range; the first half comes last."""
        bound = middle(month, after, through)
        if bound is None:
            raise refusal
        self._bounds.setdefault(month, set()).add(bound)
        return [(bound, through), (after, bound)]


def middle(month: str, after: UUID, through: UUID) -> UUID | None:
    """Return the id that halves a range: the begin or the end of the month, because nearly all its
    ids are in between, else the middle in time. None: the range is within a millisecond.

    >>> str(middle("2026-01", FIRST, LAST))
    '019b76da-a800-7000-8000-000000000000'
    """
    first, last = after.int >> 80, through.int >> 80
    for edge in _edges(month):
        if first < edge < last:
            return _id(edge)
    half = (first + last) // 2
    return _id(half) if first < half else None


def _edges(month: str) -> Iterator[int]:
    """Yield where a month begins and where it ends, in milliseconds."""
    start = datetime.strptime(month, "%Y-%m").replace(tzinfo=UTC)
    for edge in (start, (start + timedelta(days=31)).replace(day=1)):
        yield (edge - EPOCH) // timedelta(milliseconds=1)


def _id(millisecond: int) -> UUID:
    return id_at(EPOCH + timedelta(milliseconds=millisecond), 0, 0)
