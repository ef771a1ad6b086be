"""Holds effects back while this process does not hold the Lease.

Each adapter asks the fence just before a request leaves, because the process may be suspended
anywhere before that. A fence that was shut stays shut. Where a thread or the event loop hangs, so
that an effect might pass, the watchdog ends the process. Source: ADR 0041.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from threading import Event, Thread

from postroad.errors import LeadershipLost
from postroad.ports.clock import Clock

WATCH_SECONDS = 0.25
"""Interval at which the watchdog compares the clock with the end of the Lease."""

MARGIN = timedelta(seconds=1)
"""How long before the end of the Lease the process ends."""

LOST = 75
"""Exit code of a process that the watchdog ends: EX_TEMPFAIL."""


class Fence:
    """Open while this process is the leader. Every thread may ask it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until: timedelta | None = None
        self._end: timedelta | None = None
        self._is_shut = False

    def open(self, until: timedelta, end: timedelta) -> None:
        """Let effects out before `until`; the process must not run at `end`, when another may be
        the leader. Both are moments of the clock. No effect on a fence that was shut."""
        if not self._is_shut:
            self._until, self._end = until, end

    def shut(self) -> None:
        """Let no effect out any more. Idempotent."""
        self._is_shut = True

    def require(self) -> None:
        """Raises: LeadershipLost unless the fence is open; for good, once it was."""
        if self._until is not None:
            if not self._is_shut and self._clock.elapsed() < self._until:
                return
            self._is_shut = True
        raise LeadershipLost("this operator does not hold the Lease")

    def settled(self) -> None:
        """Let the process run on after the end of the Lease: nothing that it began is under way."""
        self.shut()
        self._end = None

    def is_overrun(self) -> bool:
        """Whether the process runs although its Lease is about to end."""
        return self._end is not None and self._clock.elapsed() >= self._end - MARGIN


class Watchdog(Thread):
    """Ends the process before its Lease ends, whatever the event loop and other threads do. A
    process that was suspended ends as soon as it goes on."""

    def __init__(
        self,
        fence: Fence,
        end: Callable[[int], object] = os._exit,
        wait: Callable[[float], bool] | None = None,
    ) -> None:
        super().__init__(name="watchdog", daemon=True)
        self._fence = fence
        self._wait = wait or Event().wait
        self._end = end

    def run(self) -> None:
        """Watch until `wait`, for so many seconds, returns true; by default for ever."""
        while not self._wait(WATCH_SECONDS):
            if self._fence.is_overrun():
                os.write(2, b'{"event": "the lease is over: the process ends", "level": "error"}\n')
                self._end(LOST)
                return
