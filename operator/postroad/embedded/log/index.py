"""The index in memory: live entries, counted and walked through, and the enqueue keys of a day.

The log has everything else of a mail, and is read on demand. Recovery takes a mail for accepted
that has a second KEY, or that it finds in what it reads of the other lanes: until a checkpoint made
the second KEY durable, no checkpoint lets recovery pass over the mail's records.
Source: FORMAT.md 6; ADR 0045."""

import asyncio
import heapq
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
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
        self.live = self.held = self.dead = 0

    def add(self, entry: LiveEntry) -> None:
        entry.segment.live[entry.ordinal] = entry
        self._count(entry, 1)

    def remove(self, entry: LiveEntry) -> None:
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
        """Yield entries in the order of their enqueue ids, after an id and up to another, from a
        snapshot of a word for each. The walk follows an entry that is replaced meanwhile, skips one
        that ends, and leaves out later ones."""
        runs = [
            _bounded(segment.live.values(), after, last)
            for segment in self._segments()
            if segment.live and (segment.lane == DEAD) is dead
        ]
        for entry in _merged([run for run in runs if run]):
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


def _bounded(entries: Iterable[LiveEntry], after: bytes, last: bytes | None) -> list[LiveEntry]:
    if not after and last is None:
        return list(entries)
    end = last or LAST.bytes
    return [each for each in entries if after < each.enqueue_id <= end]


def _merged(runs: list[list[LiveEntry]]) -> Iterator[LiveEntry]:
    """Merge runs by id. One is sorted when its first id is reached: who leaves after a page has not
    waited until a million are sorted."""
    starts = sorted(((_BY_ID(min(run, key=_BY_ID)), run) for run in runs), key=itemgetter(0))
    heads: list[tuple[bytes, int, Iterator[LiveEntry], LiveEntry]] = []

    def push(number: int, run: Iterator[LiveEntry]) -> None:
        if (head := next(run, None)) is not None:
            heapq.heappush(heads, (head.enqueue_id, number, run, head))

    opened = 0
    while heads or opened < len(starts):
        while opened < len(starts) and (not heads or starts[opened][0] <= heads[0][0]):
            push(opened, iter(sorted(starts[opened][1], key=_BY_ID)))
            opened += 1
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
