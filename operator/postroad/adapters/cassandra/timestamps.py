"""The timestamps of plain writes: the view's clock, as this process reckons it.

Of two plain writes to a cell Cassandra keeps the one with the greater timestamp. By the local wall
clock, a process whose clock is ahead would win over everybody's later writes. By the coordinator's
at arrival, a write that was stuck in a cut connection would win over those that were made after it.
So each write gets the view's time at which it was made here: Cassandra's clock is read when the
session connects and with every `Session.server_time`, and in between CLOCK_BOOTTIME goes on.
(Lightweight transactions have timestamps of their own, which Cassandra orders.)
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from postroad.domain.identifiers import EPOCH

DRIFT_PER_MILLION = 200
"""How far two clocks run apart at most. Quartz does 50; this is both of them, with room."""

READ_PRECISION_NS = 1_000_000
"""Cassandra tells its time to the millisecond, rounded down."""


def boot_ns() -> int:
    """Return CLOCK_BOOTTIME: it never steps, and goes on in a suspended machine."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class _Reading:
    """At `at` of the local clock the view's was ahead by `offset`, give or take `doubt`; all in
    nanoseconds."""

    at: int
    offset: int
    doubt: int

    def doubt_at(self, now: int) -> int:
        return self.doubt + (now - self.at) * DRIFT_PER_MILLION // 1_000_000


class Timestamps:
    """The driver's `timestamp_generator`: called for every request, it returns microseconds that
    only grow. Safe in threads."""

    def __init__(self, clock_ns: Callable[[], int] = boot_ns) -> None:
        self.clock_ns = clock_ns
        self._reading: _Reading | None = None
        self._last = 0
        self._lock = threading.Lock()

    def __call__(self) -> int:
        with self._lock:
            if self._reading is None:
                return time.time_ns() // 1000  # only reads are made before the first learning
            now = (self.clock_ns() + self._reading.offset) // 1000
            self._last = max(self._last + 1, now)
            return self._last

    def learn(self, before_ns: int, theirs: datetime, after_ns: int) -> None:
        """Take in what the view's clock showed between two moments of `clock_ns`. What is more
        doubtful than what is known is left out."""
        theirs_ns = (theirs - EPOCH) // timedelta(microseconds=1) * 1000 + READ_PRECISION_NS // 2
        middle = (before_ns + after_ns) // 2
        reading = _Reading(
            middle, theirs_ns - middle, (after_ns - before_ns + READ_PRECISION_NS) // 2
        )
        with self._lock:
            known = self._reading
            if known is None or reading.doubt <= known.doubt_at(middle):
                self._reading = reading
