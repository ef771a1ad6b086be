"""Carries out an election: reads and writes the Lease, and moves the fence.

Its client of the API server is not the reconciles': theirs may be busy with slow requests, and is
behind the fence. Source: ADR 0041."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn

from postroad.controller.kubernetes.api import LEASE, MANAGED_BY
from postroad.controller.run import leases
from postroad.errors import KubernetesConflict, KubernetesError, LeadershipLost
from postroad.ports.clock import Clock, Randomness
from postroad.ports.kubernetes import Kubernetes, Object
from postroad.telemetry import logs, metrics

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
        rules: leases.LeaseRules | None = None,
    ) -> None:
        self.place = place
        self.fence = leases.Fence(clock)
        self._api = api
        self._clock = clock
        self._randomness = randomness
        self._state = leases.Candidacy(identity, rules or leases.LeaseRules())
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
            case leases.WaitUntil(until):
                await self._clock.sleep(until - now)
            case leases.GetLease():
                await self._asked(self._read)
            case leases.WriteLease() as wanted:
                await self._asked(lambda sent: self._write(wanted, sent))
            case leases.StopLeading(reason):
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

    async def _write(self, wanted: leases.WriteLease, sent: timedelta) -> None:
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

    async def _written(self, wanted: leases.WriteLease) -> str:
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


def record_of(found: Object) -> leases.LeaseRecord:
    """Return the record of a Lease. One without a duration has the usual one."""
    spec = found.get("spec") or {}
    seconds = spec.get("leaseDurationSeconds")
    return leases.LeaseRecord(
        spec.get("holderIdentity") or "",
        timedelta(seconds=seconds) if seconds else leases.LeaseRules().duration,
        spec.get("acquireTime"),
        spec.get("renewTime"),
        spec.get("leaseTransitions") or 0,
    )


def spec_of(record: leases.LeaseRecord) -> dict[str, Any]:
    """Return the spec of a Lease. Its duration is in whole seconds, of which a part counts."""
    return {
        "holderIdentity": record.holder,
        "leaseDurationSeconds": -(-record.duration // timedelta(seconds=1)),
        "acquireTime": record.acquired,
        "renewTime": record.renewed,
        "leaseTransitions": record.transitions,
    }
