"""The pool of free spool files, and the checkpoint. FORMAT.md 4 and 7.

A slot is used again, so that a mail costs no change of a directory. The pool grows in batches, each
durable by one sync of its directory, and shrinks slowly to the recent need. Checkpoints lie in two
places of one file, written alternately: found at once, and one seek in many seconds.
Source: SP-10..13; LQ-14..17, LQ-31."""

import asyncio
from collections import deque
from dataclasses import dataclass, field
from struct import Struct, error

from postroad.embedded.log.frames import checksum
from postroad.embedded.log.layout import SLOTS_PER_DIRECTORY, Lane, Layout
from postroad.embedded.log.options import MIB, StoreOptions, gone
from postroad.embedded.log.spool_files import SpoolFiles
from postroad.errors import PostroadError, StoreDamaged, StoreFailed
from postroad.ports.files import File, Files, Threads

BATCH = 40
"""Files made at a time; a divisor of SLOTS_PER_DIRECTORY."""

RESERVED_BYTES = 16 * 1024
"""Allocated for a new file, so that the blocks of most mails lie together."""

KEPT = 2 * BATCH
"""Free files that `shrink` leaves."""

ROUNDS = 20
"""`shrink` removes files that were not needed for this many checkpoints."""


class Slots:
    """Free slots. Not thread-safe: one per event loop."""

    def __init__(
        self,
        files: Files,
        layout: Layout,
        options: StoreOptions,
        threads: Threads,
        spool_files: SpoolFiles,
        first_directory: int,
    ) -> None:
        self._files, self._layout, self._options = files, layout, options
        self._threads, self._spool_files = threads, spool_files
        self._next = first_directory * SLOTS_PER_DIRECTORY
        self._directory = -1
        """The spool directory whose name this process has synced."""
        self._free: list[int] = []
        self._low_water = 0
        self._recent_low: deque[int] = deque(maxlen=ROUNDS)
        self._making: asyncio.Task[None] | None = None
        self._released: list[int] = []
        self._cleaning: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._free)

    async def take(self) -> int:
        """Remove a free slot, which has a file, from the pool. Raises: StoreFull, StoreFailed."""
        while not self._free:
            if self._making is None:
                self._making = asyncio.get_running_loop().create_task(self._make_more())
            await asyncio.shield(self._making)
        slot = self._free.pop()
        self._low_water = min(self._low_water, len(self._free))
        return slot

    async def lease(self, most: int) -> list[int]:
        """Remove free slots for a receiver: at least one, making a batch only for that one.
        Raises: StoreFull, StoreFailed."""
        slots = [await self.take()]
        while self._free and len(slots) < most:
            slots.append(self._free.pop())
        self._low_water = min(self._low_water, len(self._free))
        return slots

    def release(self, slot: int) -> None:
        """Return the slot of a finished mail, whose FINISH is durable (FORMAT.md R3)."""
        self._released.append(slot)
        if self._cleaning is None:
            self._cleaning = asyncio.get_running_loop().create_task(self._clean())

    def adopt(self, slots: list[int]) -> None:
        """Add slots of no live entry, which recovery found."""
        keep = max(0, self._options.pool_files - len(self._free))
        self._free.extend(slots[:keep])
        self._released.extend(slots[keep:])
        if self._released and self._cleaning is None:
            self._cleaning = asyncio.get_running_loop().create_task(self._clean())

    async def _make_more(self) -> None:
        first = self._next
        self._next += BATCH  # also where it fails: a file that was made is not made again
        try:
            await self._threads.run(self._make, first)
        finally:
            self._making = None
        self._free.extend(range(first + BATCH - 1, first - 1, -1))

    def _make(self, first: int) -> None:
        try:
            self._files.room(self._layout.log)  # else a directory in another's place gets mail
            self._make_batch(first)
        except FileNotFoundError as error:
            raise gone(self._layout) from error

    def _make_batch(self, first: int) -> None:
        directory = self._layout.spool_directory(first)
        if self._directory != first // SLOTS_PER_DIRECTORY:  # again if it failed the last time
            self._files.make_directory(directory)
            self._files.sync_directory(self._layout.mail)
            self._directory = first // SLOTS_PER_DIRECTORY
        for slot in range(first, first + BATCH):
            file = self._files.open(self._layout.spool_file(slot), create=True)
            try:
                file.allocate(RESERVED_BYTES)
            except BaseException:
                file.close()
                raise
            self._spool_files.keep(slot, file)
        self._files.sync_directory(directory)  # before use: a cut would take a name with its mail

    async def _clean(self) -> None:
        """Free the files of released slots, and add these to the pool, a batch at a time."""
        try:
            if wait := self._options.free_wait.total_seconds():
                await asyncio.sleep(wait)
            while self._released:
                batch, self._released = self._released[:BATCH], self._released[BATCH:]
                keep = self._options.pool_files - len(self._free)
                freed = await self._threads.run(self._free_files, batch, keep)
                self._free.extend(freed)  # not over the wait: `shrink` makes another list in it
        except PostroadError:
            pass  # the store is closed
        finally:
            self._cleaning = None

    def _free_files(self, slots: list[int], keep: int) -> list[int]:
        kept: list[int] = []
        for slot in slots:
            try:
                size = self._spool_files.free(slot)
                if len(kept) < keep and size <= self._options.pool_file_bytes:
                    kept.append(slot)
                else:
                    self._spool_files.remove(slot)
            except PostroadError:
                pass  # the slot waits for the next start: it costs space, and no mail
        return kept

    async def shrink(self) -> None:
        """Remove half of the files that were not needed for ROUNDS calls. Once per checkpoint."""
        self._recent_low.append(self._low_water)
        self._low_water = len(self._free)
        if len(self._recent_low) < ROUNDS:
            return
        surplus = (min(self._recent_low) - KEPT + 1) // 2
        if surplus > 0:
            self._recent_low.clear()
            # Out of the pool before the wait: a mail would be stored in a file that is removed.
            going, self._free = self._free[:surplus], self._free[surplus:]
            await self._threads.run(self._unlink_all, going)

    async def empty(self) -> bool:
        """Remove the free files, because the disk is full; return whether there were any."""
        going, self._free = self._free, []
        self._low_water = 0
        if going:
            await self._threads.run(self._unlink_all, going)
        return bool(going)

    def _unlink_all(self, slots: list[int]) -> None:
        for slot in slots:
            self._spool_files.remove(slot)

    async def close(self) -> None:
        """Wait for the calls in threads."""
        tasks = {task for task in (self._making, self._cleaning) if task is not None}
        if tasks:
            await asyncio.wait(tasks)


def first_unused_directory(files: Files, layout: Layout) -> int:
    """Return the number behind the last spool directory."""
    found = [int(name) for name in files.names(layout.mail) if name.isdecimal()]
    return max(found, default=-1) + 1


def slots_on_disk(files: Files, layout: Layout, below: int) -> list[int]:
    """Return the slots that have a file in the directories numbered less than `below`."""
    return [
        int(directory) * SLOTS_PER_DIRECTORY + int(name)
        for directory in sorted(files.names(layout.mail))
        if directory.isdecimal() and int(directory) < below
        for name in files.names(layout.mail / directory)
        if name.isdecimal()
    ]


MAGIC = b"PRcheck1"
SLOT_BYTES = MIB

_HEAD = Struct("<IQQQQII")
_LANE = Struct("<IIQ")
_CRC = Struct("<I")


@dataclass(frozen=True, slots=True)
class LaneState:
    """A lane at the checkpoint: the first segment that belongs to the store, and its end."""

    first_sequence: int
    end: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """`end` is P and `scan_from` is S of FORMAT.md 7; `working` are positions of STARTs."""

    number: int
    taken_us: int = 0
    end: int = 0
    scan_from: int = 0
    lanes: dict[Lane, LaneState] = field(default_factory=dict)
    working: tuple[int, ...] = ()

    def encode(self) -> bytes:
        body = _HEAD.pack(
            len(self.lanes),
            self.number,
            self.taken_us,
            self.end,
            self.scan_from,
            len(self.working),
            0,
        )
        body += b"".join(
            _LANE.pack(lane, state.first_sequence, state.end) for lane, state in self.lanes.items()
        )
        body += Struct(f"<{len(self.working)}Q").pack(*self.working)
        return MAGIC + _CRC.pack(checksum(body)) + body


def decode(data: bytes) -> Checkpoint | None:
    """Read one slot; None when it has no checkpoint with a right checksum."""
    if data[:8] != MAGIC:
        return None
    try:
        lane_count, number, taken_us, end, scan_from, working_count, _ = _HEAD.unpack_from(data, 12)
        lanes_at = 12 + _HEAD.size
        working_at = lanes_at + lane_count * _LANE.size
        working = Struct(f"<{working_count}Q").unpack_from(data, working_at)
    except error:
        return None
    stop = working_at + 8 * working_count
    if _CRC.pack(checksum(data[12:stop])) != data[8:12]:
        return None
    lanes = {
        lane: LaneState(first, lane_end)
        for lane, first, lane_end in _LANE.iter_unpack(data[lanes_at:working_at])
    }
    return Checkpoint(number, taken_us, end, scan_from, lanes, working)


def read_checkpoint(file: File) -> Checkpoint:
    """Return the later checkpoint. Raises: StoreDamaged when neither slot is readable."""
    found = [
        checkpoint
        for slot in (0, 1)
        if (checkpoint := decode(file.pread(slot * SLOT_BYTES, SLOT_BYTES))) is not None
    ]
    if not found:
        raise StoreDamaged("neither copy of the checkpoint is readable")
    return max(found, key=lambda each: each.number)


def write_checkpoint(file: File, checkpoint: Checkpoint) -> None:
    """Write a checkpoint. Durable when it returns."""
    data = checkpoint.encode()
    if len(data) > SLOT_BYTES:
        raise StoreFailed("too many entries are leased for a checkpoint")
    # Over the older one: a cut in this write leaves the later one whole.
    file.pwrite(checkpoint.number % 2 * SLOT_BYTES, data)
    file.sync()
