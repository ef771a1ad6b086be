"""The index in memory: live entries, counted and walked through, and the enqueue keys of a day.

The log has everything else of a mail, and is read on demand. Recovery takes a mail for accepted
that has a second KEY, or that it finds in what it reads of the other lanes: until a checkpoint made
the second KEY durable, no checkpoint lets recovery pass over the mail's records.
Source: FORMAT.md 6; ADR 0045."""

import asyncio
import heapq
from bisect import bisect
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from itertools import chain, count
from operator import attrgetter, itemgetter
from uuid import UUID

from postroad.domain.queues.references import KEY_LIFETIME
from postroad.domain.queues.selection import AGES
from postroad.domain.values.identifiers import LAST
from postroad.embedded.log.lanes import LaneLog
from postroad.embedded.log.layout import DEAD, HELD
from postroad.embedded.log.records import KeyRecord, encode
from postroad.embedded.log.segments import ENDED, LiveEntry, Segment


def latest(entry: LiveEntry) -> LiveEntry | None:
    """Return the entry that replaced this one last; None when the mail has ended."""
    found: LiveEntry | None = entry
    while found is not None and found.state is ENDED:
        found = found.successor
    return found


class Index:
    """Counts live entries, and walks through them."""

    def __init__(self, segments: Callable[[], Iterable[Segment]]) -> None:
        self._segments = segments
        self._walks: set[_Walk] = set()
        self.live = self.held = self.dead = 0

    def add(self, entry: LiveEntry) -> None:
        segment, found = entry.segment, entry.enqueue_id
        segment.live[entry.ordinal] = entry
        first, last = segment.ids or (found, found)
        if segment.ids is None or not first <= found <= last:
            segment.ids = (min(first, found), max(last, found))
        self._count(entry, 1)

    def remove(self, entry: LiveEntry) -> None:
        for each in self._walks:
            each.keep(entry)
        entry.state = ENDED
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

    def walk(
        self, *, dead: bool = False, after: bytes = b"", last: bytes | None = None
    ) -> Iterator[LiveEntry]:
        """Yield entries in the order of their enqueue ids, after an id and up to another. The walk
        follows an entry that is replaced meanwhile, skips one that ends, and leaves out later ones.
        """
        of_lanes = (each for each in self._segments() if (each.lane == DEAD) is dead)
        walk = _Walk(of_lanes, after, LAST.bytes if last is None else last)
        self._walks.add(walk)
        try:
            for entry in walk.merged():
                found = latest(entry)
                if found is not None and (found.segment.lane == DEAD) is dead:
                    yield found
        finally:
            self._walks.remove(walk)

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


class _Walk:
    """One walk through segments. A segment is copied and sorted when its first id is reached: who
    leaves after a page has waited for one, not for a million entries."""

    def __init__(self, segments: Iterable[Segment], after: bytes, last: bytes) -> None:
        self._after, self._last = after, last
        chosen = [
            (each.ids[0], each, each.next_ordinal)
            for each in segments
            if each.live and each.ids is not None and each.ids[0] <= last and each.ids[1] > after
        ]
        self._unopened = deque(sorted(chosen, key=itemgetter(0)))
        self._kept: dict[Segment, list[LiveEntry]] = {each: [] for _, each, _ in chosen}

    def keep(self, entry: LiveEntry) -> None:
        """Keep an entry that is about to leave its segment: its successor lies where this walk does
        not come, and a mail that is replaced meanwhile would be missed."""
        if (kept := self._kept.get(entry.segment)) is not None:
            kept.append(entry)

    def _open(self) -> Iterator[LiveEntry]:
        _, segment, end = self._unopened.popleft()
        found = [
            each
            for each in chain(segment.live.values(), self._kept.pop(segment))
            if self._after < each.enqueue_id <= self._last and each.ordinal < end
        ]
        found.sort(key=_BY_ID)
        return iter(found)

    def merged(self) -> Iterator[LiveEntry]:
        """Yield the entries that were there at the beginning."""
        heads: list[tuple[bytes, int, Iterator[LiveEntry], LiveEntry]] = []
        numbers = count()

        def push(number: int, run: Iterator[LiveEntry]) -> None:
            if (head := next(run, None)) is not None:
                heapq.heappush(heads, (head.enqueue_id, number, run, head))

        while heads or self._unopened:
            while self._unopened and (not heads or self._unopened[0][0] <= heads[0][0]):
                push(next(numbers), self._open())
            if heads:
                _, number, run, head = heapq.heappop(heads)
                yield head
                push(number, run)


LIFETIME_US = round(KEY_LIFETIME.total_seconds() * 1e6)


class KeyIndex:
    """The keys of one store. `under_way` are the enqueues that have a key and have not ended."""

    def __init__(self) -> None:
        self.under_way: dict[bytes, asyncio.Task[UUID]] = {}
        self._accepted: dict[bytes, KeyRecord] = {}
        self._open: dict[bytes, KeyRecord] = {}
        """By mail id: keys that recovery found, whose mails it has not found yet."""
        self._found: list[KeyRecord] = []
        self._latest: dict[int, int] = {}
        """When the latest key of each segment began, by the segment's number."""

    def standing(self, token: bytes, now_us: int) -> KeyRecord | None:
        """Return what a key stands for. Keys that are over are dropped, the oldest first."""
        while self._accepted:
            oldest = next(iter(self._accepted.values()))
            if not _is_over(oldest.accepted_us, now_us):
                break
            del self._accepted[oldest.token]
        return self._accepted.get(token)

    def append(self, lane: LaneLog, record: KeyRecord) -> int:
        """Append a KEY; return the position up to which its lane must be durable for it."""
        written = lane.append(*encode(record))
        self._note(written.segment.sequence, record)
        return written.end

    def _note(self, sequence: int, record: KeyRecord) -> None:
        self._latest[sequence] = max(self._latest.get(sequence, 0), record.accepted_us)
        if record.is_accepted:
            self._accepted[record.token] = record

    def first_needed(self, sequences: Iterable[int], now_us: int) -> int | None:
        """Return the first of these segments that has a key of the last day; None without one."""
        return next(
            (each for each in sequences if not _is_over(self._latest.get(each, 0), now_us)), None
        )

    # -- recovery --------------------------------------------------------------------------------

    def read(self, sequence: int, record: KeyRecord, now_us: int) -> None:
        """Take in a KEY of the log, in their order."""
        self._note(sequence, record)
        if record.is_accepted:
            self._open.pop(record.mail_id, None)
        elif not _is_over(record.accepted_us, now_us):
            self._open[record.mail_id] = record

    def see(self, mail_id: bytes) -> None:
        """Note that the log has a record of this mail, so that it was queued."""
        if (record := self._open.pop(mail_id, None)) is not None:
            self._found.append(record._replace(is_accepted=True))

    def settle(self) -> list[KeyRecord]:
        """Forget the keys whose mails were not found; return the second KEYs of the others."""
        self._open.clear()
        found, self._found = self._found, []
        return found


def _is_over(began_us: int, now_us: int) -> bool:
    return now_us - began_us >= LIFETIME_US
