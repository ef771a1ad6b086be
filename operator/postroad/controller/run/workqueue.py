"""The queue of objects to reconcile, and the tasks that reconcile them.

Level-based: a key names an object, never what happened to it, so that any number of events about
one object are one reconcile. No two tasks reconcile a key at once; a key that is added meanwhile is
reconciled again afterwards. Objects that a user changed go first, so that a new resource does not
wait for the children of a thousand others, which roll; periodic reconciles go last. Of equal
urgency, keys of different servers go in turn.

Keys whose reconciles need the same servers hold a bounded number of tasks together, so that
servers that hang do not stop the reconciles of other ones."""

import asyncio
import heapq
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable, Hashable
from datetime import timedelta
from enum import IntEnum
from itertools import count
from typing import Generic, NamedTuple, TypeVar

from postroad.ports.clock import Randomness
from postroad.telemetry import logs

K = TypeVar("K", bound=Hashable)

FIRST_RETRY, MAX_RETRY = timedelta(seconds=1), timedelta(minutes=5)
"""Delay of a key whose reconcile failed: doubled each time, with jitter."""

MIN_INTERVAL_SECONDS = 1.0
"""Between the begins of two reconciles of one key, whatever happens to it meanwhile."""

TASKS, SHARE = 32, 0.25
"""Concurrent reconciles, which mostly wait for servers; the part of them that may need the same
ones."""

PROMOTION_SECONDS = 0.2
"""Interval at which due keys are found: delays are no more exact than this."""

_log = logs.logger("controller")


class Urgency(IntEnum):
    """Order of keys."""

    CHANGE, CHILD, ROUTINE = range(3)


class _Ready(Generic[K]):
    """Keys of one urgency, by the servers that they need."""

    def __init__(self) -> None:
        self._keys: OrderedDict[Hashable, dict[K, None]] = OrderedDict()

    def append(self, key: K, servers: Hashable) -> None:
        self._keys.setdefault(servers, {})[key] = None

    def remove(self, key: K, servers: Hashable) -> None:
        keys = self._keys[servers]
        del keys[key]
        if not keys:
            del self._keys[servers]

    def first(self, has_room: Callable[[Hashable], bool]) -> K | None:
        """Return the oldest key of the servers that go next, of those with room."""
        servers = next(filter(has_room, self._keys), None)
        if servers is None:
            return None
        self._keys.move_to_end(servers)
        return next(iter(self._keys[servers]))


class WaitingKey(NamedTuple):
    """Urgency of a waiting key, the servers that it needs, and since when it waits."""

    urgency: Urgency
    servers: Hashable
    since: float


class Workqueue(Generic[K]):
    """Runs `reconcile(key)` for added keys, and again after the time that it returns (None: only
    when added again); an error is logged and retried with backoff. `servers_of(key)`: which servers
    its reconcile needs."""

    def __init__(
        self,
        reconcile: Callable[[K], Awaitable[timedelta | None]],
        randomness: Randomness,
        servers_of: Callable[[K], Hashable],
    ) -> None:
        self._reconcile = reconcile
        self._randomness = randomness
        self._servers_of = servers_of
        self._ready: dict[Urgency, _Ready[K]] = {each: _Ready() for each in Urgency}
        self._waiting: dict[K, WaitingKey] = {}
        self._busy: set[K] = set()
        self._again: dict[K, Urgency] = {}
        self._together: Counter[Hashable] = Counter()
        self._room = 1
        self._failures: dict[K, int] = {}
        self._due: dict[K, float] = {}
        self._later: list[tuple[float, int, K]] = []
        self._numbers = count()
        self._idle: deque[asyncio.Future[None]] = deque()
        """Tasks that found nothing to take, until one is woken."""
        self._is_ending = False
        self._ended = asyncio.Event()

    def add(self, key: K, urgency: Urgency = Urgency.CHANGE) -> None:
        """Reconcile a key as soon as a task is free and no key of higher urgency waits."""
        if key in self._busy:
            self._again[key] = min(self._again.get(key, urgency), urgency)
            return
        waits = self._waiting.get(key)
        if waits is not None:
            if waits.urgency <= urgency:
                return
            self._ready[waits.urgency].remove(key, waits.servers)
        servers = self._servers_of(key)
        since = asyncio.get_running_loop().time() if waits is None else waits.since
        self._waiting[key] = WaitingKey(urgency, servers, since)
        self._ready[urgency].append(key, servers)
        self._wake_one()

    def add_after(self, key: K, delay: timedelta) -> None:
        """Reconcile a key after a delay, which replaces any earlier one."""
        due = self._due[key] = asyncio.get_running_loop().time() + delay.total_seconds()
        heapq.heappush(self._later, (due, next(self._numbers), key))

    def depths(self) -> dict[Urgency, int]:
        """Return how many keys wait, by urgency."""
        urgencies = [waits.urgency for waits in self._waiting.values()]
        return {each: urgencies.count(each) for each in Urgency}

    def oldest_seconds(self) -> float:
        """Return for how long the key waits that has waited longest; 0 when none waits."""
        first = next(iter(self._waiting.values()), None)  # a more urgent key keeps its place
        return 0.0 if first is None else asyncio.get_running_loop().time() - first.since

    async def run(self, tasks: int) -> None:
        """Reconcile with so many tasks until cancelled."""
        self._room = max(1, int(tasks * SHARE))
        async with asyncio.TaskGroup() as group:
            group.create_task(self._promote())
            for _ in range(tasks):
                group.create_task(self._work())

    async def finish(self) -> None:
        """Begin no further reconcile; return when those under way have ended."""
        self._is_ending = True
        while self._together:
            self._ended.clear()
            await self._ended.wait()

    async def _promote(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            while self._later and self._later[0][0] <= loop.time():
                due, _, key = heapq.heappop(self._later)
                if self._due.get(key) == due:
                    self._due.pop(key)
                    self.add(key, Urgency.ROUTINE)
            await asyncio.sleep(PROMOTION_SECONDS)

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            while self._is_ending or (taken := self._take()) is None:
                await self._wait()
            key, servers = taken
            began = loop.time()
            try:
                await self._reconcile_once(key)
            finally:
                self._leave(servers)
                loop.call_at(began + MIN_INTERVAL_SECONDS, self._release, key)

    async def _wait(self) -> None:
        woken = asyncio.get_running_loop().create_future()
        self._idle.append(woken)
        await woken

    def _wake_one(self) -> None:
        """Wake one idle task for a key that was added. A task whose reconcile ends, and so makes
        room at its servers, looks for a key itself."""
        while self._idle:
            woken = self._idle.popleft()
            if not woken.done():  # else its task was cancelled
                woken.set_result(None)
                return

    def _take(self) -> tuple[K, Hashable] | None:
        """Take the key that goes next; None while no server has room for one more reconcile."""
        for ready in self._ready.values():
            key = ready.first(lambda servers: self._together[servers] < self._room)
            if key is not None:
                servers = self._waiting.pop(key).servers
                ready.remove(key, servers)
                self._busy.add(key)
                self._together[servers] += 1
                return key, servers
        return None

    def _leave(self, servers: Hashable) -> None:
        self._together[servers] -= 1
        if not self._together[servers]:
            del self._together[servers]
        self._ended.set()

    def _release(self, key: K) -> None:
        """Let a key be reconciled again."""
        self._busy.discard(key)
        if key in self._again:
            self.add(key, self._again.pop(key))

    async def _reconcile_once(self, key: K) -> None:
        try:
            after = await self._reconcile(key)
        except Exception as error:
            failures = self._failures[key] = self._failures.get(key, 0) + 1
            delay = min(FIRST_RETRY * 2 ** min(failures - 1, 20), MAX_RETRY)
            delay *= 0.5 + self._randomness.uniform()
            _log.warning(
                "reconcile failed; it is repeated",
                key=str(key),
                error=str(error),
                failures=failures,
                exc_info=not hasattr(error, "transient"),
            )
            self.add_after(key, delay)
            return
        self._failures.pop(key, None)
        if after is not None:
            self.add_after(key, after)
