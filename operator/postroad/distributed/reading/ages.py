"""Ages: waiting mails by destination domain and age, as Postfix' qshape shows them.

A closed partition gets no more rows, so its mails are read again only when its version has changed;
until then the cache keeps the moments at which they were accepted, eight octets for each mail. A
mail that changes its entry during the count may be missing from it or be counted twice.
"""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise

from postroad.distributed.engine.engine import Engine
from postroad.distributed.engine.timing import results
from postroad.distributed.entries.live_slices import live_partitions
from postroad.distributed.reading.browse import joined
from postroad.distributed.reading.size import REMEMBERED
from postroad.domain.queues.entries import Entry, Partition
from postroad.domain.queues.selection import AGES
from postroad.ports.marks import PartitionVersion
from postroad.ports.view import ClosedSlice

Ages = Mapping[str, Mapping[timedelta, int]]

AT_ONCE = 4
"""Partitions read at the same time."""


@dataclass(frozen=True, slots=True)
class _Picture:
    """The waiting mails of a partition: for each domain the moments of acceptance, in seconds since
    the epoch, sorted. `version`: the partition's, read before the rows; the picture is valid until
    `until`."""

    version: PartitionVersion
    until: timedelta
    accepted: Mapping[str, array[float]]


class AgesCache:
    """Counts at most once in `timing.ages`, however many callers ask."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._counting = asyncio.Lock()
        self._at = timedelta(0)
        self._answer: Ages | None = None
        self._closed: dict[Partition, _Picture] = {}

    async def get(self) -> Ages:
        """Return the ages. Raises: ViewError, ConfigurationStale."""
        async with self._counting:
            now = self._engine.clock.elapsed()
            if self._answer is None or now - self._at > self._engine.timing.ages:
                self._answer, self._at = await self._count(), now
            return self._answer

    def forget(self) -> None:
        """Count everything anew the next time."""
        self._closed.clear()
        self._answer = None

    async def _count(self) -> Ages:
        engine = self._engine
        began = await engine.limits_cache.begin()
        if began.browse_start is None:
            return {}
        self._forget_before(began.browse_start)
        waiting = live_partitions(engine, began)
        pictures = [each async for each in results(waiting, self._picture, AT_ONCE)]
        return _ages(pictures, began.at)

    async def _picture(self, where: tuple[Partition, ClosedSlice | None]) -> _Picture:
        engine = self._engine
        partition, closed = where
        # Read before the rows: a mark that comes meanwhile only causes one more reading.
        version = await engine.view.version(partition)
        known = self._closed.get(partition)
        if known and known.version == version and engine.clock.elapsed() < known.until:
            return known
        latest = engine.limits_cache.now() - 3 * engine.timing.skew
        picture, is_settled = await self._read(partition, version)
        if closed is not None and is_settled and version.settled(latest):
            self._closed[partition] = picture
        return picture

    async def _read(self, partition: Partition, version: PartitionVersion) -> tuple[_Picture, bool]:
        """Return the waiting mails, and whether they can only change together with the version: a
        replacement under way ends without a further mark."""
        accepted: dict[str, array[float]] = defaultdict(lambda: array("d"))
        is_settled = True
        async for row, mark in joined(self._engine.view, [partition], version.purged):
            if isinstance(row, Entry) and (mark is None or mark.is_live):
                for domain in row.envelope.domains:
                    accepted[domain].append(row.accepted_at.timestamp())
            is_settled &= mark is None or not mark.is_unfinished_replacement
        for domain, moments in accepted.items():
            accepted[domain] = array("d", sorted(moments))
        until = self._engine.clock.elapsed() + REMEMBERED
        return _Picture(version, until, accepted), is_settled

    def _forget_before(self, first: datetime) -> None:
        for partition in [each for each in self._closed if each.slice_start < first]:
            del self._closed[partition]


def _ages(pictures: list[_Picture], now: datetime) -> Ages:
    """Count each mail under the first limit of AGES that its age is below."""
    reached = [(now - limit).timestamp() for limit in AGES[:-1]]
    counts: dict[str, dict[timedelta, int]] = defaultdict(lambda: dict.fromkeys(AGES, 0))
    for picture in pictures:
        for domain, moments in picture.accepted.items():
            # An age equal to the limit is not below it.
            past = [len(moments), *(bisect_right(moments, moment) for moment in reached), 0]
            for limit, (before, after) in zip(AGES, pairwise(past), strict=True):
                counts[domain][limit] += before - after
    return counts
