"""The timestamps of plain writes: the view's time, as this process reckons it.

Of two plain writes to a cell Cassandra keeps the one with the greater timestamp. By the local wall
clock, a process whose clock is ahead would win over all later writes. By the coordinator's clock at
arrival, a write that was stuck in a cut connection would win over those that were made after it. So
each write gets the view's time at which this process made it: the session reads the clocks of
Cassandra's hosts when it connects and with every `Session.server_times`, takes the time that most
of them agree on (`domain.clocks`), and adds CLOCK_BOOTTIME in between.
(Lightweight transactions have timestamps of their own, which Cassandra orders; rows, which are
never written twice with different values, get the coordinator's: `INSERT_ROW`.)
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta

from postroad.domain.values.clocks import AGREEING, AgreedTime
from postroad.domain.values.identifiers import EPOCH
from postroad.telemetry.logs import logger

DRIFT_PER_MILLION = 200
"""How far two clocks drift apart at most: twice the 50 of a quartz clock, doubled."""

READ_PRECISION_NS = 1_000_000
"""Cassandra returns its time in milliseconds, rounded down."""


AGREEING_NS = AGREEING // timedelta(microseconds=1) * 1000

ENOUGH = 3
"""Readings of a single host in a row that replace the known time, where they agree with each other
and not with it. A time that two hosts or more agree on replaces it at once."""

_LEFT: ContextVar[bool] = ContextVar("left to the server", default=False)
_LOG = logger("cassandra")


def boot_ns() -> int:
    """Return CLOCK_BOOTTIME: it never steps, and goes on in a suspended machine."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class _Reading:
    """At `at` of the local clock the view's clock was ahead by `offset`, plus or minus `doubt`; all
    in nanoseconds."""

    at: int
    offset: int
    doubt: int

    def doubt_at(self, now: int) -> int:
        return self.doubt + (now - self.at) * DRIFT_PER_MILLION // 1_000_000

    def agrees_with(self, later: _Reading) -> bool:
        between = abs(later.offset - self.offset)
        return between <= self.doubt_at(later.at) + later.doubt + AGREEING_NS


class Timestamps:
    """The driver's `timestamp_generator`: returns increasing microseconds, one for each request.
    Safe in threads."""

    def __init__(self, clock_ns: Callable[[], int] = boot_ns) -> None:
        self.clock_ns = clock_ns
        self._reading: _Reading | None = None
        self._outliers: list[_Reading] = []
        """The last outliers: they agree with each other and not with the known reading."""
        self._last = 0
        self._lock = threading.Lock()

    def __call__(self) -> int | None:
        return None if _LEFT.get() else self.now_us()

    @contextmanager
    def left_to_the_server(self, is_left: bool) -> Iterator[None]:
        """If `is_left`, leave the timestamps of requests sent in this context to the
        coordinator."""
        before = _LEFT.set(is_left)
        try:
            yield
        finally:
            _LEFT.reset(before)

    def now_us(self) -> int:
        """Return the view's time in microseconds, greater than every earlier result."""
        with self._lock:
            if self._reading is None:
                return time.time_ns() // 1000  # no write: until then requests only read clocks
            now = (self.clock_ns() + self._reading.offset) // 1000
            self._last = max(self._last + 1, now)
            return self._last

    @property
    def is_known(self) -> bool:
        """Whether the view's time was read."""
        return self._reading is not None

    def learn(self, at_ns: int, agreed: AgreedTime) -> None:
        """Learn the view's time at `at_ns` of `clock_ns`. Ignore less precise readings; accept a
        single host's outlier after ENOUGH agreeing ones."""
        theirs_ns = (agreed.time - EPOCH) // timedelta(microseconds=1) * 1000
        doubt_ns = agreed.doubt // timedelta(microseconds=1) * 1000
        reading = _Reading(at_ns, theirs_ns - at_ns, doubt_ns)
        with self._lock:
            known = self._reading
            if known is None or known.agrees_with(reading):
                self._outliers.clear()
                if known is None or reading.doubt <= known.doubt_at(at_ns):
                    self._reading = reading
                return
            if self._outliers and not self._outliers[-1].agrees_with(reading):
                self._outliers.clear()
            self._outliers.append(reading)
            is_accepted = agreed.votes > 1 or len(self._outliers) >= ENOUGH
            if is_accepted:
                self._reading = reading
                self._outliers.clear()
        _LOG.warning(
            "Cassandra's clock has jumped",
            seconds=round((reading.offset - known.offset) / 1e9, 1),
            is_accepted=is_accepted,
        )
