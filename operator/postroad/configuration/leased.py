"""The configuration that this process may act on: read often, used for one lease, never longer.

Every process that touches the view holds one of these, also those outside the cluster, and each
helps a rollout along (`domain.configuration.rollout`), so that none depends on an operator. A
process that cannot read the history in time stops acting on it: an old reader is what loses mail.
Source: ADR 0005; invariants 4 and 7.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta

from postroad.domain.configuration.history import ConfigurationAdopted, replay
from postroad.domain.configuration.rollout import (
    GRACE,
    LEASE,
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
"""A read that failed is tried again so many times sooner, with jitter: a view that is back is known
within seconds, and one that is away gets few requests."""

_LOG = logger("distributed")


@dataclass(frozen=True, slots=True)
class _Known:
    """What one good read gave. `read_at` is the elapsed time before it was asked for."""

    recorded: Recorded
    rollout: Rollout
    effective: Effective
    read_at: timedelta


class LeasedConfiguration:
    """A `ConfigurationSource` over a history. `async with` reads it and keeps it fresh.

    `grace` is how long after its end a slice stays open for rows that are on their way.
    """

    def __init__(
        self,
        history: History,
        clock: Clock,
        randomness: Randomness,
        *,
        lease: timedelta = LEASE,
        grace: timedelta = GRACE,
    ) -> None:
        self._history = history
        self._clock = clock
        self._randomness = randomness
        self._patience = RolloutTiming(lease, grace)
        self._known: _Known | None = None
        self._announced_at: dict[int, timedelta] = {}
        self._written_at: tuple[int, timedelta] = (0, timedelta(0))
        self._refreshing: asyncio.Task[None] | None = None
        self._reading = asyncio.Lock()

    def effective(self) -> Effective:
        """Return what holds now, from memory. Raises: ConfigurationStale past the lease."""
        known = self._known
        if known is None or self._clock.elapsed() - known.read_at > self._patience.lease:
            raise ConfigurationStale
        return known.effective

    async def refresh(self) -> None:
        """Read the history, and record the rollout's next step when this process may.

        What was known before stays good for the rest of its lease when this raises.
        Raises: QueueNotFound for an empty history; HistoryMissing for one that is not a
        continuation of what was read before; ViewError.
        """
        async with self._reading:
            await self._read()
            await self._step()

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

    async def _read(self) -> None:
        asked_at = self._clock.elapsed()
        recorded = await self._history.load()
        if not recorded.events:
            raise QueueNotFound("the queue has no configuration history")
        replay(recorded.events)
        if self._known is not None and not _continues(self._known.recorded, recorded):
            raise HistoryMissing("the configuration history is not the one that was read before")
        self._learn(recorded, asked_at)

    def _learn(self, recorded: Recorded, asked_at: timedelta) -> None:
        """Note what is new, and when: after the answer, for it may be as young as that."""
        rollout = recorded.rollout or first_rollout(recorded.events)
        now = self._clock.elapsed()
        known = versions(recorded.events)
        self._announced_at = {
            version: self._announced_at.get(version, now)
            for version in known
            if version > rollout.writing
        }
        if self._written_at[0] != rollout.writing or self._known is None:
            self._written_at = (rollout.writing, now)
        effective = Effective(*writing_and_reading(recorded.events, rollout))
        self._known = _Known(recorded, rollout, effective, asked_at)

    async def _step(self) -> None:
        known = self._known
        assert known is not None
        now = self._clock.elapsed()
        watched = Watched(
            {version: now - since for version, since in self._announced_at.items()},
            now - self._written_at[1],
        )
        after = next_step(known.recorded.events, known.rollout, watched, self._patience)
        if after is None:
            return
        if await self._history.advance(known.recorded.rollout, after):
            _LOG.info("configuration rolled out", writing=after.writing, oldest=after.oldest)
            self._learn(Recorded(known.recorded.events, after), known.read_at)

    async def _keep_fresh(self) -> None:
        """Read for as long as the queue is open. The lease bounds the harm of failed reads:
        `effective` raises once it has run out."""
        interval = self._patience.lease / REFRESHES_PER_LEASE
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


def _continues(before: Recorded, after: Recorded) -> bool:
    """Whether a history went on from where it was, or a person said how after it was lost."""
    if after.events[: len(before.events)] == before.events:
        return True
    adopted = [each for each in after.events if isinstance(each, ConfigurationAdopted)]
    return bool(adopted) and adopted[-1] not in before.events
