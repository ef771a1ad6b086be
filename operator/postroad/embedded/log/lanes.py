"""A lane: appends records to segments, and makes many durable by one sync (group commit).

An append changes memory only. A flush is one call in a thread: it writes all records appended so
far, to one or several segments, and syncs once for all who wait. Records appended meanwhile go with
the next flush.
Source: LQ-18, LQ-29, AMB-5."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from postroad.embedded.log import frames, segments
from postroad.embedded.log.layout import NEW, Lane, Layout
from postroad.embedded.log.options import MIB
from postroad.embedded.log.records import ENVELOPE
from postroad.embedded.log.segments import Header, Segment
from postroad.errors import PostroadError, QueueClosed
from postroad.ports.files import Files, Threads


@dataclass(frozen=True, slots=True)
class Batch:
    """Frames for one segment, from `offset` on. `earlier`: the segment before it of this process,
    in the first batch of a segment."""

    segment: Segment
    offset: int
    parts: list[bytes] = field(default_factory=list)
    earlier: Segment | None = None


def write(files: Files, layout: Layout, batches: list[Batch], to_sync: Segment | None) -> None:
    """Write batches, and sync `to_sync`. Blocking."""
    for batch in batches:
        segment = batch.segment
        if segment.file is None:
            if batch.earlier is not None:  # AMB-5: only the newest segment may need a sync
                batch.earlier.opened().sync()
            segments.make(files, layout, segment)
        if batch.parts:
            segment.opened().pwrite(batch.offset, b"".join(batch.parts))
    if to_sync is not None:
        to_sync.opened().sync()


def part_at(batches: Iterable[Batch], segment: Segment, offset: int) -> bytes | None:
    """Return the frame at an offset of a segment; None when the batches do not have it."""
    for batch in batches:
        if batch.segment is segment and offset >= batch.offset:
            at = batch.offset
            for part in batch.parts:
                if at == offset:
                    return part
                at += len(part)
    return None


FLUSH_DELAY_SECONDS = 0.2
"""Time that records stay in memory when no caller waits for them."""

FIRST_BYTES = MIB
"""Size of a process' first segment of lane `new`. It is small, because the first mail waits until
zeros fill it. Each after it has twice the size."""

RECENT = 4096
"""ENVELOPEs kept in memory, so that consumers lease new mail without reading the log."""


class Written(NamedTuple):
    """The place of an appended record."""

    segment: Segment
    offset: int
    length: int
    ordinal: int
    end: int
    """The record is durable when its lane is durable up to this position."""

    @property
    def position(self) -> int:
        return self.segment.origin + self.offset


@dataclass(frozen=True, slots=True)
class SegmentSizes:
    """Sizes of a store's new segments: see `Options`."""

    segment_bytes: int
    envelopes: int


class LaneLog:
    """Appends to one lane, and has the list of its segments, oldest first."""

    def __init__(
        self,
        lane: Lane,
        files: Files,
        layout: Layout,
        sizes: SegmentSizes,
        *,
        threads: Threads,
        salt: Callable[[], bytes],
        now_us: Callable[[], int],
        stop: Callable[[Exception], None],
        segments_found: list[Segment] | None = None,
    ) -> None:
        self.lane = lane
        self.loop = asyncio.get_running_loop()
        """Kept: CPython 3.11 asks for the process id at each `get_running_loop`."""
        self.segments = list(segments_found or ())
        self._files, self._layout, self._sizes = files, layout, sizes
        self._threads, self._salt, self._now_us, self._stop = threads, salt, now_us, stop
        self._current: Segment | None = None
        newest = self.segments[-1] if self.segments else None
        self.durable = self.end = newest.end_position if newest else 0
        self.next_sequence = newest.sequence + 1 if newest else 1
        self._last: Segment | None = None
        self._batches: list[Batch] = []
        self._in_flight: list[Batch] = []
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._then: deque[tuple[int, Callable[[], object]]] = deque()
        self._wanted = 0
        self._flush: asyncio.Task[None] | None = None
        self._flush_timer: asyncio.TimerHandle | None = None
        self._sync_timer: asyncio.TimerHandle | None = None
        self._failure: PostroadError | None = None
        self._recent: dict[int, bytes] = {}

    def appends_to(self, segment: Segment) -> bool:
        """True if this process appends to a segment. It never appends to those of earlier ones."""
        return segment is self._current

    def leave_segment(self, before_us: int) -> None:
        """Append to a new segment from now on, if the present one was begun before this moment, has
        records, and all of them are durable: the next one needs no sync of it then (AMB-5)."""
        current = self._current
        if current is None or self._batches or self._in_flight or self.durable < self.end:
            return
        if current.header.created_us < before_us and current.end > current.header.first:
            self._current = None

    def began_before(self, moment_us: int) -> bool:
        """True if this process appends to a segment that it began before a moment."""
        return self._current is not None and self._current.header.created_us < moment_us

    def skip_to(self, sequence: int) -> None:
        """Give the next segment at least this sequence number."""
        self.next_sequence = max(self.next_sequence, sequence)

    def append(self, record_type: int, payload: bytes) -> Written:
        """Append a record in memory. Raises: StoreFailed once the store has stopped."""
        if self._failure is not None:
            raise self._failure
        size = frames.frame_size(len(payload))
        segment = self._current
        if segment is None or not segment.fits(size):
            segment = self._rotate(size)
        is_envelope = record_type == ENVELOPE
        ordinal = segment.next_ordinal if is_envelope else 0
        offset = segment.end
        frame = frames.encode(segment.seed, record_type, ordinal, self.durable, payload)
        if not self._batches:
            self._batches.append(Batch(segment, offset))
        self._batches[-1].parts.append(frame)
        segment.end += len(frame)
        segment.next_ordinal += is_envelope
        self.end = segment.end_position
        if self._flush_timer is None:
            self._flush_timer = self.loop.call_later(FLUSH_DELAY_SECONDS, self._flush_unasked)
        written = Written(segment, offset, len(payload), ordinal, self.end)
        if is_envelope:
            self._remember(written.position, payload)
        return written

    def _rotate(self, size: int) -> Segment:
        """Plan the next segment; the flush that first writes to it makes the file."""
        sizes, wanted = self._sizes, self._sizes.segment_bytes
        if self.lane == NEW:
            # Zeros fill it before use: for few records a large one costs more than it saves.
            wanted = min(wanted, 2 * self._current.header.limit if self._current else FIRST_BYTES)
        limit = max(wanted, segments.HEADER_BLOCK + sizes.envelopes + size)
        previous_end = self.end
        header = Header(
            lane=self.lane,
            sequence=self.next_sequence,
            envelopes=sizes.envelopes,
            limit=limit,
            salt=self._salt(),
            previous_end=previous_end,
            created_us=self._now_us(),
        )
        segment = Segment.planned(header)
        self.next_sequence += 1
        self._batches.append(Batch(segment, segment.end, earlier=self._current))
        self._current = segment
        self.segments.append(segment)
        return segment

    def _remember(self, where: int, payload: bytes) -> None:
        self._recent[where] = payload
        if len(self._recent) > RECENT:
            del self._recent[next(iter(self._recent))]

    def recall(self, where: int) -> bytes | None:
        """Return the payload of a recent ENVELOPE from memory; None for an older one."""
        return self._recent.get(where)

    def forget(self, where: int) -> None:
        """Drop the payload of an ENVELOPE that became garbage."""
        self._recent.pop(where, None)

    async def commit(self, position: int, max_wait: float = 0.0) -> None:
        """Wait until the lane is durable up to `position`; see `durable_at`.
        Raises: StoreFailed, StoreFull; the store has stopped then."""
        await self.durable_at(position, max_wait)

    def durable_at(self, position: int, max_wait: float = 0.0) -> asyncio.Future[None]:
        """Return a future that is done when the lane is durable up to `position`. `max_wait`, in
        seconds: how long to wait for the sync of another record before this one starts its own. The
        shorter wait of another caller counts for both."""
        waiter: asyncio.Future[None] = self.loop.create_future()
        if self._failure is not None:
            waiter.set_exception(self._failure)
        elif position <= self.durable:
            waiter.set_result(None)
        else:
            self._waiters.append((position, waiter))
            if max_wait <= 0:
                self._want(position)
            elif self._sync_timer is None:
                self._sync_timer = self.loop.call_later(max_wait, self._want_all)
        return waiter

    @property
    def waiters(self) -> int:
        """Number of callers that wait for a sync."""
        return len(self._waiters)

    def when_durable(self, position: int, then: Callable[[], object]) -> None:
        """Call `then` when the lane is durable up to `position`; never if the store stops."""
        if position <= self.durable:
            then()
        else:
            self._then.append((position, then))

    def _want(self, position: int) -> None:
        self._wanted = max(self._wanted, position)
        if self._flush is None and self._wanted > self.durable and self._failure is None:
            self._start_flush(sync=True)

    def _want_all(self) -> None:
        self._sync_timer = None
        if self._waiters:
            self._want(max(position for position, _ in self._waiters))

    def _flush_unasked(self) -> None:
        self._flush_timer = None
        if self._flush is None and self._batches and self._failure is None:
            self._start_flush(sync=False)

    def _start_flush(self, *, sync: bool) -> None:
        self._flush = self.loop.create_task(self._run_flush(sync))

    async def _run_flush(self, sync: bool) -> None:
        self._in_flight, self._batches = self._batches, []
        if self._in_flight:
            self._last = self._in_flight[-1].segment
        # Before the wait: what is appended during it is not in this sync, and a cut would take mail
        # whose callers have their answer.
        target = self.end
        try:
            await self._threads.run(self._write, self._in_flight, self._last if sync else None)
        except Exception as error:  # of any kind: the file may lack what was taken from memory
            self._stop(error)  # no second try: a sync may pass over what the first one lost (A1)
            return
        finally:
            self._flush = None
        for batch in self._in_flight:
            batch.segment.written = batch.offset + sum(map(len, batch.parts))
        self._in_flight = []
        if sync:
            self._note_durable(target)
        if self._wanted > self.durable and self._failure is None:
            self._start_flush(sync=True)

    def _note_durable(self, durable: int) -> None:
        self.durable = durable
        waiters, self._waiters = self._waiters, []
        for position, waiter in waiters:
            if position > durable:
                self._waiters.append((position, waiter))
            elif not waiter.done():
                waiter.set_result(None)
        while self._then and self._then[0][0] <= durable:
            self._then.popleft()[1]()

    def fail(self, error: PostroadError) -> None:
        """Fail all waiting callers, and every call from now on."""
        self._failure = error
        for _, waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(error)
        self._waiters.clear()
        self._then.clear()  # a flush that ends behind this would give slots to a closed store
        for timer in (self._flush_timer, self._sync_timer):
            if timer is not None:
                timer.cancel()

    def _write(self, batches: list[Batch], to_sync: Segment | None) -> None:
        write(self._files, self._layout, batches, to_sync)

    def pending(self, segment: Segment, offset: int) -> bytes | None:
        """Return a frame that is still in memory; None when it is in the file."""
        return part_at((*self._in_flight, *self._batches), segment, offset)

    def drop_front(self, first: int) -> list[Segment]:
        """Drop the segments before `first` from the list, and return them."""
        dropped = [each for each in self.segments if each.sequence < first]
        self.segments = self.segments[len(dropped) :]
        return dropped

    async def close(self) -> None:
        """Close the files without writing: to stop is to crash."""
        self.fail(QueueClosed())
        if self._flush is not None:  # it would write to what has the closed descriptor by then
            await asyncio.wait({self._flush})
        for segment in self.segments:
            if segment.file is not None:
                segment.file.close()
