"""Where an entry lies: the slice of time it was enqueued in, and a bucket of that slice.

Source: 000 Decision (sliceWindow, bucketCount).
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from postroad.domain.values.identifiers import EPOCH, moment_of


class Partition(NamedTuple):
    """One partition of the view: a bucket of a slice. `slice_start` is an aware UTC instant."""

    slice_start: datetime
    bucket_id: int


class EntryKey(NamedTuple):
    """The place of one entry in the view; unique, and enough to find its row and its mark."""

    slice_start: datetime
    bucket_id: int
    enqueue_id: UUID

    @property
    def partition(self) -> Partition:
        return Partition(self.slice_start, self.bucket_id)


def slice_of(moment: datetime, window: timedelta) -> datetime:
    """Return the start of the slice that holds `moment`.

    >>> from datetime import UTC
    >>> slice_of(datetime(2026, 1, 1, 10, 59, tzinfo=UTC), timedelta(hours=1)).isoformat()
    '2026-01-01T10:00:00+00:00'
    """
    return EPOCH + (moment - EPOCH) // window * window


def slices_between(first: datetime, last: datetime, window: timedelta) -> Iterator[datetime]:
    """Yield the starts of the slices from the one that holds `first` to that of `last`."""
    start = slice_of(first, window)
    while start <= last:
        yield start
        start += window


def bucket_of(enqueue_id: UUID, bucket_count: int) -> int:
    """Return the bucket of an id: the same in every process and version, evenly spread.

    The low 62 bits of an id are random, so their remainder is the hash. (A hash of the mail's name
    would gather all mails of one name in one partition.)
    """
    return (enqueue_id.int & ((1 << 62) - 1)) % bucket_count


def place(enqueue_id: UUID, window: timedelta, bucket_count: int) -> EntryKey:
    """Return where the entry of this id lies under a configuration."""
    slice_start = slice_of(moment_of(enqueue_id), window)
    return EntryKey(slice_start, bucket_of(enqueue_id, bucket_count), enqueue_id)
