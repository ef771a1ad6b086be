"""Which objects are to be reconciled, when, and by how many tasks at once.

Level-based: a key says *look at this object*, never what happened to it, so any number of events
about one object are one look. A key is never reconciled by two tasks at once; one that is added
meanwhile is looked at again afterwards. Changes that somebody waits for go before periodic looks.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from datetime import timedelta
from itertools import count
from typing import Generic, TypeVar

from postroad.ports.clock import Randomness
from postroad.telemetry import logs

K = TypeVar("K", bound=Hashable)

FIRST_RETRY, LONGEST_RETRY = timedelta(seconds=1), timedelta(minutes=5)
"""Backoff of a key whose reconcile failed unexpectedly: doubled each time, with jitter."""

PROMOTION_SECONDS = 0.2
"""How often delayed keys are looked through: delays are no more exact than this."""

_log = logs.logger("controller")


class Workqueue(Generic[K]):
    """Runs `look(key)` for added keys. `look` returns after how long it wants to look again (None:
    not by itself); an error is logged and retried with backoff."""

    def __init__(
        self, look: Callable[[K], Awaitable[timedelta | None]], randomness: Randomness
    ) -> None:
        self._look = look
        self._randomness = randomness
        self._urgent: deque[K] = deque()
        self._routine: deque[K] = deque()
        self._waiting: set[K] = set()
        self._running: set[K] = set()
        self._again: dict[K, bool] = {}
        self._failures: dict[K, int] = {}
        self._due: dict[K, float] = {}
        self._later: list[tuple[float, int, K]] = []
        self._numbers = count()
        self._wakeup = asyncio.Event()

    def add(self, key: K, *, urgent: bool = True) -> None:
        """Have a key looked at soon."""
        if key in self._running:
            self._again[key] = self._again.get(key, False) or urgent
            return
        if key in self._waiting:
            if urgent and key in self._routine:
                self._routine.remove(key)
                self._urgent.append(key)
            return
        self._waiting.add(key)
        (self._urgent if urgent else self._routine).append(key)
        self._wakeup.set()

    def add_after(self, key: K, delay: timedelta) -> None:
        """Have a key looked at after a delay, routinely; instead of any delay said before."""
        due = self._due[key] = asyncio.get_running_loop().time() + delay.total_seconds()
        heapq.heappush(self._later, (due, next(self._numbers), key))

    async def run(self, tasks: int) -> None:
        """Look at keys with so many tasks until cancelled."""
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
                    self.add(key, urgent=False)
            await asyncio.sleep(PROMOTION_SECONDS)

    async def _work(self) -> None:
        while True:
            while not (self._urgent or self._routine):
                self._wakeup.clear()
                await self._wakeup.wait()
            key = (self._urgent or self._routine).popleft()
            self._waiting.discard(key)
            self._running.add(key)
            try:
                await self._look_once(key)
            finally:
                self._running.discard(key)
            if key in self._again:
                self.add(key, urgent=self._again.pop(key))

    async def _look_once(self, key: K) -> None:
        try:
            after = await self._look(key)
        except Exception as error:
            failures = self._failures[key] = self._failures.get(key, 0) + 1
            delay = min(FIRST_RETRY * 2 ** min(failures - 1, 20), LONGEST_RETRY)
            delay *= 0.5 + self._randomness.uniform()
            _log.warning(
                "a reconcile failed and is repeated",
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
