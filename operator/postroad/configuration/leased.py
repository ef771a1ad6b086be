"""The configuration that this process may act on: read often, used for one lease, never longer.

Every process that uses the view holds a `LeasedConfiguration`, also those outside the cluster. Each
records the steps of a rollout (`domain.configuration.rollout`), so that none depends on an
operator. A process that cannot read the history in time stops acting on it, because a reader with
an old configuration does not find new mail. Source: ADR 0005; invariants 4 and 7.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from postroad.domain.configuration.consistency import continues
from postroad.domain.configuration.history import replay
from postroad.domain.configuration.rollout import (
    GRACE,
    LONGEST_READING_LEASE,
    READING_LEASE,
    Rollout,
    RolloutTiming,
    Watched,
    first_rollout,
    next_step,
    versions,
    writing_and_reading,
)
from postroad.errors import (
    ConfigurationError,
    ConfigurationStale,
    HistoryMissing,
    QueueNotFound,
    ServerError,
)
from postroad.ports.clock import Clock, Randomness
from postroad.ports.history import Effective, History, Recorded
from postroad.telemetry.logs import logger

REFRESHES_PER_LEASE = 4
"""A read every quarter leaves room for two that fail or take long within a third and the lease."""

RETRIES_PER_REFRESH = 4
"""A read that failed is tried again so many times sooner, with jitter: the process knows within
seconds that the view answers again, and a view that is away gets few requests."""

_LOG = logger("configuration")


@dataclass(frozen=True, slots=True)
class _Known:
    """What one good read gave, and since when. `read_at` is the elapsed time before the read began;
    `announced_at` and `written_at` are those after the answer, as the step may be as young."""

    recorded: Recorded
    rollout: Rollout
    effective: Effective
    read_at: timedelta
    announced_at: Mapping[int, timedelta]
    written_at: timedelta


class LeasedConfiguration:
    """A `ConfigurationSource` over a history. `async with` reads it and keeps it fresh.

    `lease` is how long one reading is used here, `longest_lease` how long one is used by any
    process, `grace` how long after its end a slice stays open for rows that are on their way.
    """

    def __init__(
        self,
        history: History,
        clock: Clock,
        randomness: Randomness,
        *,
        lease: timedelta = READING_LEASE,
        longest_lease: timedelta = LONGEST_READING_LEASE,
        grace: timedelta = GRACE,
    ) -> None:
        self._history = history
        self._clock = clock
        self._randomness = randomness
        self._lease = lease
        self._timing = RolloutTiming(longest_lease, grace)
        self._known: _Known | None = None
        self._refreshing: asyncio.Task[None] | None = None
        self._reading = asyncio.Lock()

    def effective(self) -> Effective:
        """Return what holds now, from memory. Raises: ConfigurationStale past the lease."""
        known = self._known
        if known is None or self._clock.elapsed() - known.read_at > self._lease:
            raise ConfigurationStale
        return known.effective

    async def refresh(self) -> None:
        """Read the history, and record the rollout's next step when this process may.

        What was known before stays good for the rest of its lease when this raises.
        Raises: QueueNotFound for an empty history; HistoryMissing for one that is not a
        continuation of what was read before; ViewError.
        """
        async with self._reading:
            await self._step(await self._read())

    async def refresh_unless(self, younger_than: timedelta) -> None:
        """Refresh, unless the last reading is younger. Errors as `refresh`."""
        known = self._known
        if known is None or self._clock.elapsed() - known.read_at >= younger_than:
            await self.refresh()

    async def start(self) -> None:
        """Read, and go on reading in the background. Errors as `refresh`."""
        await self.refresh()
        if self._refreshing is None:
            self._refreshing = asyncio.create_task(self._keep_fresh())

    async def close(self) -> None:
        """Stop reading. Idempotent. What was read stays good for the rest of its lease."""
        task, self._refreshing = self._refreshing, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def __aenter__(self) -> LeasedConfiguration:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def _read(self) -> _Known:
        asked_at = self._clock.elapsed()
        recorded = await self._history.load()
        if not recorded.events:
            raise QueueNotFound("the queue has no configuration history")
        replay(recorded.events)
        if self._known and not continues(self._known.recorded.events, recorded.events):
            raise HistoryMissing("the configuration history is not the one that was read before")
        return self._learn(recorded, asked_at)

    def _learn(self, recorded: Recorded, read_at: timedelta) -> _Known:
        now, before = self._clock.elapsed(), self._known
        rollout = recorded.rollout or first_rollout(recorded.events)
        effective = Effective(*writing_and_reading(recorded.events, rollout))
        announced_at = {
            version: before.announced_at.get(version, now) if before else now
            for version in versions(recorded.events)
            if version > rollout.writing
        }
        is_known = before is not None and before.rollout.writing == rollout.writing
        written_at = before.written_at if before is not None and is_known else now
        self._known = _Known(recorded, rollout, effective, read_at, announced_at, written_at)
        return self._known

    async def _step(self, known: _Known) -> None:
        now = self._clock.elapsed()
        announced = {version: now - since for version, since in known.announced_at.items()}
        watched = Watched(announced, now - known.written_at)
        after = next_step(known.recorded.events, known.rollout, watched, self._timing)
        if after is not None and await self._history.advance(known.recorded.rollout, after):
            _LOG.info("configuration rolled out", writing=after.writing, oldest=after.oldest)
            self._learn(Recorded(known.recorded.events, after), known.read_at)

    async def _keep_fresh(self) -> None:
        """Read for as long as the queue is open. The lease bounds the harm of failed reads:
        `effective` raises once it has run out."""
        interval = self._lease / REFRESHES_PER_LEASE
        wait = interval
        while True:
            await self._clock.sleep(wait)
            wait = interval / RETRIES_PER_REFRESH * (0.5 + self._randomness.uniform() / 2)
            try:
                await self.refresh()
                wait = interval
            except (ServerError, ConfigurationError, QueueNotFound) as error:
                _LOG.warning("configuration not read", error=error.explain())
            except Exception:
                _LOG.exception("configuration not read")
