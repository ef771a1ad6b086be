"""The timestamps of plain writes: the view's clock, as this process reckons it.

Of two plain writes to a cell Cassandra keeps the one with the greater timestamp. By the local wall
clock, a process whose clock is ahead would win over everybody's later writes. By the coordinator's
at arrival, a write that was stuck in a cut connection would win over those that were made after it.
So each write gets the view's time at which it was made here: the clocks of Cassandra's hosts are
read when the session connects and with every `Session.server_times`, what most of them agree on is
believed (`domain.clocks`), and in between CLOCK_BOOTTIME goes on.
(Lightweight transactions have timestamps of their own, which Cassandra orders; rows, which are
never written twice with different values, are left to the coordinator: `INSERT_ROW`.)
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta

from postroad.domain.clocks import AGREEING, AgreedTime
from postroad.domain.identifiers import EPOCH
from postroad.telemetry.logs import logger

DRIFT_PER_MILLION = 200
"""How far two clocks run apart at most. Quartz does 50; this is both of them, with room."""

READ_PRECISION_NS = 1_000_000
"""Cassandra tells its time to the millisecond, rounded down."""


AGREEING_NS = AGREEING // timedelta(microseconds=1) * 1000

ENOUGH = 3
"""So many readings of one host in a row that agree with each other are believed, whatever was
known. What two hosts or more agree on is believed at once."""

_LEFT: ContextVar[bool] = ContextVar("left to the server", default=False)
_LOG = logger("cassandra")


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

    def agrees_with(self, later: _Reading) -> bool:
        between = abs(later.offset - self.offset)
        return between <= self.doubt_at(later.at) + later.doubt + AGREEING_NS


class Timestamps:
    """The driver's `timestamp_generator`: called for every request, it returns microseconds that
    only grow. Safe in threads."""

    def __init__(self, clock_ns: Callable[[], int] = boot_ns) -> None:
        self.clock_ns = clock_ns
        self._reading: _Reading | None = None
        self._strange: list[_Reading] = []
        """The last readings, as far as they agree with each other and not with what is known."""
        self._last = 0
        self._lock = threading.Lock()

    def __call__(self) -> int | None:
        return None if _LEFT.get() else self.now_us()

    @contextmanager
    def left_to_the_server(self, is_left: bool) -> Iterator[None]:
        """Give no timestamp to what is sent here, so that the coordinator gives one, if so."""
        before = _LEFT.set(is_left)
        try:
            yield
        finally:
            _LEFT.reset(before)

    def now_us(self) -> int:
        """Return the view's time in microseconds, later than ever before."""
        with self._lock:
            if self._reading is None:
                return time.time_ns() // 1000  # only clocks are read before the first learning
            now = (self.clock_ns() + self._reading.offset) // 1000
            self._last = max(self._last + 1, now)
            return self._last

    @property
    def is_known(self) -> bool:
        """Whether the view's time was ever learned."""
        return self._reading is not None

    def learn(self, at_ns: int, agreed: AgreedTime) -> None:
        """Take in the view's time at a moment of `clock_ns`. What is more doubtful than what is
        known is left out; what one host alone shows far from it, until `ENOUGH` readings agree."""
        theirs_ns = (agreed.time - EPOCH) // timedelta(microseconds=1) * 1000
        doubt_ns = agreed.doubt // timedelta(microseconds=1) * 1000
        reading = _Reading(at_ns, theirs_ns - at_ns, doubt_ns)
        with self._lock:
            known = self._reading
            if known is None or known.agrees_with(reading):
                self._strange.clear()
                if known is None or reading.doubt <= known.doubt_at(at_ns):
                    self._reading = reading
                return
            if self._strange and not self._strange[-1].agrees_with(reading):
                self._strange.clear()
            self._strange.append(reading)
            is_believed = agreed.votes > 1 or len(self._strange) >= ENOUGH
            if is_believed:
                self._reading = reading
                self._strange.clear()
        _LOG.warning(
            "Cassandra's clock is not where it was",
            seconds=round((reading.offset - known.offset) / 1e9, 1),
            is_believed=is_believed,
        )
