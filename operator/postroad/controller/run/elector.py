"""Elects the one of several operators that acts: reads and writes the Lease, and moves the fence.

A candidate takes over when the record has not changed for its duration, by the candidate's own
clock since it first saw the record; the timestamps in it decide nothing, because clocks differ. A
leader counts from the moment at which it sent a renewal that succeeded, which is earlier than any
candidate can have seen it. So it stops before a candidate begins.

Each adapter asks the fence just before a request leaves, because the process may be suspended
anywhere before that. A fence that was shut stays shut. Where a thread or the event loop hangs, so
that an effect might pass, the watchdog ends the process.

Its client of the API server is not the reconciles': theirs may be busy with slow requests, and is
behind the fence. Source: ADR 0041."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from threading import Event, Thread
from typing import Any, NamedTuple, NoReturn

from postroad.controller.kubernetes.api import LEASE, MANAGED_BY
from postroad.errors import KubernetesConflict, KubernetesError, LeadershipLost
from postroad.ports.clock import Clock, Randomness
from postroad.ports.kubernetes import Kubernetes, Object
from postroad.telemetry import logs, metrics

JITTER = 0.2
"""Pauses between requests are longer by up to this part, so that candidates do not collide."""

RELEASED = timedelta(seconds=1)
"""The duration in a record that was given back; the API server refuses zero."""


@dataclass(frozen=True, slots=True)
class LeaseRules:
    """The times of an election. `duration`: a candidate waits so long after the last change that it
    saw. `deadline`: the leader has no effects once it sent its last successful renewal so long ago.
    `retry`: between requests. Raises ValueError where a leader could not renew in time."""

    duration: timedelta = timedelta(seconds=15)
    deadline: timedelta = timedelta(seconds=10)
    retry: timedelta = timedelta(seconds=2)

    def __post_init__(self) -> None:
        if not timedelta(0) < self.retry * (1 + JITTER) < self.deadline < self.duration:
            raise ValueError(f"a lease needs retry < deadline < duration: {self}")

    def pause(self, chance: float) -> timedelta:
        """Return a pause, by a random number in [0, 1)."""
        return self.retry * (1 + JITTER * chance)


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """Fields that the spec of a Lease contains. No `holder`: it was given back. `acquired` and
    `renewed` are timestamps for people."""

    holder: str
    duration: timedelta
    acquired: str | None = None
    renewed: str | None = None
    transitions: int = 0


class Observed(NamedTuple):
    """A record (None: there is no Lease), its version, and when this process first saw it."""

    record: LeaseRecord | None
    version: str
    since: timedelta


class GetLease(NamedTuple):
    """Read the Lease."""


class WriteLease(NamedTuple):
    """Write the Lease over this version; None: create it."""

    record: LeaseRecord
    version: str | None


class WaitUntil(NamedTuple):
    """Do nothing until this moment of the process's clock."""

    until: timedelta


class StopLeading(NamedTuple):
    """Have no effect from now on, and be no candidate any more."""

    reason: str


@dataclass(frozen=True, slots=True)
class Candidacy:
    """State that one process knows of its election. Every moment is of its own clock, which counts
    while the process is suspended. `held`: when the last write was sent that gave it the Lease
    or renewed it; None: it is a candidate. `lost`: why it lost the Lease."""

    identity: str
    rules: LeaseRules = field(default_factory=LeaseRules)
    observed: Observed | None = None
    held: timedelta | None = None
    lost: str = ""
    is_current: bool = False
    """True if `observed` may be written over without reading the Lease again."""

    due: timedelta = timedelta.min
    write_due: timedelta = timedelta.min
    """When it may write: a conflict is read about at once, but not written over without a pause."""

    @property
    def until(self) -> timedelta | None:
        """Until when this process may have effects; None: it may have none."""
        return None if self.held is None or self.lost else self.held + self.rules.deadline

    def next_step(
        self, now: timedelta, timestamp: str
    ) -> GetLease | WriteLease | WaitUntil | StopLeading:
        """Return what to do at this moment. `timestamp`: of the wall clock, as a Lease has it."""
        if self.lost:
            return StopLeading(self.lost)
        if self.until is not None and now >= self.until:
            return StopLeading(
                f"the Lease was not renewed for {self.rules.deadline.total_seconds():g} s"
            )
        if now < self.due:
            return WaitUntil(self.due if self.until is None else min(self.due, self.until))
        if self.observed is None or not self.is_current:
            return GetLease()
        if now < self.write_due:
            return WaitUntil(
                self.write_due if self.until is None else min(self.write_due, self.until)
            )
        version = self.observed.version if self.observed.record is not None else None
        return WriteLease(self._claimed(self.observed.record, timestamp), version)

    def observe(
        self,
        record: LeaseRecord | None,
        version: str,
        sent: timedelta,
        now: timedelta,
        chance: float,
    ) -> Candidacy:
        before = self.observed
        if record is None and self.held is None and before and before.record is not None:
            expires = before.since + before.record.duration
            if before.record.holder not in ("", self.identity) and now < expires:
                # Deleted, while its holder may act until then.
                due = min(sent + self.rules.pause(chance), expires)
                return replace(self, is_current=False, due=due)
        same = self.observed is not None and self.observed.record == record
        since = self.observed.since if self.observed is not None and same else now
        seen = replace(self, observed=Observed(record, version, since))
        holder = record.holder if record is not None else ""
        if self.held is not None and holder != self.identity:
            return replace(seen, lost=f"the Lease is {f'held by {holder}' if holder else 'free'}")
        free = record is None or holder in ("", self.identity)
        expires = since if record is None else since + record.duration
        if free or now >= expires:
            return replace(seen, is_current=True, due=now)
        due = min(sent + self.rules.pause(chance), expires)
        return replace(seen, is_current=False, due=due)

    def wrote(
        self, record: LeaseRecord, version: str, sent: timedelta, now: timedelta, chance: float
    ) -> Candidacy:
        """The Lease was written. An answer that comes too late gives nothing: a leader stops, and a
        candidate reads again."""
        seen = replace(self, observed=Observed(record, version, now))
        if now >= (sent if self.held is None else self.held) + self.rules.deadline:
            return replace(seen, is_current=False, due=now)
        return replace(seen, held=sent, is_current=True, due=sent + self.rules.pause(chance))

    def conflicted(self, now: timedelta, chance: float) -> Candidacy:
        """Another process wrote the Lease first."""
        write_due = now + self.rules.pause(chance)
        return replace(self, is_current=False, due=now, write_due=write_due)

    def failed(self, sent: timedelta, chance: float) -> Candidacy:
        """A request had no answer, or was refused; a write may have had its effect."""
        return replace(self, is_current=False, due=sent + self.rules.pause(chance))

    def given_back(self, timestamp: str) -> WriteLease | None:
        """Return the write by which a leader lets the others begin at once; None for a process that
        does not know itself to be the leader."""
        if self.held is None or self.lost or self.observed is None:
            return None
        transitions = self.observed.record.transitions if self.observed.record is not None else 0
        record = LeaseRecord("", RELEASED, timestamp, timestamp, transitions)
        return WriteLease(record, self.observed.version)

    def _claimed(self, before: LeaseRecord | None, timestamp: str) -> LeaseRecord:
        duration = self.rules.duration
        if before is None:
            return LeaseRecord(self.identity, duration, timestamp, timestamp)
        if before.holder == self.identity:
            return replace(before, duration=duration, renewed=timestamp)
        return LeaseRecord(self.identity, duration, timestamp, timestamp, before.transitions + 1)


WATCH_SECONDS = 0.25
"""Interval at which the watchdog compares the clock with the end of the Lease."""

MARGIN = timedelta(seconds=1)
"""Time between the end of the process and the end of the Lease."""

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
        """True if the process runs although its Lease is about to end."""
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


REQUEST_SECONDS = 5.0
"""For one request about the Lease: half the deadline, so that a leader can try again."""

_log = logs.logger("controller")


@dataclass(frozen=True, slots=True)
class LeasePlace:
    """Namespace and name where the Lease of an election is."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Elector:
    """One process's part in an election. `identity` is this process's alone."""

    def __init__(
        self,
        api: Kubernetes,
        place: LeasePlace,
        identity: str,
        *,
        clock: Clock,
        randomness: Randomness,
        rules: LeaseRules | None = None,
    ) -> None:
        self.place = place
        self.fence = Fence(clock)
        self._api = api
        self._clock = clock
        self._randomness = randomness
        self._state = Candidacy(identity, rules or LeaseRules())
        self._answered: timedelta | None = None
        self._complaint = ""
        metrics.LEADER.set(0)

    @property
    def is_leader(self) -> bool:
        """True if this process was the leader when it last asked."""
        return self._state.held is not None and not self._state.lost

    async def lead(self) -> None:
        """Return once this process is the leader. It then has to `keep` the Lease."""
        self._log_holder()
        while not self.is_leader:
            before = self._holder()
            await self._go_on()
            if self._holder() != before:
                self._log_holder()

    async def keep(self) -> NoReturn:
        """Renew the Lease until it is lost. Raises: LeadershipLost, with the fence shut."""
        while True:
            try:
                await self._go_on()
            except LeadershipLost as error:
                self.fence.shut()
                metrics.LEADER.set(0)
                _log.error("lost the Lease", lease=str(self.place), reason=str(error))
                raise

    async def give_back(self) -> None:
        """Let another process begin at once. Only after every effect has ended."""
        self.fence.settled()
        metrics.LEADER.set(0)
        wanted = self._state.given_back(self._timestamp())
        if wanted is None:
            return
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                await self._written(wanted)
        except (KubernetesError, TimeoutError) as error:
            _log.warning("the Lease was not released", error=str(error))
        else:
            _log.info("released the Lease", lease=str(self.place))

    def is_in_touch(self) -> bool:
        """True if within its deadline the Lease was written, or read as another's: a candidate
        whose writes all conflict could not take over."""
        last, now = self._answered, self._clock.elapsed()
        return last is not None and now - last < self._state.rules.deadline

    async def _go_on(self) -> None:
        now = self._clock.elapsed()
        match self._state.next_step(now, self._timestamp()):
            case WaitUntil(until):
                await self._clock.sleep(until - now)
            case GetLease():
                await self._asked(self._read)
            case WriteLease() as wanted:
                await self._asked(lambda sent: self._write(wanted, sent))
            case StopLeading(reason):
                raise LeadershipLost(reason)

    async def _asked(self, request: Callable[[timedelta], Awaitable[None]]) -> None:
        sent = self._clock.elapsed()
        seconds = REQUEST_SECONDS
        if self._state.until is not None:
            seconds = min(seconds, (self._state.until - sent).total_seconds())
        try:
            async with asyncio.timeout(seconds):
                await request(sent)
        except Exception as error:  # else a Lease that cannot be read would end each process
            self._state = self._state.failed(sent, self._randomness.uniform())
            is_named = isinstance(error, KubernetesError | TimeoutError)
            self._complain(str(error) or "no answer in time" if is_named else repr(error))
            return

    async def _read(self, sent: timedelta) -> None:
        found = await self._api.get(LEASE, self.place.namespace, self.place.name)
        record, version = None, ""
        if found is not None:
            record, version = record_of(found), found["metadata"]["resourceVersion"]
        now, chance = self._clock.elapsed(), self._randomness.uniform()
        self._state = self._state.observe(record, version, sent, now, chance)
        if not self._state.is_current:  # else the write that follows shows whether it can be used
            self._answered, self._complaint = now, ""

    async def _write(self, wanted: WriteLease, sent: timedelta) -> None:
        try:
            version = await self._written(wanted)
        except KubernetesConflict as error:
            chance = self._randomness.uniform()
            self._state = self._state.conflicted(self._clock.elapsed(), chance)
            self._complain(str(error))
            return
        now, chance = self._clock.elapsed(), self._randomness.uniform()
        was_leader = self.is_leader
        self._state = self._state.wrote(wanted.record, version, sent, now, chance)
        self._answered, self._complaint = now, ""
        until, rules = self._state.until, self._state.rules
        if until is not None:
            self.fence.open(until, until - rules.deadline + rules.duration)
        if self.is_leader and not was_leader:
            metrics.LEADER.set(1)
            _log.info("became leader", lease=str(self.place), transitions=wanted.record.transitions)

    async def _written(self, wanted: WriteLease) -> str:
        """Write the Lease, and return its version."""
        metadata: dict[str, Any] = {"name": self.place.name, "namespace": self.place.namespace}
        spec = spec_of(wanted.record)
        if wanted.version is None:
            metadata["labels"] = {MANAGED_BY: "postroad"}
            written: Object | None = await self._api.create(
                LEASE,
                {"apiVersion": LEASE.api_version, "kind": LEASE.name, "metadata": metadata}
                | {"spec": spec},
            )
        else:
            change = {"metadata": {"resourceVersion": wanted.version}, "spec": spec}
            written = await self._api.patch(LEASE, self.place.namespace, self.place.name, change)
        if written is None:
            raise KubernetesConflict("the Lease was deleted")
        version: str = written["metadata"]["resourceVersion"]
        return version

    def _holder(self) -> str:
        observed = self._state.observed
        return (
            observed.record.holder if observed is not None and observed.record is not None else ""
        )

    def _log_holder(self) -> None:
        if not self.is_leader:
            _log.info("standby", lease=str(self.place), leader=self._holder() or None)

    def _complain(self, why: str) -> None:
        if why != self._complaint:
            _log.warning("the Lease cannot be used", lease=str(self.place), error=why)
        self._complaint = why

    def _timestamp(self) -> str:
        return timestamp_of(self._clock.now())


def timestamp_of(moment: datetime) -> str:
    """Return a moment as a MicroTime.

    >>> timestamp_of(datetime(2026, 1, 2, 3, 4, 5, 678000, UTC))
    '2026-01-02T03:04:05.678000Z'
    """
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def record_of(found: Object) -> LeaseRecord:
    """Return the record of a Lease. One without a duration has the usual one."""
    spec = found.get("spec") or {}
    seconds = spec.get("leaseDurationSeconds")
    return LeaseRecord(
        spec.get("holderIdentity") or "",
        timedelta(seconds=seconds) if seconds else LeaseRules().duration,
        spec.get("acquireTime"),
        spec.get("renewTime"),
        spec.get("leaseTransitions") or 0,
    )


def spec_of(record: LeaseRecord) -> dict[str, Any]:
    """Return the spec of a Lease. Its duration is in whole seconds, of which a part counts."""
    return {
        "holderIdentity": record.holder,
        "leaseDurationSeconds": -(-record.duration // timedelta(seconds=1)),
        "acquireTime": record.acquired,
        "renewTime": record.renewed,
        "leaseTransitions": record.transitions,
    }
