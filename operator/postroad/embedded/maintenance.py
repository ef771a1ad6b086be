"""Checkpoints, the removal of garbage, and what keeps the log small. FORMAT.md 7 and 10.

Source: LQ-14..18, LQ-24..27; AMB-4, AMB-6, AMB-8.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from postroad.embedded.checkpoints import Checkpoint, LaneState, write_checkpoint
from postroad.embedded.engine import Engine
from postroad.embedded.envelopes import Unreadable
from postroad.embedded.lanes import LaneLog
from postroad.embedded.layout import NEW
from postroad.embedded.segments import Entry, Segment, State, sequence_of
from postroad.errors import QueueClosed
from postroad.ports.files import File

COMPACTED_AT_ONCE = 2000
"""Entries written again in one round, so that maintenance never holds up deliveries."""


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """The state of the store at one instant: what a checkpoint will say, and what it rests on."""

    checkpoint: Checkpoint
    garbage: dict[Segment, list[int]]


class Maintenance:
    """Keeps one store: a checkpoint now and then, and what may happen only behind it."""

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

    async def _recover(self, recover: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Recover, then begin to take checkpoints: only a whole index knows what is garbage."""
        await self._or_stop(recover())
        if self._engine.failure is None:
            self._rounds = asyncio.get_running_loop().create_task(self._or_stop(self._keep()))

    async def _keep(self) -> None:
        while True:
            await self.round()
            await self._engine.clock.sleep(self._engine.options.checkpoint_every)

    async def _or_stop(self, work: Coroutine[Any, Any, None]) -> None:
        """Do work without which the store cannot go on."""
        try:
            await work
        except Exception as error:
            self._engine.stop(error)

    async def round(self) -> None:
        """One round of maintenance. Raises: what stopped the store."""
        await self._to_its_end(self._round())

    async def checkpoint(self) -> None:
        """Take a checkpoint, then remove what lies before it. Nothing, when nothing changed.
        Raises: what stopped the store."""
        await self._to_its_end(self._checkpoint())

    async def _to_its_end(self, work: Coroutine[Any, Any, None]) -> None:
        """Do work that must not end halfway, as what it noted is noted once: a caller that is
        cancelled only waits no longer, and an error stops the store, whoever hears of it (R6)."""
        task = asyncio.get_running_loop().create_task(self._or_stop(work))
        self._begun.add(task)
        task.add_done_callback(self._begun.discard)
        await asyncio.shield(task)
        self._engine.check()

    async def _round(self) -> None:
        await self._checkpoint()
        await self._compact()
        await self._engine.slots.shrink()

    async def _checkpoint(self) -> None:
        async with self._busy:
            self._engine.check()
            if (moment := self._moment()) is None:
                return
            for lane, state in moment.checkpoint.lanes.items():
                await self._engine.lanes[lane].commit(state.end)
            await self._engine.log_threads.run(self._write, moment)
            self._last = moment.checkpoint
            await self._remove_garbage(moment.checkpoint)

    def _moment(self) -> CheckpointState | None:
        """Note everything at one instant (FORMAT.md 7, step 1); None when nothing changed."""
        engine = self._engine
        end = engine.lane(NEW).end
        working = tuple(entry.start for entry in engine.working)
        scan_from = min(working, default=end)
        lanes = {
            number: LaneState(_first_needed(lane, scan_from if number == NEW else None), lane.end)
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
        return CheckpointState(checkpoint, garbage)

    def _is_unchanged(self, checkpoint: Checkpoint) -> bool:
        last = self._last
        return (last.lanes, last.working, last.end) == (
            checkpoint.lanes,
            checkpoint.working,
            checkpoint.end,
        )

    def _write(self, moment: CheckpointState) -> None:
        """Marks, then the checkpoint that vouches for what they rest on. In a thread."""
        for segment, numbers in moment.garbage.items():
            segment.write_garbage_flags(numbers)
            segment.opened().sync()
        write_checkpoint(self._file, moment.checkpoint)

    async def _remove_garbage(self, checkpoint: Checkpoint) -> None:
        """Remove the segments that the durable checkpoint does not count any more (R4)."""
        engine = self._engine
        dropped = [
            segment
            for number, state in checkpoint.lanes.items()
            for segment in engine.lanes[number].drop_front(state.first_sequence)
        ]
        if dropped:
            await engine.log_threads.run(self._unlink, dropped)

    def _unlink(self, segments: list[Segment]) -> None:
        engine = self._engine
        for segment in segments:
            segment.opened().close()
            engine.files.unlink(engine.layout.segment(segment.lane, segment.sequence))
        engine.files.sync_directory(engine.layout.log)

    async def _compact(self) -> None:
        """Write the last live entries of old segments again at the end of their lanes, where these
        keep much garbage behind them: the same entries, under the same enqueue ids."""
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

    async def _rewrite(self, entry: Entry) -> None:
        engine = self._engine
        await engine.wait_durable(entry)
        try:
            waiting = await engine.reader.read(entry)
        except Unreadable:
            return  # it stays where it is, and says so when it is looked at
        if entry.state in (State.DELAYED, State.READY, State.PARKED):
            engine.replace_entry(entry, waiting)

    async def close(self) -> None:
        """Stop; take no last checkpoint. Waits for the thread of one that has begun, whose
        descriptors must not become somebody else's."""
        self._engine.stop(QueueClosed())
        for task in (self.recovering, self._rounds):
            if task is not None:
                task.cancel()
                await asyncio.wait({task})
        if self._begun:
            await asyncio.wait(self._begun)
        self._file.close()


def _first_needed(lane: LaneLog, scan_from: int | None) -> int:
    """Return the number of the first segment that must stay: the first with a live entry, or with
    the start of the working suffix, or that may hold an entry which the index does not know yet, as
    it is not durable, or the one that this process appends to; when there is none, the one that
    comes next, as no number is used twice."""
    for segment in lane.segments:
        is_scanned = scan_from is not None and segment.sequence >= sequence_of(scan_from)
        is_in_doubt = segment.end_position > lane.durable
        if segment.live or is_scanned or is_in_doubt or lane.appends_to(segment):
            return segment.sequence
    return lane.next_sequence
