"""Size: rows less marks, counted on the servers, partition by partition; no mail is read.

Entries at or below a purge watermark are not counted. A closed slice is counted once, and again
when its version has changed.

Rows less marks is wrong by one for each mark without a row, and for each mail whose replacement
stopped before its successor's row. Both are looked up where entries ended otherwise than by
delivery, so that a process that ended between two steps leaves `size` right.

Marks outlive rows, in a slice that is kept for longer than some of its rows live. Such a slice is
older than rows live now, or has fewer rows than were counted at its close. What is left of it is
read, up to `MAX_READ` of all slices together; where more is left, the result is too small by the
marks whose rows expired, and is `at_least`.

The due mail that waits longest: rows are read from where none waits before, in the order of slices
and ids, until no later row can have waited longer.

Ages: waiting mails by destination domain and age, as Postfix' qshape shows them.

A closed partition gets no more rows, so its mails are read again only when its version has changed;
until then the cache keeps the moments at which they were accepted, eight octets for each mail. A
mail that changes its entry during the count may be missing from it or be counted twice."""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from itertools import pairwise
from uuid import UUID

from postroad.distributed.engine.engine import Engine
from postroad.distributed.engine.limits_cache import Beginning
from postroad.distributed.engine.timing import results
from postroad.distributed.entries.live_slices import live_partitions
from postroad.distributed.entries.replacement import replacement_of
from postroad.distributed.reading.browse import joined
from postroad.domain.queues.documents import Sizes
from postroad.domain.queues.entries import Entry, Mark, Partition, Traits, UndecodableRow
from postroad.domain.queues.selection import AGES
from postroad.domain.values.identifiers import moment_of
from postroad.errors import ViewError
from postroad.ports.marks import Counts, PartitionVersion
from postroad.ports.view import FOREVER, ClosedSlice, View
from postroad.telemetry import metrics

REMEMBERED = timedelta(hours=1)
"""Time that a count is kept at most: rows that expire change no version, nor does a writer whose
clock is far off."""

MAX_READ = 10_000
"""Rows and marks that one count of a queue reads, over all partitions; with more, an operator that
asks every half minute would read without end."""

MAX_SOUGHT = 1_000
"""Rows that one count reads to find the due mail that waits longest: a queue that drains and fills
by more between two counts has none that is found."""

LOOKED_UP = 10
"""Number of entries that, read page by page take as long as one mark that is looked up."""


@dataclass(frozen=True, slots=True)
class _Counted:
    version: PartitionVersion
    live: Counts
    until: timedelta


@dataclass(slots=True)
class KeptCounts:
    """Counts that the counts of a queue leave for the next ones, whichever engine makes those: the
    closed slices, how far all is over, and the dead letters with how long their number stands."""

    closed: dict[Partition, _Counted] = field(default_factory=dict)
    over: dict[Partition, UUID] = field(default_factory=dict)
    """Rows up to this id have final marks."""
    marks: dict[Partition, int] = field(default_factory=dict)
    """Those with the outcomes of an attempt."""
    attempted: int = 0
    """Marks with outcomes that came from one count to the next, of all counts: attempts of workers.
    What administration and maintenance end has none."""
    dead_letters: int = 0
    dead_letters_until: timedelta | None = None


@dataclass(slots=True)
class _Call:
    """One count of a queue: when it began, how long rows live, and how much it may still read."""

    began: Beginning
    row_lifetime: timedelta
    left: int
    is_first: bool
    at_least: bool = False
    due: list[Partition] = field(default_factory=list)
    """Those with mails that are due."""

    @property
    def now(self) -> datetime:
        return self.began.at

    def takes(self, count: int) -> bool:
        """True if so many rows and marks may be read; they count from then on."""
        if count > self.left:
            return False
        self.left -= count
        return True


class SizeCache:
    """Counts what waits, and caches the counts of closed slices."""

    def __init__(self, engine: Engine, kept: KeptCounts | None = None) -> None:
        self._engine = engine
        self._kept = kept or KeptCounts()

    async def get(self) -> Sizes:
        """Count the mails that wait. Raises: ViewError, ConfigurationStale."""
        engine = self._engine
        began = await engine.limits_cache.begin()
        if began.browse_start is None:
            return Sizes(0, 0, 0, await self._count_dead_letters())
        self._forget_before(began.browse_start)
        row_lifetime = await engine.row_lifetime() or FOREVER
        call = _Call(began, row_lifetime, MAX_READ, not self._kept.marks)
        counted, dead_letters = await asyncio.gather(
            self._count_all(call), self._count_dead_letters()
        )
        oldest = await self._oldest_due(call)
        return Sizes(
            *(counted.total, counted.delayed, counted.held, dead_letters, call.at_least), oldest
        )

    def forget(self) -> None:
        """Count everything anew the next time."""
        self._kept.closed.clear()
        self._kept.over.clear()
        self._kept.dead_letters_until = None

    async def _count_all(self, call: _Call) -> Counts:
        total = delayed = held = 0
        waiting = live_partitions(self._engine, call.began)
        async for each in results(waiting, partial(self._live, call)):
            total, delayed, held = total + each.total, delayed + each.delayed, held + each.held
        return Counts(total, delayed, held)

    async def _live(self, call: _Call, where: tuple[Partition, ClosedSlice | None]) -> Counts:
        found = await self._counted(call, where)
        if found.total > found.delayed + found.held:
            call.due.append(where[0])
        return found

    async def _oldest_due(self, call: _Call) -> datetime | None:
        oldest, left = None, MAX_SOUGHT
        for partition in sorted(call.due):
            if oldest is not None and partition.slice_start >= oldest:
                break
            oldest, left = await self._older_due(call, partition, oldest, left)
        return oldest

    async def _older_due(
        self, call: _Call, partition: Partition, oldest: datetime | None, left: int
    ) -> tuple[datetime | None, int]:
        """Return since when a mail is due, `oldest` or of this partition, and how many rows may
        still be read. Only rows that are old enough that no earlier one can come are passed."""
        over, all_over = self._kept.over, True
        settled = call.now - self._engine.timing.deadline - self._engine.timing.apart
        rows = joined(self._engine.view, [partition], over.get(partition))
        async with aclosing(rows) as found:
            async for row, mark in found:
                began = moment_of(row.enqueue_id)
                if left == 0 or (oldest is not None and began >= oldest):
                    break
                left -= 1
                is_over = not isinstance(row, Entry) or (mark is not None and mark.is_final)
                all_over = all_over and is_over and began < settled
                if all_over:
                    over[partition] = row.enqueue_id
                if isinstance(row, Entry) and mark is None and not row.held:
                    since = max(row.enqueued_at, row.due_at or row.enqueued_at)
                    if since <= call.now:
                        oldest = since if oldest is None else min(oldest, since)
        return oldest, left

    async def _counted(self, call: _Call, where: tuple[Partition, ClosedSlice | None]) -> Counts:
        """Count a partition, or return its cached count: once none of its mails is delayed any
        more, it only changes with its marks. (A successor that was given up gets its row and its
        mark at any time; the mark changes the version.)"""
        engine = self._engine
        partition, closed = where
        version = await engine.view.version(partition)
        known = self._kept.closed.get(partition)
        if known and known.version == version and engine.clock.elapsed() < known.until:
            return known.live
        live, is_settled = await self._count(call, partition, closed, version)
        if (
            closed is not None
            and is_settled
            and not live.delayed
            and version.settled(call.now - 3 * engine.timing.skew)
        ):
            until = engine.clock.elapsed() + REMEMBERED
            self._kept.closed[partition] = _Counted(version, live, until)
        return live

    async def _count(
        self,
        call: _Call,
        partition: Partition,
        closed: ClosedSlice | None,
        version: PartitionVersion,
    ) -> tuple[Counts, bool]:
        """Count what waits, and whether that can only change together with the version: a
        replacement under way ends without a further mark. Marks are counted first: every mark has
        its row by then, so no count is ever negative."""
        view, now = self._engine.view, call.now
        marks = await view.count_marks(partition, now, version.purged)
        rows = await view.count_rows(partition, now, version.purged)
        known = self._kept.marks.get(partition, marks.attempted if call.is_first else 0)
        self._kept.attempted += max(0, marks.attempted - known)
        self._kept.marks[partition] = marks.attempted
        missing, is_settled = await self._unfinished(partition, version)
        if marks.total and await self._may_have_expired(call, partition, closed, version, rows):
            pairs = self._read(call, partition, version.purged, rows, marks)
            if pairs is None:
                call.at_least, is_settled = True, False
            else:
                rows, marks = await _unmarked(pairs, now), Counts(0, 0, 0)
        if marks.total and version.ended is not None:
            withdrawn = view.withdrawn_without_rows(partition, version.purged)
            missing += [each async for each in withdrawn]
        more = Counts.of(missing, now)
        delayed = max(rows.delayed - marks.delayed + more.delayed, 0)
        held = max(rows.held - marks.held + more.held, 0)
        total = max(rows.total - marks.total + more.total, delayed + held)
        return Counts(total, delayed, held), is_settled

    async def _may_have_expired(
        self,
        call: _Call,
        partition: Partition,
        closed: ClosedSlice | None,
        version: PartitionVersion,
        rows: Counts,
    ) -> bool:
        """Return whether rows of a partition may have expired: those that were written first are as
        old as rows become, or some were counted at the close and are gone. The second shows those
        that were written while rows lived shorter than now."""
        if call.began.latest - partition.slice_start >= call.row_lifetime:
            return True
        if closed is None:
            return False
        if version.purged is not None:
            rows = await self._engine.view.count_rows(partition, None)
        return rows.total < closed.rows.get(partition.bucket_id, 0)

    def _read(
        self, call: _Call, partition: Partition, after: UUID | None, rows: Counts, marks: Counts
    ) -> AsyncIterator[tuple[Entry | UndecodableRow, Mark | None]] | None:
        """Read the rows of a partition with their marks, page by page or, where rows are few beside
        their marks, mark by mark; None where the call would read too much."""
        view = self._engine.view
        all_pages, each_mark = rows.total + marks.total, LOOKED_UP * rows.total
        if not call.takes(min(all_pages, each_mark)):
            return None
        if each_mark < all_pages:
            return _looked_up(view, partition, after)
        return joined(view, [partition], after)

    async def _unfinished(
        self, partition: Partition, version: PartitionVersion
    ) -> tuple[list[Traits], bool]:
        """Return the mails whose replacements stopped before their successors' rows, and whether no
        replacement is under way."""
        if version.ended is None:
            return [], True
        view, is_settled = self._engine.view, True
        missing: list[Traits] = []
        async for mark, traits in view.unfinished(partition, version.purged):
            if not mark.is_unfinished_replacement:
                continue  # undecodable: nothing waits under it
            is_settled = False
            successor, change = replacement_of(mark)
            if await view.row(successor) is not None:
                continue
            after = await view.mark(successor)
            waits = after is None and mark.is_live
            has_mark_alone = after is not None and after.delivered_at is not None
            if waits or has_mark_alone:
                missing.append(Traits(traits.domains, change.due_at, change.held))
        return missing, is_settled

    def _forget_before(self, first: datetime) -> None:
        for kept in (self._kept.closed, self._kept.over, self._kept.marks):
            for partition in [each for each in kept if each.slice_start < first]:
                del kept[partition]

    async def _count_dead_letters(self) -> int | None:
        """Count dead letters; None where the view does not answer: waiting mail is counted still.
        A count is repeated after ten times its duration, so that counting takes at most a tenth of
        the view's time."""
        engine, known, began = self._engine, self._kept, self._engine.clock.elapsed()
        if known.dead_letters_until is not None and began < known.dead_letters_until:
            return known.dead_letters
        try:
            known.dead_letters = await engine.view.count_dead_letters()
        except ViewError as error:
            metrics.UNCOUNTED.labels(*engine.labels).inc()
            engine.log.warning("the dead letters could not be counted", error=error.explain())
            return None
        now = engine.clock.elapsed()
        known.dead_letters_until = now + 10 * (now - began)
        return known.dead_letters


async def _looked_up(
    view: View, partition: Partition, after: UUID | None
) -> AsyncIterator[tuple[Entry | UndecodableRow, Mark | None]]:
    async for row in view.rows(partition, after):
        yield row, await view.mark(row.key)


async def _unmarked(
    pairs: AsyncIterator[tuple[Entry | UndecodableRow, Mark | None]], now: datetime
) -> Counts:
    """Count the rows without a mark. One that is undecodable counts as neither delayed nor held."""
    total = delayed = held = 0
    async for row, mark in pairs:
        if mark is None:
            one = Counts.of([row.traits if isinstance(row, Entry) else Traits(())], now)
            total, delayed, held = total + 1, delayed + one.delayed, held + one.held
    return Counts(total, delayed, held)


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
