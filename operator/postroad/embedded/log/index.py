"""The index of live entries: counts, the walk in the order of their ids, and their ages.

The segments have the entries; the log has everything else of a mail, and is read on demand.
"""

from __future__ import annotations

import heapq
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from operator import attrgetter

from postroad.domain.queues.selection import AGES
from postroad.embedded.log.layout import DEAD, HELD
from postroad.embedded.log.segments import LiveEntry, Segment, State


def latest(entry: LiveEntry) -> LiveEntry | None:
    """Return the entry that replaced this one last; None when the mail has ended."""
    found: LiveEntry | None = entry
    while found is not None and found.state is State.ENDED:
        found = found.successor
    return found


class Index:
    """Counts live entries, and walks through them."""

    def __init__(self, segments: Callable[[], Iterable[Segment]]) -> None:
        self._segments = segments
        self.live = self.held = self.dead = 0

    def add(self, entry: LiveEntry) -> None:
        """Add a live entry."""
        entry.segment.live[entry.ordinal] = entry
        self._count(entry, 1)

    def remove(self, entry: LiveEntry) -> None:
        """Remove an entry that was replaced or finished."""
        entry.state = State.ENDED
        del entry.segment.live[entry.ordinal]
        entry.segment.garbage.add(entry.ordinal)
        self._count(entry, -1)

    def set_held(self, entry: LiveEntry, held: bool) -> None:
        """Count a working entry as held, or no longer."""
        self.held += held - entry.held_next
        entry.held_next = held

    def _count(self, entry: LiveEntry, by: int) -> None:
        lane = entry.segment.lane
        if lane == DEAD:
            self.dead += by
        else:
            self.live += by
            self.held += by if lane == HELD or entry.held_next else 0

    def walk(self, *, dead: bool = False) -> Iterator[LiveEntry]:
        """Yield entries in the order of their enqueue ids, from a snapshot of a word for each. The
        walk follows an entry that is replaced meanwhile, skips one that ends, and leaves out later
        ones."""
        runs = [
            sorted(segment.live.values(), key=_BY_ID)
            for segment in self._segments()
            if segment.live and (segment.lane == DEAD) is dead
        ]
        for entry in heapq.merge(*runs, key=_BY_ID):
            found = latest(entry)
            if found is not None and (found.segment.lane == DEAD) is dead:
                yield found

    def ages(self, now_us: int) -> Mapping[str, Mapping[timedelta, int]]:
        """Count live entries by destination domain and age since acceptance."""
        found: dict[str, dict[timedelta, int]] = {}
        bounds = [limit // timedelta(microseconds=1) for limit in AGES]
        for segment in self._segments():
            if segment.lane == DEAD:
                continue
            for entry in segment.live.values():
                limit = AGES[min(bisect(bounds, now_us - entry.accepted_us), len(AGES) - 1)]
                for domain in entry.domains.split():
                    found.setdefault(domain, dict.fromkeys(AGES, 0))[limit] += 1
        return found


_BY_ID = attrgetter("enqueue_id")
