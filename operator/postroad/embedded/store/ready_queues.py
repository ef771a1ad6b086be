"""Order in which entries are leased: a ready queue for new mail and one for each retry lane,
alternating; and the consumers that wait for one.

Consumers do not poll: one is woken for a ready entry, all when the earliest delayed one is due. An
entry that ends while it waits stays in its queue until `take` skips it.
Source: LQ-9, LQ-10, LQ-34 (incoming, active, deferred), LQ-35; SP-19."""

import asyncio
import heapq
from collections import deque
from datetime import timedelta
from itertools import count

from postroad.embedded.log.layout import NEW, Lane
from postroad.embedded.log.segments import DELAYED, READY, LiveEntry
from postroad.ports.clock import Clock


class ReadyQueue:
    """The entries of one lane: those that are due, in order, and those that are not yet."""

    def __init__(self) -> None:
        self._ready: deque[LiveEntry] = deque()
        self._delayed: list[tuple[float, int, LiveEntry]] = []
        self._order = count()

    def add(self, entry: LiveEntry, now: float) -> None:
        """Add an entry, by its due time."""
        if entry.due <= now:
            entry.state = READY
            self._ready.append(entry)
        else:
            entry.state = DELAYED
            heapq.heappush(self._delayed, (entry.due, next(self._order), entry))

    def promote(self, now: float) -> int:
        """Make due entries ready; return how many."""
        promoted = 0
        while self._delayed and (
            self._delayed[0][0] <= now or self._delayed[0][2].state is not DELAYED
        ):
            entry = heapq.heappop(self._delayed)[2]
            if entry.state is DELAYED:
                entry.state = READY
                self._ready.append(entry)
                promoted += 1
        return promoted

    def take(self) -> LiveEntry | None:
        """Remove and return the next due entry."""
        while self._ready:
            entry = self._ready.popleft()
            if entry.state is READY:
                return entry
        return None

    def first(self) -> LiveEntry | None:
        """Return the next due entry, which stays."""
        while self._ready and self._ready[0].state is not READY:
            self._ready.popleft()
        return self._ready[0] if self._ready else None

    def give_back(self, entry: LiveEntry) -> None:
        """Put an entry that `take` returned back to the front."""
        entry.state = READY
        self._ready.appendleft(entry)

    @property
    def next_due(self) -> float | None:
        return self._delayed[0][0] if self._delayed else None


class ReadyQueues:
    """All ready queues. `delayed` counts the entries that are not due yet."""

    def __init__(self) -> None:
        self._new = ReadyQueue()
        self._lanes: dict[Lane, ReadyQueue] = {}
        self._round: deque[Lane] = deque()
        self._new_is_next = True
        self.delayed = 0

    def add(self, entry: LiveEntry, now: float) -> None:
        """Add an entry that no consumer has."""
        self._queue_of(entry.segment.lane).add(entry, now)
        self.delayed += entry.state is DELAYED

    def _queue_of(self, lane: Lane) -> ReadyQueue:
        if lane == NEW:
            return self._new
        if lane not in self._lanes:
            self._lanes[lane] = ReadyQueue()
            self._round.append(lane)
        return self._lanes[lane]

    def withdraw(self, entry: LiveEntry) -> None:
        """Count an entry no longer that ends while it waits. Call before its state changes."""
        self.delayed -= entry.state is DELAYED

    def promote(self, now: float) -> None:
        for queue in (self._new, *self._lanes.values()):
            self.delayed -= queue.promote(now)

    def take(self, now: float) -> LiveEntry | None:
        """Remove and return the next due entry: new mail and retry lanes alternate, and the retry
        lanes among themselves (LQ-35)."""
        self.promote(now)
        first, second = self._take_new, self._take_retried
        if not self._new_is_next:
            first, second = second, first
        entry = first()
        if entry is not None:
            self._new_is_next = not self._new_is_next
            return entry
        return second()

    def _take_new(self) -> LiveEntry | None:
        return self._new.take()

    def _take_retried(self) -> LiveEntry | None:
        for _ in range(len(self._round)):
            self._round.rotate(-1)
            if (entry := self._lanes[self._round[-1]].take()) is not None:
                return entry
        return None

    def give_back(self, entry: LiveEntry) -> None:
        """Put an entry back that `take` returned to a consumer that was cancelled."""
        self._queue_of(entry.segment.lane).give_back(entry)

    def firsts(self) -> list[LiveEntry]:
        """Return the next due entry of each lane."""
        found = [queue.first() for queue in (self._new, *self._lanes.values())]
        return [each for each in found if each is not None]

    def next_due(self) -> float | None:
        times = [queue.next_due for queue in (self._new, *self._lanes.values())]
        return min((time for time in times if time is not None), default=None)


NEVER = float("inf")


class Wakeups:
    """Waiting consumers and their alarm. Times are seconds of the monotonic clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._alarm: asyncio.Task[None] | None = None
        self._alarm_at = NEVER

    async def wait(self, due: float | None) -> None:
        """Wait until an entry may be ready. `due`: when the next delayed one is due, or None."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        if due is not None:
            self.wake_at(due)
        try:
            await waiter
        except asyncio.CancelledError:
            # It was woken for a mail, which another consumer has to take in its place.
            if waiter.done() and not waiter.cancelled():
                self.wake_one()
            raise

    def wake_one(self) -> None:
        """Wake the consumer that has waited longest."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def wake_all(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    def wake_at(self, due: float) -> None:
        """Wake every consumer at `due`, unless an earlier alarm is set."""
        if due >= self._alarm_at:
            return
        self.close()
        self._alarm_at = due
        self._alarm = asyncio.get_running_loop().create_task(self._ring(due))

    async def _ring(self, due: float) -> None:
        left = due - self._clock.elapsed().total_seconds()
        await self._clock.sleep(timedelta(seconds=max(0.0, left)))
        self._alarm, self._alarm_at = None, NEVER
        self.wake_all()

    def close(self) -> None:
        """Cancel the alarm."""
        if self._alarm is not None:
            self._alarm.cancel()
