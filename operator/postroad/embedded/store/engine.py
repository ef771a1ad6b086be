"""One open store: its lanes, their live entries and what is cached of them, and how it stops (R6).

`enqueue`, `leases` and `administration` write the records of a mail through it. `opening` recovers,
`maintenance` takes checkpoints, `items` and `owner` are the port. Single ENVELOPEs are read in
blocks, because entries that are due together lie together (LQ-32, SP-17).
Source: LQ-3, LQ-6..10, LQ-28, LQ-29."""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable
from datetime import datetime, timedelta
from uuid import UUID

from postroad.domain.values.identifiers import Identifiers, moment_of
from postroad.domain.values.instants import microseconds, moment_after
from postroad.embedded.log.envelopes import EnvelopeRecord, domains_of, encode_envelope
from postroad.embedded.log.frames import HEAD, frame_at, frame_size
from postroad.embedded.log.index import Index, KeyIndex
from postroad.embedded.log.lanes import LaneLog, SegmentSizes, Written
from postroad.embedded.log.layout import DEAD, HELD, KEYS, NEW, Lane, Layout
from postroad.embedded.log.options import FreeSpace, StoreLimits, StoreOptions
from postroad.embedded.log.records import ENVELOPE, KeyRecord, Record, encode
from postroad.embedded.log.segments import READY, LiveEntry, Segment, waiting_at
from postroad.embedded.log.slots import Slots
from postroad.embedded.log.spool_files import SMALL, Kept, SpoolFiles
from postroad.embedded.store.ready_queues import ReadyQueues, Wakeups
from postroad.embedded.store.spool_writing import SpoolWriter
from postroad.errors import PostroadError, QueueClosed, StoreFailed
from postroad.ports.clock import Clock, Randomness
from postroad.ports.files import Files, Threads
from postroad.telemetry.logs import logger

RECENT_SECONDS = 0.02
"""Another mail is expected within this time of the last one."""


class ArrivalRate:
    """Mails that this process is receiving, and announcements of receivers, so that a sync can wait
    for others to share it. Times are seconds of the event loop's clock."""

    def __init__(self) -> None:
        self.under_way = 0
        """Mails that this process is receiving; recovery pauses for them."""
        self._last = self._before = float("-inf")

    def announce(self, now: float, within: float) -> bool:
        """Count the announcement of a stored mail. Returns whether the last but one came `within`
        these seconds, so that others are expected to share its sync."""
        is_crowded = now - self._before < within
        self._before, self._last = self._last, now
        return is_crowded

    def is_busy(self, now: float) -> bool:
        """True if another mail is expected soon."""
        return self.under_way > 0 or now - self._last < RECENT_SECONDS


MAX_BYTES = 16 * 1024 * 1024
"""Bytes of all cached mails together."""

RECORD_TIMES = 5
"""A record takes three to five times as many bytes as its ENVELOPE."""


class ContentCache:
    """Keeps new mails at their entries until these are leased, or end: the oldest, which are leased
    first. What never left memory needs no check of its checksum."""

    def __init__(self, most_bytes: int = MAX_BYTES) -> None:
        self.room = most_bytes

    def keep(self, entry: LiveEntry, record: EnvelopeRecord, kept: Kept | None) -> None:
        """Keep a mail while its entry waits, if there is room; its record alone where this process
        does not have the content."""
        size = _size_of(entry, kept)
        if size <= self.room and (kept is None or len(kept[0]) <= SMALL):
            self.room -= size
            entry.cached = (record, kept)

    def take(self, entry: LiveEntry) -> tuple[EnvelopeRecord, Kept | None] | None:
        """Return a cached mail, and drop it from the cache; None when it is not cached."""
        found, entry.cached = entry.cached, None
        if found is not None:
            self.room += _size_of(entry, found[1])
        return found


def _size_of(entry: LiveEntry, kept: Kept | None) -> int:
    return RECORD_TIMES * entry.length + (0 if kept is None else len(kept[0]))


log = logger("embedded")


class Engine:
    """One open store. Threads make the file calls; everything else runs on one event loop."""

    def __init__(
        self,
        files: Files,
        layout: Layout,
        options: StoreOptions,
        clock: Clock,
        randomness: Randomness,
        log_threads: Threads,
        mail_threads: Threads,
    ) -> None:
        self.files, self.layout, self.options, self.clock = files, layout, options, clock
        self.log_threads, self.mail_threads = log_threads, mail_threads
        self.identifiers = Identifiers(clock.now, randomness.bits)
        self.randomness = randomness
        self.spool_files = SpoolFiles(files, layout, options.kept_open)
        self.spool_writer = SpoolWriter(self.spool_files, mail_threads)
        self.lanes: dict[Lane, LaneLog] = {}
        self.reader = EnvelopeReader(self.lanes, log_threads)
        self.limits = StoreLimits(options, FreeSpace(files, layout, self.elapsed))
        self.index, self.content_cache = Index(self.segments), ContentCache()
        self.ready_queues, self.keys = ReadyQueues(), KeyIndex()
        self.slots = Slots(files, layout, options, mail_threads, self.spool_files, 0)
        self.sync_wait = options.sync_wait.total_seconds()
        self.arrival_rate = ArrivalRate()
        self.working: dict[LiveEntry, None] = {}
        self.orphans: dict[LiveEntry, int] = {}
        """Working entries whose mail was removed, with the end of its FINISH."""
        self.deliverable, self.indexed = asyncio.Event(), asyncio.Event()
        self.failure: PostroadError | None = None
        self.stopped = asyncio.Event()
        self.wakeups = Wakeups(clock)

    # -- time ------------------------------------------------------------------------------------

    def now_us(self) -> int:
        return microseconds(self.clock.now())

    def elapsed(self) -> float:
        return self.clock.elapsed().total_seconds()

    def due_after(self, delay: timedelta) -> int:
        """Return when a delay that begins now ends, in the microseconds of the format."""
        if delay <= timedelta(0):
            return 0  # of most mails: without a look at the clock
        moment = moment_after(self.clock.now(), delay)
        return 0 if moment is None else microseconds(moment)

    def due(self, due_us: int, enqueued_us: int) -> float:
        """Return when an entry is due, on the monotonic clock, so that a step of the wall clock
        does not move entries that already wait. From now on it waits for no longer than it was to
        wait from the beginning: a clock may be wrong before a start, or at it."""
        if not due_us:
            return 0.0
        left = (due_us - max(self.now_us(), enqueued_us)) / 1e6
        return self.elapsed() + left if left > 0 else 0.0

    def oldest_due(self) -> datetime | None:
        """Return since when the entry is due that no consumer has and that is due for longest, of
        each lane the first; None without one."""
        passed = self.clock.now() - self.clock.elapsed()
        return min(
            (
                passed + timedelta(seconds=each.due)
                if each.due
                else moment_of(UUID(bytes=each.enqueue_id))
                for each in self.ready_queues.firsts()
            ),
            default=None,
        )

    # -- the log ---------------------------------------------------------------------------------

    def segments(self) -> Iterable[Segment]:
        """All segments, lane by lane, oldest first."""
        return [segment for lane in self.lanes.values() for segment in lane.segments]

    def lane(self, lane: Lane) -> LaneLog:
        """Return a lane; the first use makes it."""
        if (known := self.lanes.get(lane)) is None:
            known = self.lanes[lane] = self.build_lane(lane, [])
        return known

    def build_lane(self, lane: Lane, segments: list[Segment]) -> LaneLog:
        sizes = SegmentSizes(self.options.segment_bytes, self.options.segment_envelopes)
        built = LaneLog(
            lane,
            self.files,
            self.layout,
            sizes,
            threads=self.log_threads,
            salt=self._salt,
            now_us=self.now_us,
            stop=self.stop,
            segments_found=segments,
        )
        if self.failure is not None:  # `stop` reached only the lanes that existed then
            built.fail(self.failure)
        return built

    def _salt(self) -> bytes:
        return self.randomness.bits(128).to_bytes(16, "big")

    def append(self, lane: Lane, record: Record) -> Written:
        """Append a record in memory. Raises: StoreFailed, QueueClosed."""
        return self.lane(lane).append(*encode(record))

    def append_key(self, record: KeyRecord) -> int:
        """Append a KEY; see `KeyIndex.append`. Raises: as `append`."""
        return self.keys.append(self.lane(KEYS), record)

    def stop(self, error: Exception) -> None:
        """Stop for good: no write is retried (FORMAT.md R6)."""
        if self.failure is not None:
            return
        self.failure = _failure_of(error)
        for lane in self.lanes.values():
            lane.fail(self.failure)
        self.stopped.set()
        # Who waits for these goes on to `check`, and gets the error; else it waits for ever.
        self.deliverable.set()
        self.indexed.set()
        self.wakeups.wake_all()

    def check(self) -> None:
        """Raises: the error that stopped the store."""
        if self.failure is not None:
            raise self.failure

    def is_durable(self, entry: LiveEntry) -> bool:
        return self.lanes[entry.segment.lane].durable > entry.position

    async def wait_durable(self, entry: LiveEntry) -> None:
        """Wait until an entry's ENVELOPE is durable and records may refer to it (R1)."""
        if not self.is_durable(entry):
            await self.lanes[entry.segment.lane].commit(entry.position + 1)

    def lane_for(self, record: EnvelopeRecord) -> Lane:
        if record.dead:
            return DEAD
        if record.held:
            return HELD
        if not record.due_us:
            return NEW
        delay = timedelta(microseconds=max(0, record.due_us - self.now_us()))
        return self.options.lane_for(delay)

    async def make_room(self) -> bool:
        """Remove the free spool files, because the disk is full; return whether there were any."""
        if not await self.slots.empty():
            return False
        self.limits.renew()
        return True

    # -- entries -----------------------------------------------------------------------------------

    def write(self, record: EnvelopeRecord, json: bytes | None = None) -> Written:
        """Append an ENVELOPE to the lane it belongs to. `json`: as for `encode_envelope`. That of a
        dead letter has the moment of its death in place of when it is due."""
        if record.dead and not record.due_us:
            record = record._replace(due_us=self.now_us())
        lane = self.lane(self.lane_for(record))
        return lane.append(ENVELOPE, encode_envelope(record, json))

    def admit(self, record: EnvelopeRecord, written: Written) -> LiveEntry:
        """Make the entry of an appended ENVELOPE, and add it as `enter` does."""
        entry = LiveEntry(
            segment=written.segment,
            offset=written.offset,
            length=written.length,
            ordinal=written.ordinal,
            enqueue_id=record.enqueue_id,
            slot=record.slot,
            accepted_us=record.accepted_us,
            domains=domains_of(record.envelope),
            due=self.due(record.due_us, record.enqueued_us),
        )
        self.enter(entry, is_held=record.held or record.dead)
        return entry

    def enter(self, entry: LiveEntry, *, is_held: bool = False) -> None:
        """Add an entry to the index and, unless it is held, to its ready queue."""
        self.index.add(entry)
        if not is_held:
            self.offer(entry)

    def offer(self, entry: LiveEntry) -> None:
        """Add an entry to its ready queue, and wake a consumer when it is due."""
        self.ready_queues.add(entry, self.elapsed() if entry.due else 0.0)
        if entry.state is READY:
            self.wakeups.wake_one()
        else:
            self.wakeups.wake_at(entry.due)

    def successor(self, record: EnvelopeRecord, of: LiveEntry) -> EnvelopeRecord:
        """Return `record` as the replacement of an entry: the next entry number, and the link
        back."""
        return record._replace(
            entry_number=record.entry_number + 1,
            predecessor=(of.segment.lane, of.position),
        )

    def new_entry(self, record: EnvelopeRecord) -> EnvelopeRecord:
        """Return `record` under a new enqueue id, enqueued now."""
        return record._replace(enqueue_id=self.identifiers.new().bytes, enqueued_us=self.now_us())

    def remove_entry(self, entry: LiveEntry) -> None:
        """Drop an entry from memory. The caller has appended the record that ends it."""
        self.ready_queues.withdraw(entry)  # before its state changes, by which it is counted
        self.working.pop(entry, None)
        self.lanes[entry.segment.lane].forget(entry.position)
        self.content_cache.take(entry)
        self.index.remove(entry)

    def replace_entry(self, entry: LiveEntry, record: EnvelopeRecord) -> LiveEntry:
        """Replace an entry by `record`, in the log and in memory. Not durable."""
        replacement = self.successor(record, entry)
        # Written first, and no `await` from here on: a checkpoint in between would find no entry of
        # the mail, and let its only ENVELOPE go with the segment.
        written = self.write(replacement)
        self.remove_entry(entry)
        entry.successor = self.admit(replacement, written)
        return entry.successor

    # -- the end ---------------------------------------------------------------------------------

    async def close(self) -> None:
        """Stop without writing: to stop is to crash (LQ-1)."""
        self.stop(QueueClosed())  # first: nothing begins in a thread from now on
        self.wakeups.close()
        # Before the lock goes: the next owner writes to the same slots and files.
        await asyncio.gather(self.log_threads.close(), self.mail_threads.close())
        await self.slots.close()
        self.spool_files.close()
        for lane in self.lanes.values():
            await lane.close()


def _failure_of(error: Exception) -> PostroadError:
    """Return an error of ours as it is, any other as a StoreFailed."""
    if isinstance(error, PostroadError):
        return error
    failure = StoreFailed(f"an unexpected {type(error).__name__} stopped the store")
    failure.__cause__ = error
    return failure


BLOCK = 64 * 1024
BLOCKS_KEPT = 64


class EnvelopeReader:
    """Reads the ENVELOPEs of live entries."""

    def __init__(self, lanes: dict[Lane, LaneLog], threads: Threads) -> None:
        self._lanes, self._threads = lanes, threads
        self._blocks: OrderedDict[tuple[Lane, int, int], bytes] = OrderedDict()
        self.bytes_read = 0

    async def read(self, entry: LiveEntry) -> EnvelopeRecord:
        """Return an entry's ENVELOPE, or what stands for one set aside. Raises: StoreDamaged."""
        lane = self._lanes[entry.segment.lane]
        payload = lane.recall(entry.position)
        if payload is None:
            payload = await self._payload(lane, entry)
        return waiting_at(entry.segment, entry.offset, payload)

    async def _payload(self, lane: LaneLog, entry: LiveEntry) -> bytes:
        segment, offset = entry.segment, entry.offset
        pending = lane.pending(segment, offset)
        if pending is not None:
            return pending[HEAD.size : HEAD.size + entry.length]
        size = frame_size(entry.length)
        first, last = offset // BLOCK, (offset + size - 1) // BLOCK
        data = b"".join([await self._block(segment, number) for number in range(first, last + 1)])
        frame = frame_at(data, offset - first * BLOCK, segment.seed)
        if frame is None:
            raise segment.damaged(offset)
        return frame.payload

    async def _block(self, segment: Segment, number: int) -> bytes:
        """Return one block, and cache it when no more frames can go to it."""
        key = (segment.lane, segment.sequence, number)
        if (known := self._blocks.get(key)) is not None:
            self._blocks.move_to_end(key)
            return known
        # Asked before the read: else a flush that ends during it has half a block cached as whole,
        # and the next mail in it is taken for damage.
        is_complete = (number + 1) * BLOCK <= segment.written
        data = await self._threads.run(segment.read, number * BLOCK, BLOCK)
        self.bytes_read += len(data)
        if is_complete:
            self._blocks[key] = data
            if len(self._blocks) > BLOCKS_KEPT:
                self._blocks.popitem(last=False)
        return data
