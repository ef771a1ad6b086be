"""The limits that this process last read, and its clock compared with the view's.

The view's time is what most of its hosts agree on (`domain.values.instants`). Between two readings
the elapsed time is added to it, so that a step of the wall clock is noticed at its next use. Limits
may be used for less than one lease after they were read, because cleanup waits a full lease between
moving browse start and deleting marks: a process that finds no mark has the browse start that
explains it. Source: 001; invariants 4 and 7."""

import asyncio
from dataclasses import dataclass
from datetime import datetime, timedelta

from postroad.distributed.engine.timing import Timing
from postroad.domain.values.instants import agreed_time
from postroad.errors import ClockSkew, ServerError, ViewUnavailable
from postroad.ports.clock import Clock
from postroad.ports.view import Limits, View


@dataclass(frozen=True, slots=True)
class ViewTime:
    """The view's time: `origin`, give or take `doubt`, when the elapsed time was zero."""

    at: timedelta
    origin: datetime
    doubt: timedelta


@dataclass(frozen=True, slots=True)
class LimitsSnapshot:
    """One reading. `at`: the elapsed time before it began. `time`: None when most of the view's
    hosts have not agreed for a lease."""

    at: timedelta
    limits: Limits
    time: ViewTime | None


@dataclass(frozen=True, slots=True)
class Beginning:
    """When an operation over all that waits began, by one reading. `latest`: what had been accepted
    before was accepted by then, and lies in slices up to then, as far as its process had a
    tolerated clock. `browse_start`: None where the queue has no limits."""

    browse_start: datetime | None
    at: datetime
    latest: datetime


class LimitsCache:
    """Reads limits and the view's clock when they are needed; one reading serves all callers."""

    def __init__(self, view: View, clock: Clock, timing: Timing) -> None:
        self._view = view
        self._clock = clock
        self._timing = timing
        self._snapshot: LimitsSnapshot | None = None
        self._reading = asyncio.Lock()
        self._attempt = self._failed = (
            0  # the numbers of the last reading, and of the last that failed
        )

    async def limits(self) -> Limits:
        """Return limits read less than a lease ago, most often without I/O. Raises: ViewError."""
        return (await self.snapshot()).limits

    async def check_clock(self) -> None:
        """Refuse to make ids by a clock too far from the view's. Raises: ClockSkew, ViewError."""
        time = await self._time()
        apart = abs(self._clock.now() - time.origin - self._clock.elapsed())
        # Subtract the doubt: a slow reading must not refuse ids.
        if apart - time.doubt > self._timing.skew:
            raise ClockSkew(f"the local clock is {apart} from the view's clock")

    async def earliest_now(self) -> datetime:
        """Return the view's time or the local clock's, whichever is earlier. Raises: ClockSkew when
        the view's hosts do not agree on the time, ViewError."""
        return min(await self.view_now(), self._clock.now())

    async def view_now(self) -> datetime:
        """Return the view's time. Raises: as `earliest_now`."""
        time = await self._time()
        return time.origin + self._clock.elapsed() - time.doubt

    def now(self) -> datetime:
        """Return the local clock's time, or the view's where the last reading shows that the local
        clock is further off than tolerated: a message's delay follows from it. No I/O."""
        now, time = self._clock.now(), self._snapshot.time if self._snapshot is not None else None
        if time is None:
            return now
        of_view = time.origin + self._clock.elapsed()
        return now if abs(now - of_view) <= self._timing.skew + time.doubt else of_view

    async def begin(self) -> Beginning:
        """Read anew, and return when an operation over all that waits begins: by the view's time,
        because by a local clock that is behind it would leave out the youngest mail; by the local
        clock where most of the view's hosts do not agree. Raises: ViewError."""
        async with self._reading:
            snapshot = await self._read()
        time = snapshot.time
        latest = (
            self._clock.now() if time is None else time.origin + self._clock.elapsed() + time.doubt
        )
        browse_start = snapshot.limits.browse_start
        return Beginning(browse_start, self.now(), latest + self._timing.apart)

    async def _time(self) -> ViewTime:
        time = (await self.snapshot()).time
        if time is None:
            raise ClockSkew(
                "most hosts of the view do not agree on the time",
                hint="synchronise the clocks of the Cassandra hosts (NTP)",
            )
        return time

    async def refresh(self) -> Limits:
        """Read anew. Raises: ViewError."""
        async with self._reading:
            return (await self._read()).limits

    async def snapshot(self) -> LimitsSnapshot:
        """Return a reading less than a lease old, most often without I/O. Raises: ViewError."""
        snapshot = self._snapshot
        if snapshot is not None and self._age(snapshot) < self._timing.read_lease / 3:
            return snapshot
        waits_for = self._attempt if self._reading.locked() else None
        async with self._reading:
            snapshot = self._snapshot
            if snapshot is not None and self._age(snapshot) < self._timing.read_lease / 3:
                return snapshot
            try:
                if waits_for is not None and self._failed >= waits_for:
                    # Fail every caller queued behind a failed read; sequential retries would add
                    # up their timeouts.
                    raise ViewUnavailable("the limits could not be read")
                return await self._read()
            except ServerError as error:
                # The old reading is valid for the rest of its lease. Half of that is left to
                # callers that compare it with marks they read afterwards.
                if (
                    error.transient
                    and snapshot is not None
                    and self._age(snapshot) < self._timing.read_lease / 2
                ):
                    return snapshot
                raise

    def is_good(self, snapshot: LimitsSnapshot) -> bool:
        """True if a reading may still be used: it explains every mark that cleanup has deleted."""
        return self._age(snapshot) < self._timing.read_lease

    def check(self, snapshot: LimitsSnapshot) -> None:
        """Refuse to use marks that were read after these limits when a suspension, or a slow view,
        made the limits too old to explain a missing mark. Raises: ViewUnavailable."""
        if not self.is_good(snapshot):
            raise ViewUnavailable("the limits are older than a lease: read them again")

    def _age(self, snapshot: LimitsSnapshot) -> timedelta:
        return self._clock.elapsed() - snapshot.at

    async def _read(self) -> LimitsSnapshot:
        self._attempt += 1
        try:
            return await self._read_once()
        except ServerError:
            self._failed = self._attempt
            raise

    async def _read_once(self) -> LimitsSnapshot:
        at = self._clock.elapsed()
        limits = await self._view.limits()
        agreed = agreed_time(await self._view.server_times())
        now = self._clock.elapsed()
        if agreed is not None:
            time: ViewTime | None = ViewTime(now, agreed.time - now, agreed.doubt)
        else:
            time = self._snapshot.time if self._snapshot is not None else None
            if time is not None and now - time.at >= self._timing.read_lease:
                time = None
        self._snapshot = LimitsSnapshot(at, limits, time)
        return self._snapshot
