"""The pools of free slots, and the checkpoint. FORMAT.md 4 and 7.

A slot is used again, so that a mail costs no change of a directory. A pool grows in batches, each
durable by one sync of its directory, and shrinks slowly to the recent need. Checkpoints lie in two
places of one file, written alternately: found at once, and one seek in many seconds.
Source: SP-10..13; LQ-14..17, LQ-31."""

import asyncio
import heapq
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import PurePath
from struct import Struct, error

from postroad.embedded.log.frames import checksum
from postroad.embedded.log.layout import (
    FILES_PER_DIRECTORY,
    OWN_FILE,
    PLACE_SIZES,
    Lane,
    Layout,
    SpoolKind,
    file_of,
    first_slot,
    kind_of,
    places_of,
    slots_of,
)
from postroad.embedded.log.options import MIB, StoreOptions, gone
from postroad.embedded.log.spool_files import SpoolFiles
from postroad.errors import PostroadError, StoreDamaged, StoreFailed
from postroad.ports.files import File, Files, Threads

BATCH = 40
"""Files of their own that are made at a time."""

GROWTH_BYTES = 128 * 1024
"""A file of places grows by this much at a time."""

RESERVED_BYTES = 16 * 1024
"""Allocated for a new file of its own, so that the blocks of most mails lie together."""

KEPT = 2 * BATCH
"""Free slots that `shrink` leaves."""

ROUNDS = 20
"""`shrink` removes files that were not needed for this many checkpoints."""


class _Pool:
    """The free slots of one kind. The lowest file is used first, so that those that a long queue
    needed become free as a whole."""

    def __init__(self, kind: SpoolKind) -> None:
        self.kind, self.places = kind, places_of(kind)
        self.count = self.low_water = 0
        self.recent_low: deque[int] = deque(maxlen=ROUNDS)
        self.making: asyncio.Task[None] | None = None
        self.growing: tuple[int, int] | None = None
        """The file that has not all its places yet, and how many it has."""
        self.whole: set[int] = set()
        """Files without a mail."""
        self._free: dict[int, list[int]] = {}
        self._lowest: list[int] = []
        """A heap of the files in `_free`, and some that were removed from it."""

    def put(self, slots: Iterable[int]) -> None:
        for slot in slots:
            file = file_of(slot)
            if (free := self._free.get(file)) is None:
                free = self._free[file] = []
                heapq.heappush(self._lowest, file)
            free.append(slot)
            self.count += 1
            if len(free) == self.places:
                self.whole.add(file)

    def pop(self) -> int:
        while (free := self._free.get(file := self._lowest[0])) is None:
            heapq.heappop(self._lowest)
        slot = free.pop()
        if not free:
            del self._free[file]
            heapq.heappop(self._lowest)
        self.whole.discard(file)
        self.count -= 1
        self.low_water = min(self.low_water, self.count)
        return slot

    def remove_whole(self, surplus: int) -> list[int]:
        """Remove files without a mail from the pool that have no more slots than `surplus`, the
        highest first; return them."""
        going = heapq.nlargest(max(0, surplus // self.places), self.whole)
        for file in going:
            self.whole.discard(file)
            self.count -= len(self._free.pop(file))
        return going


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
        self._next = first_directory * FILES_PER_DIRECTORY
        self._directory = PurePath()
        """The spool directory whose name this process has synced."""
        self._pools = _Pools()
        self._released: list[int] = []
        self._cleaning: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return sum(pool.count for pool in self._pools.values())

    @property
    def has_surplus(self) -> bool:
        """True if there are files without a mail, which `empty` removes."""
        return any(pool.whole for pool in self._pools.values())

    async def take(self, kind: SpoolKind = OWN_FILE) -> int:
        """Remove a free slot, which has a file, from its pool. Raises: StoreFull, StoreFailed."""
        pool = self._pools[kind]
        while not pool.count:
            if pool.making is None:
                pool.making = asyncio.get_running_loop().create_task(self._make_more(pool))
            await asyncio.shield(pool.making)
        return pool.pop()

    async def lease(self, most: int, kind: SpoolKind = OWN_FILE) -> list[int]:
        """Remove free slots for a receiver: at least one, making a batch only for that one.
        Raises: StoreFull, StoreFailed."""
        slots, pool = [await self.take(kind)], self._pools[kind]
        while pool.count and len(slots) < most:
            slots.append(pool.pop())
        return slots

    def release(self, slot: int) -> None:
        """Return the slot of a finished mail, whose FINISH is durable (FORMAT.md R3)."""
        self._released.append(slot)
        self._start_cleaning()

    def adopt(self, slots: list[int]) -> None:
        """Add slots of no live entry, which recovery found."""
        self._put(reversed(slots))  # the lowest last: it is used first
        self._start_cleaning()

    def _start_cleaning(self) -> None:
        if self._cleaning is None:
            self._cleaning = asyncio.get_running_loop().create_task(self._clean())

    def _put(self, slots: Iterable[int]) -> None:
        for slot in slots:
            self._pools[kind_of(slot)].put((slot,))

    async def _make_more(self, pool: _Pool) -> None:
        try:
            if pool.kind == OWN_FILE:
                slots = range(first := self._take_numbers(BATCH), first + BATCH)
                await self._threads.run(self._make, slots, RESERVED_BYTES, True)
            else:
                size = PLACE_SIZES[pool.kind]
                file, first = pool.growing or (first_slot(pool.kind, self._take_numbers(1)), 0)
                end = min(pool.places, first + max(1, GROWTH_BYTES // size))
                await self._threads.run(self._make, (file,), end * size, first == 0)
                pool.growing = (file, end) if end < pool.places else None
                slots = range(file + first, file + end)
        finally:
            pool.making = None
        pool.put(reversed(slots))

    def _take_numbers(self, count: int) -> int:
        """Return the first of so many numbers of files in one directory. They are used up, also
        where these cannot be made."""
        first = self._next
        if first % FILES_PER_DIRECTORY + count > FILES_PER_DIRECTORY:
            first += -first % FILES_PER_DIRECTORY
        self._next = first + count
        return first

    def _make(self, files: Iterable[int], size: int, is_new: bool) -> None:
        try:
            self._files.room(self._layout.log)  # else a directory in another's place gets mail
            if not is_new:
                for file in files:
                    self._spool_files.allocate(file, size)
            else:
                self._make_batch(files, size)
        except FileNotFoundError as error:
            raise gone(self._layout) from error

    def _make_batch(self, files: Iterable[int], size: int) -> None:
        directory = PurePath()
        for file in files:
            directory = self._layout.spool_directory(file)
            if self._directory != directory:  # again if it failed the last time
                self._files.make_directory(directory)
                self._files.sync_directory(self._layout.mail)
                self._directory = directory
            self._spool_files.make(file, size)
        self._files.sync_directory(directory)  # before use: a cut would take a name with its mail

    async def _clean(self) -> None:
        """Free released slots, and add these to their pools, a batch at a time."""
        try:
            if wait := self._options.free_wait.total_seconds():
                await asyncio.sleep(wait)
            is_removing = True
            while self._released or is_removing:
                batch, self._released = self._released[:BATCH], self._released[BATCH:]
                self._put(await self._threads.run(self._free_slots, batch))
                is_removing = await self._remove_whole(
                    {pool: pool.count - self._options.pool_files for pool in self._pools.values()}
                )
        except PostroadError:
            pass  # the store is closed
        finally:
            self._cleaning = None

    def _free_slots(self, slots: list[int]) -> list[int]:
        kept: list[int] = []
        for slot in slots:
            try:
                if self._spool_files.free(slot) <= self._options.pool_file_bytes:
                    kept.append(slot)
                else:
                    self._spool_files.remove(slot)
            except PostroadError:
                pass  # the slot waits for the next start: it costs space, and no mail
        return kept

    async def shrink(self) -> None:
        """Remove half of the files that were not needed for ROUNDS calls. Once per checkpoint."""
        surplus: dict[_Pool, int] = {}
        for pool in self._pools.values():
            pool.recent_low.append(pool.low_water)
            pool.low_water = pool.count
            if len(pool.recent_low) == ROUNDS:
                surplus[pool] = (min(pool.recent_low) - KEPT + 1) // 2
                if surplus[pool] > 0:
                    pool.recent_low.clear()
        await self._remove_whole(surplus)

    async def empty(self) -> bool:
        """Remove the files without a mail, because the disk is full; return whether there were
        any."""
        for pool in self._pools.values():
            pool.low_water = 0
        return await self._remove_whole({each: each.count for each in self._pools.values()})

    async def _remove_whole(self, surplus: dict[_Pool, int]) -> bool:
        # Out of the pools before the wait: a mail would be stored in a file that is removed.
        going = [file for pool, slots in surplus.items() for file in pool.remove_whole(slots)]
        if going:
            await self._threads.run(self._unlink_all, going)
        return bool(going)

    def _unlink_all(self, files: list[int]) -> None:
        for file in files:
            self._spool_files.remove(file)

    async def close(self) -> None:
        """Wait for the calls in threads."""
        tasks = {pool.making for pool in self._pools.values()} | {self._cleaning}
        if begun := [task for task in tasks if task is not None]:
            await asyncio.wait(begun)


class _Pools(dict[SpoolKind, _Pool]):
    """The pools by kind, each made at its first use."""

    def __missing__(self, kind: SpoolKind) -> _Pool:
        pool = self[kind] = _Pool(kind)
        return pool


def first_unused_directory(files: Files, layout: Layout) -> int:
    """Return the number behind the last spool directory."""
    found = [int(name) for name in files.names(layout.mail) if name.isdecimal()]
    return max(found, default=-1) + 1


def slots_on_disk(files: Files, layout: Layout, below: int) -> list[int]:
    """Return the slots that have a file in the directories numbered less than `below`."""
    return [
        slot
        for directory in sorted(files.names(layout.mail))
        if directory.isdecimal() and int(directory) < below
        for name in files.names(layout.mail / directory)
        for slot in slots_of(directory, name)
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
