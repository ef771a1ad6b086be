"""Takes checkpoints, removes garbage, and compacts the log. FORMAT.md 7 and 10.

Source: LQ-14..18, LQ-24..27; AMB-4, AMB-6, AMB-8."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from postroad.domain.values.instants import duration_us
from postroad.embedded.log.lanes import LaneLog
from postroad.embedded.log.layout import KEYS, NEW
from postroad.embedded.log.segments import LiveEntry, Segment, State
from postroad.embedded.log.slots import Checkpoint, LaneState, write_checkpoint
from postroad.embedded.store.archive import (
    BOUNDED_EVERY,
    MAX_OPEN,
    ObsoleteSegment,
    is_archived,
    keep_bounds,
    remove_obsolete,
)
from postroad.embedded.store.engine import Engine
from postroad.errors import PostroadError, QueueClosed
from postroad.ports.files import File

COMPACTED_AT_ONCE = 2000
"""Entries that one round rewrites, so that deliveries do not wait for it."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The store at one instant: the checkpoint, and the garbage flags to set before it."""

    checkpoint: Checkpoint
    garbage: dict[Segment, list[int]]


class Maintenance:
    """Maintains one store: a checkpoint at intervals, and what may happen only behind it."""

    def __init__(
        self,
        engine: Engine,
        file: File,
        checkpoint: Checkpoint,
        recover: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        self._engine, self._file, self._last = engine, file, checkpoint
        self.recovering = asyncio.get_running_loop().create_task(self._recover(recover))
        self._rounds: asyncio.Task[None] | None = None
        self._begun: set[asyncio.Task[None]] = set()
        self._busy = asyncio.Lock()
        self._bounded_at = engine.clock.elapsed()

    async def _recover(self, recover: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Recover, then take checkpoints."""
        # In this order: a checkpoint takes a segment without live entries for garbage, and until
        # then the index lacks some; their mail would be removed.
        await self._or_stop(recover())
        if self._engine.failure is None:
            self._rounds = asyncio.get_running_loop().create_task(self._or_stop(self._repeat()))

    async def _repeat(self) -> None:
        while True:
            await self.round()
            await self._engine.clock.sleep(self._engine.options.checkpoint_every)

    async def _or_stop(self, work: Coroutine[Any, Any, None]) -> None:
        """Await work whose failure stops the store."""
        try:
            await work
        except Exception as error:
            self._engine.stop(error)

    async def round(self) -> None:
        """Run one round of maintenance. Raises: the error that stopped the store."""
        await self._to_completion(self._round())

    async def checkpoint(self) -> None:
        """Take a checkpoint unless the store is unchanged, and remove the segments before it.
        Raises: the error that stopped the store."""
        await self._to_completion(self._checkpoint())

    async def _to_completion(self, work: Coroutine[Any, Any, None]) -> None:
        """Await work that must not end halfway: its error stops the store (R6)."""
        task = asyncio.get_running_loop().create_task(self._or_stop(work))
        self._begun.add(task)
        task.add_done_callback(self._begun.discard)
        # It has taken the garbage from the segments: were it cancelled halfway, no later one would
        # flag that, and mails that have ended come back.
        await asyncio.shield(task)
        self._engine.check()

    async def _round(self) -> None:
        await self._checkpoint()
        await self._compact()
        await self._engine.slots.shrink()
        await self._bound_archive()

    async def _bound_archive(self) -> None:
        """Keep the archive to its bounds, also where no mail passes: old history goes, and where
        the disk is full, mail gets room."""
        engine = self._engine
        if engine.clock.elapsed() - self._bounded_at < BOUNDED_EVERY:
            return
        self._bounded_at = engine.clock.elapsed()
        async with self._busy:
            await engine.log_threads.run(keep_bounds, engine.files, engine.layout, engine.now_us())

    async def _checkpoint(self) -> None:
        async with self._busy:
            self._engine.check()
            await self._leave_segments()
            if (snapshot := self._snapshot()) is None:
                return
            checkpoint = snapshot.checkpoint
            # AMB-4: a flag that is durable before the START that made it garbage loses the mail.
            for lane, state in checkpoint.lanes.items():
                await self._engine.lanes[lane].commit(state.end)
            await self._engine.log_threads.run(self._write, snapshot)
            self._last = checkpoint
            # AMB-6: last, because the checkpoint before still names these segments.
            await self._remove_garbage(checkpoint)

    async def _leave_segments(self) -> None:
        """Let an archived store have what passed within an hour or so, however little that is."""
        engine = self._engine
        before_us = engine.now_us() - duration_us(MAX_OPEN)
        old = [
            lane
            for lane in engine.lanes.values()
            if lane.lane != KEYS and lane.began_before(before_us)
        ]
        if old and await self._is_archived():
            for lane in old:
                lane.leave_segment(before_us)

    async def _is_archived(self) -> bool:
        return await self._engine.log_threads.run(
            is_archived, self._engine.files, self._engine.layout
        )

    def _snapshot(self) -> Snapshot | None:
        """Return the state of this instant (FORMAT.md 7, step 1); None when it is unchanged."""
        engine = self._engine
        # No `await` in here: an entry that is leased between two of these lines would be in neither
        # the working suffix nor the records behind P.
        end = engine.lane(NEW).end
        working = tuple(entry.start for entry in engine.working)
        scan_from = min(working, default=end)
        lanes = {
            number: LaneState(self._first_needed(lane, scan_from), lane.end)
            for number, lane in engine.lanes.items()
        }
        checkpoint = Checkpoint(
            self._last.number + 1, engine.now_us(), end, scan_from, lanes, working
        )
        if self._is_unchanged(checkpoint):
            return None
        garbage = {}
        for segment in engine.segments():
            if segment.garbage and segment.sequence >= lanes[segment.lane].first_sequence:
                garbage[segment] = sorted(segment.garbage)
            segment.garbage = set()
        return Snapshot(checkpoint, garbage)

    def _first_needed(self, lane: LaneLog, scan_from: int) -> int:
        first = _first_needed(lane, scan_from if lane.lane == NEW else None)
        if lane.lane != KEYS:
            return first
        sequences = [each.sequence for each in lane.segments if each.sequence < first]
        needed = self._engine.keys.first_needed(sequences, self._engine.now_us())
        return first if needed is None else needed

    def _is_unchanged(self, checkpoint: Checkpoint) -> bool:
        last = self._last
        return (last.lanes, last.working, last.end) == (
            checkpoint.lanes,
            checkpoint.working,
            checkpoint.end,
        )

    def _write(self, snapshot: Snapshot) -> None:
        """Set garbage flags, then write the checkpoint. Blocking."""
        for segment, numbers in snapshot.garbage.items():
            segment.write_garbage_flags(numbers)
            segment.opened().sync()
        # Behind the flags: it lets recovery pass over the records that made this garbage, so that
        # mails whose flags are lost would be sent again.
        write_checkpoint(self._file, snapshot.checkpoint)

    async def _remove_garbage(self, checkpoint: Checkpoint) -> None:
        """Take the segments before the durable checkpoint's first ones out of the log (R4)."""
        engine = self._engine
        dropped = [
            segment
            for number, state in checkpoint.lanes.items()
            for segment in engine.lanes[number].drop_front(state.first_sequence)
        ]
        if dropped:
            await engine.log_threads.run(self._remove_obsolete, dropped, checkpoint.taken_us)

    def _remove_obsolete(self, segments: list[Segment], now_us: int) -> None:
        for segment in segments:
            segment.opened().close()
        old = [ObsoleteSegment(each.header, each.end) for each in segments]
        remove_obsolete(self._engine.files, self._engine.layout, old, now_us)

    async def _compact(self) -> None:
        """Rewrite the live entries of a lane's oldest segment at its end, under the same enqueue
        ids, where few of them keep many dead segments."""
        for lane in list(self._engine.lanes.values()):
            oldest = self._should_compact(lane)
            if oldest is not None:
                await self._rewrite_oldest(oldest)

    def _should_compact(self, lane: LaneLog) -> Segment | None:
        if len(lane.segments) < 3:
            return None
        oldest, total = lane.segments[0], sum(each.next_ordinal for each in lane.segments)
        live = sum(len(each.live) for each in lane.segments)
        share = self._engine.options.compact_below
        is_sparse = len(oldest.live) <= share * max(1, oldest.next_ordinal)
        return oldest if oldest.live and is_sparse and live <= 0.5 * total else None

    async def _rewrite_oldest(self, segment: Segment) -> None:
        idle = [each for each in segment.live.values() if each.state is not State.LEASED]
        for entry in idle[:COMPACTED_AT_ONCE]:
            await self._rewrite(entry)

    async def _rewrite(self, entry: LiveEntry) -> None:
        engine = self._engine
        await engine.wait_durable(entry)
        try:
            waiting = await engine.reader.read(entry)
        except PostroadError:
            if entry.state is State.ENDED:
                return  # meanwhile, and another round removed its segment
            raise
        # Looked at behind the waits: a consumer may have it by now, and it would be sent twice.
        if entry.state in (State.DELAYED, State.READY, State.PARKED):
            engine.replace_entry(entry, waiting)

    async def close(self) -> None:
        """Stop without a last checkpoint."""
        self._engine.stop(QueueClosed())
        for task in (self.recovering, self._rounds):
            if task is not None:
                task.cancel()
                await asyncio.wait({task})
        if self._begun:
            await asyncio.wait(self._begun)
        self._file.close()  # behind all: a round would write to what has its descriptor by then


def _first_needed(lane: LaneLog, scan_from: int | None) -> int:
    """Return the number of the first segment that must stay: with a live entry, from the working
    suffix on, with records that are not durable (their entries are not in the index yet), or that
    this process appends to. Without one, return the next number: none is used twice."""
    for segment in lane.segments:
        is_scanned = scan_from is not None and segment.end_position > scan_from
        # Entries come into the index when they are durable: without this, a mail that gets its 250
        # a moment later goes with its segment.
        is_in_doubt = segment.end_position > lane.durable
        if segment.live or is_scanned or is_in_doubt or lane.appends_to(segment):
            return segment.sequence
    return lane.next_sequence
