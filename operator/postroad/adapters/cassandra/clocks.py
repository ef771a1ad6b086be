"""Reads the clock of each Cassandra host; the view's time is what most of them agree on.

A host whose clock is wrong gives wrong timestamps and expiries to what it coordinates: the session
sends requests to it last, and logs an error. Source: ADR 0016.

The timestamps of plain writes: the view's time, as this process reckons it.

Of two plain writes to a cell Cassandra keeps the one with the greater timestamp. By the local wall
clock, a process whose clock is ahead would win over all later writes. By the coordinator's clock at
arrival, a write that was stuck in a cut connection would win over those that were made after it. So
each write gets the view's time at which this process made it: the session reads the clocks of
Cassandra's hosts when it connects and with every `Session.server_times`, takes the time that most
of them agree on (`domain.values.instants`), and adds CLOCK_BOOTTIME in between.
(Lightweight transactions have timestamps of their own, which Cassandra orders; rows, which are
never written twice with different values, get the coordinator's: `INSERT_ROW`.)"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from cassandra.cluster import Session as DriverSession
from cassandra.policies import LoadBalancingPolicy, TokenAwarePolicy
from cassandra.pool import Host

from postroad.domain.values.identifiers import EPOCH
from postroad.domain.values.instants import AGREEING, AgreedTime, HostTime, Readings, agreed_time
from postroad.errors import ViewUnavailable
from postroad.telemetry import metrics
from postroad.telemetry.logs import logger

DRIFT_PER_MILLION = 200
"""Difference by which two clocks drift apart at most: twice the 50 of a quartz clock, doubled."""

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
    """At `at` of the local clock the view's was ahead by `offset` ± `doubt`; all in nanoseconds."""

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
        """If `is_left`, leave the timestamps of requests in this context to the coordinator."""
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
        """True if the view's time was read."""
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


SERVER_TIME = "SELECT toTimestamp(now()) AS now FROM system.local"
"""The clock of the host that coordinates the request."""

READ_TIMEOUT = timedelta(seconds=2)
"""Time that a host may take to return its time. A slower answer would be too imprecise."""

MAX_ASKED_HOSTS = 7
"""Hosts of one reading. Of more, each reading takes the next ones."""

FRESH_NS = 1_000_000_000
"""Time that the queues of a session share a reading."""


class _HostAnswer(NamedTuple):
    host: str
    before: int
    theirs: datetime
    after: int


class HostClocks:
    """Reads the hosts' clocks, for `timestamps` and the load balancing. Safe in threads."""

    def __init__(self, timestamps: Timestamps, local_datacenter: str) -> None:
        self.timestamps = timestamps
        self.wrong: frozenset[str] = frozenset()
        """Hosts whose clocks disagreed with most others at the last reading."""
        self._local = local_datacenter
        self._first = 0
        self._last: tuple[int, Readings] | None = None
        self._lock = threading.Lock()

    def read(self, session: DriverSession) -> None:
        """Read the clocks for `now`, unless the last reading is fresh. Blocks for at most
        READ_TIMEOUT. Raises: ViewUnavailable when no host answers."""
        with self._lock:
            if not self.is_fresh():
                at, readings = self._last = self._read(session)
                self._learn(at, readings)

    def is_fresh(self) -> bool:
        """True if `read` would ask no host."""
        last = self._last
        return last is not None and self.timestamps.clock_ns() - last[0] < FRESH_NS

    def now(self) -> Readings:
        """Return what the clocks of the last reading show now."""
        assert self._last is not None
        at, readings = self._last
        return readings.later(timedelta(microseconds=(self.timestamps.clock_ns() - at) // 1000))

    def _read(self, session: DriverSession) -> tuple[int, Readings]:
        hosts = self._chosen(session)
        asked = [self._ask(session, host) for host in hosts]
        answers = [answer for each in asked if (answer := each()) is not None]
        if not answers:
            raise ViewUnavailable("no Cassandra host returned its time")
        now = self.timestamps.clock_ns()
        return now, Readings(tuple(_as_of(now, each) for each in answers), len(hosts))

    def _chosen(self, session: DriverSession) -> list[Host]:
        known = session.cluster.metadata.all_hosts()
        local = [
            each for each in known if each.datacenter == self._local and each.is_up is not False
        ]
        local.sort(key=lambda each: str(each.endpoint))
        first = self._first % max(len(local), 1)
        self._first = first + MAX_ASKED_HOSTS
        return (local[first:] + local[:first])[:MAX_ASKED_HOSTS]

    def _ask(self, session: DriverSession, host: Host) -> Callable[[], _HostAnswer | None]:
        """Send the request; return a function that waits for the answer, None without one."""
        arrived: list[int] = []
        clock = self.timestamps.clock_ns
        before = clock()
        future = session.execute_async(SERVER_TIME, timeout=READ_TIMEOUT.total_seconds(), host=host)
        future.add_callbacks(lambda _: arrived.append(clock()), lambda _: None)

        def answer() -> _HostAnswer | None:
            try:
                theirs = future.result().one()["now"].replace(tzinfo=UTC)
            except Exception as error:
                _LOG.debug(
                    "a host did not return its time", host=_name(host), error=type(error).__name__
                )
                return None
            return _HostAnswer(_name(host), before, theirs, arrived[0] if arrived else clock())

        return answer

    def _learn(self, now: int, readings: Readings) -> None:
        agreed = agreed_time(readings)
        if agreed is None:
            _LOG.error(
                "the clocks of the Cassandra hosts disagree: no time is agreed",
                hosts=readings.hosts,
                times={each.host: each.time.isoformat() for each in readings.times},
            )
            return
        self.timestamps.learn(now, agreed)
        self._note_wrong(readings, agreed)

    def _note_wrong(self, readings: Readings, agreed: AgreedTime) -> None:
        wrong = {each.host: each for each in agreed.wrong}
        right = {each.host for each in readings.times} - wrong.keys()
        for host in wrong.keys() - self.wrong:
            _LOG.error(
                "the clock of a Cassandra host is wrong: requests go to the host last",
                host=host,
                seconds=round((wrong[host].time - agreed.time).total_seconds(), 1),
            )
        for host in self.wrong & right:
            _LOG.info("the clock of a Cassandra host is right again", host=host)
        self.wrong = (self.wrong - right) | wrong.keys()
        metrics.WRONG_CLOCKS.set(len(self.wrong))


def _as_of(now: int, answer: _HostAnswer) -> HostTime:
    """Return what a host's clock shows now, if it runs as fast as the local one."""
    since = now - (answer.before + answer.after) // 2 + READ_PRECISION_NS // 2
    doubt = (answer.after - answer.before + READ_PRECISION_NS) // 2
    return HostTime(
        answer.host,
        answer.theirs + timedelta(microseconds=since // 1000),
        timedelta(microseconds=doubt // 1000 + 1),
    )


def _name(host: Host) -> str:
    return str(host.endpoint)


class RightClocksFirst(TokenAwarePolicy):  # type: ignore[misc]
    """Orders coordinators as the child policy does, those with wrong clocks last."""

    def __init__(self, child: LoadBalancingPolicy, clocks: HostClocks) -> None:
        super().__init__(child)
        self._clocks = clocks

    def make_query_plan(
        self, working_keyspace: str | None = None, query: Any = None
    ) -> Iterator[Host]:
        wrong = self._clocks.wrong
        plan = super().make_query_plan(working_keyspace, query)
        if not wrong:
            yield from plan
            return
        last = []
        for host in plan:
            if _name(host) in wrong:
                last.append(host)
            else:
                yield host
        yield from last
