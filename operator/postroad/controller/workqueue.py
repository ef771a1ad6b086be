"""The queue of objects to reconcile, and the tasks that reconcile them.

Level-based: a key names an object, never what happened to it, so that any number of events about
one object are one reconcile. No two tasks reconcile a key at once; a key that is added meanwhile is
reconciled again afterwards. Objects that a user changed go first, so that a new resource does not
wait for the children of a thousand others, which roll; periodic reconciles go last.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from datetime import timedelta
from enum import IntEnum
from itertools import count
from typing import Generic, TypeVar

from postroad.ports.clock import Randomness
from postroad.telemetry import logs

K = TypeVar("K", bound=Hashable)

FIRST_RETRY, LONGEST_RETRY = timedelta(seconds=1), timedelta(minutes=5)
"""Delay of a key whose reconcile failed: doubled each time, with jitter."""

PROMOTION_SECONDS = 0.2
"""Interval at which due keys are found: delays are no more exact than this."""

_log = logs.logger("controller")


class Urgency(IntEnum):
    """Which keys go first."""

    CHANGE, CHILD, ROUTINE = range(3)


class Workqueue(Generic[K]):
    """Runs `reconcile(key)` for added keys, and again after the time that it returns (None: only
    when added again); an error is logged and retried with backoff."""

    def __init__(
        self, reconcile: Callable[[K], Awaitable[timedelta | None]], randomness: Randomness
    ) -> None:
        self._reconcile = reconcile
        self._randomness = randomness
        self._ready: dict[Urgency, deque[K]] = {each: deque() for each in Urgency}
        self._waiting: dict[K, Urgency] = {}
        self._running: set[K] = set()
        self._again: dict[K, Urgency] = {}
        self._failures: dict[K, int] = {}
        self._due: dict[K, float] = {}
        self._later: list[tuple[float, int, K]] = []
        self._numbers = count()
        self._wakeup = asyncio.Event()

    def add(self, key: K, urgency: Urgency = Urgency.CHANGE) -> None:
        """Reconcile a key as soon as a task is free and no key of higher urgency waits."""
        if key in self._running:
            self._again[key] = min(self._again.get(key, urgency), urgency)
            return
        waits = self._waiting.get(key)
        if waits is not None and waits <= urgency:
            return
        self._waiting[key] = urgency
        self._ready[urgency].append(key)
        self._wakeup.set()

    def add_after(self, key: K, delay: timedelta) -> None:
        """Reconcile a key after a delay, which replaces any earlier one."""
        due = self._due[key] = asyncio.get_running_loop().time() + delay.total_seconds()
        heapq.heappush(self._later, (due, next(self._numbers), key))

    async def run(self, tasks: int) -> None:
        """Reconcile with so many tasks until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._promote())
            for _ in range(tasks):
                group.create_task(self._work())

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
        while True:
            while not self._waiting:
                self._wakeup.clear()
                await self._wakeup.wait()
            key = self._next()
            self._running.add(key)
            try:
                await self._reconcile_once(key)
            finally:
                self._running.discard(key)
            if key in self._again:
                self.add(key, self._again.pop(key))

    def _next(self) -> K:
        for urgency, ready in self._ready.items():
            while ready:
                key = ready.popleft()
                if self._waiting.get(key) is urgency:  # else it has since become more urgent
                    del self._waiting[key]
                    return key
        raise AssertionError("no key waits")

    async def _reconcile_once(self, key: K) -> None:
        try:
            after = await self._reconcile(key)
        except Exception as error:
            failures = self._failures[key] = self._failures.get(key, 0) + 1
            delay = min(FIRST_RETRY * 2 ** min(failures - 1, 20), LONGEST_RETRY)
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
