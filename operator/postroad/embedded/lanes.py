"""A lane: records appended to segments, and many writers behind one sync (group commit).

Appending only touches memory. A flight is one trip of a thread that writes everything appended so
far and, when somebody waits for it, syncs once for all. While it is under way the next one gathers.
A flight that fails stops the store (FORMAT.md R6): nothing here is tried twice.
Source: LQ-18, LQ-29, AMB-5.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from postroad.embedded import frames, segments
from postroad.embedded.batches import Batch, part_at, write
from postroad.embedded.layout import MIB, NEW, Lane, Layout
from postroad.embedded.records import ENVELOPE
from postroad.embedded.segments import Header, Segment
from postroad.errors import PostroadError, QueueClosed
from postroad.ports.files import Files, Threads

FLUSH_DELAY_SECONDS = 0.2
"""How long records that nobody waits for stay in memory before they are written."""

FIRST_BYTES = MIB
"""Where a process' first segment of lane `new` is full: it is filled with zeros before the first
mail is accepted, so it is small. Each after it is twice as large."""

RECENT = 4096
"""Payloads kept in memory, so that new mail is started without reading."""


class Written(NamedTuple):
    """Where a record went."""

    segment: Segment
    offset: int
    length: int
    ordinal: int
    end: int
    """The position behind it: durable once the lane is durable up to here."""

    @property
    def position(self) -> int:
        return segments.position(self.segment.sequence, self.offset)


@dataclass(frozen=True, slots=True)
class SegmentSizes:
    """What new segments of a store look like."""

    segment_bytes: int
    envelopes: int


class LaneLog:
    """The appending end of one lane, and the list of its segments, oldest first."""

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
        """Whether records still go to a segment: those of earlier processes are never touched."""
        return segment is self._current

    def skip_to(self, sequence: int) -> None:
        """Let the next segment have at least this number."""
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
            loop = asyncio.get_running_loop()
            self._flush_timer = loop.call_later(FLUSH_DELAY_SECONDS, self._flush_unasked)
        written = Written(segment, offset, len(payload), ordinal, self.end)
        if is_envelope:
            self._remember(written.position, payload)
        return written

    def _rotate(self, size: int) -> Segment:
        """Plan the next segment; its file is made by the flight that first writes to it."""
        sizes, wanted = self._sizes, self._sizes.segment_bytes
        if self.lane == NEW:
            # It is filled beforehand: a large one is worth that only after many records.
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
        """Return the payload of an ENVELOPE appended lately; None when it is no longer kept."""
        return self._recent.get(where)

    def forget(self, where: int) -> None:
        """Drop a payload that nobody will read again."""
        self._recent.pop(where, None)

    async def commit(self, position: int, max_wait: float = 0.0) -> None:
        """Return when the lane is durable up to `position`. Raises: StoreFailed, StoreFull (the
        store has stopped then). See `durable_at`."""
        await self.durable_at(position, max_wait)

    def durable_at(self, position: int, max_wait: float = 0.0) -> asyncio.Future[None]:
        """Return what is done when the lane is durable up to `position`.

        `patience`, in seconds: how long to wait for somebody else's sync before asking for one; who
        waits already may cut it short.
        """
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        if self._failure is not None:
            waiter.set_exception(self._failure)
        elif position <= self.durable:
            waiter.set_result(None)
        else:
            self._waiters.append((position, waiter))
            if max_wait <= 0:
                self._want(position)
            elif self._sync_timer is None:
                self._sync_timer = loop.call_later(max_wait, self._want_all)
        return waiter

    @property
    def waiters(self) -> int:
        """How many wait for a sync."""
        return len(self._waiters)

    def when_durable(self, position: int, then: Callable[[], object]) -> None:
        """Call `then` once the lane is durable up to `position`; never, if it stops before."""
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
        self._flush = asyncio.get_running_loop().create_task(self._run_flush(sync))

    async def _run_flush(self, sync: bool) -> None:
        self._in_flight, self._batches = self._batches, []
        if self._in_flight:
            self._last = self._in_flight[-1].segment
        target = self.end
        try:
            await self._threads.run(self._write, self._in_flight, self._last if sync else None)
        except Exception as error:  # whatever it was, what was taken may be in no file
            self._stop(error)
            return
        finally:
            self._flush = None
        for batch in self._in_flight:
            batch.segment.written = batch.offset + sum(map(len, batch.parts))
        self._in_flight = []
        if sync:
            self._note_durable(target)
        if self._wanted > self.durable:
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
        """Refuse everything from now on."""
        self._failure = error
        for _, waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(error)
        self._waiters.clear()
        self._then.clear()
        for timer in (self._flush_timer, self._sync_timer):
            if timer is not None:
                timer.cancel()

    def _write(self, batches: list[Batch], to_sync: Segment | None) -> None:
        write(self._files, self._layout, batches, to_sync)

    def pending(self, segment: Segment, offset: int) -> bytes | None:
        """Return the frame at an offset that is still in memory; None when it is in the file."""
        return part_at((*self._in_flight, *self._batches), segment, offset)

    def drop_front(self, first: int) -> list[Segment]:
        """Forget the segments before `first`, and return them."""
        dropped = [each for each in self.segments if each.sequence < first]
        self.segments = self.segments[len(dropped) :]
        return dropped

    async def close(self) -> None:
        """Release the files. Writes nothing: to stop is to crash. Waits for the flight under way,
        whose descriptors must not become somebody else's."""
        self.fail(QueueClosed())
        if self._flush is not None:
            await asyncio.wait({self._flush})
        for segment in self.segments:
            if segment.file is not None:
                segment.file.close()
