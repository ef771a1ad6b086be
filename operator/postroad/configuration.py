"""Makes a wanted configuration the accepted one: load, decide, append, and only then act.

The history is written before anything that follows from it (queues, workers, the resource's
status), so a process that dies between any two steps leaves a complete history, and the next
process finds in it what is still to be done. The caller's order is: `settle`, then the effects of
`Settled.state`, then `Settled.entries` into the status. Source: ADR 0005.

Evidence in the view of the configurations that its rows were written under, and of how well they
suit the mail. Adoptions and advice go by it. Only reads.

The configuration that this process may act on: read often, used for one lease, never longer.

Every process that uses the view holds a `LeasedConfiguration`, also those outside the cluster. Each
records the steps of a rollout (`domain.configuration.history`), so that none depends on an
operator. A process that cannot read the history in time stops acting on it, because a reader with
an old configuration does not find new mail. Source: ADR 0005; invariants 4 and 7."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from statistics import mean
from typing import Any

from postroad import errors
from postroad.domain.configuration import consistency
from postroad.domain.configuration.advice import Seen, SliceCount
from postroad.domain.configuration.consistency import continues
from postroad.domain.configuration.documents import Document, to_document
from postroad.domain.configuration.history import (
    GRACE,
    MAX_READ_LEASE,
    READ_LEASE,
    ConfigurationEvent,
    Configured,
    Rollout,
    RolloutTiming,
    Watched,
    adoption_rollout,
    decide,
    first_rollout,
    fold,
    next_step,
    replay,
    versions,
    writing_and_reading,
)
from postroad.domain.configuration.rules import Refusal, ViewConfiguration
from postroad.domain.queues.entries import Entry, Partition
from postroad.domain.queues.references import size_of
from postroad.ports.clock import Clock, Randomness
from postroad.ports.view import ClosedSlice, Effective, History, Recorded, View
from postroad.telemetry.logs import logger

SAMPLE = 100
"""Rows whose sizes are averaged: the oldest of the fullest bucket of the busiest slice."""


async def has_rows(view: View) -> bool:
    """Return whether the view holds anything of this queue. Raises: ViewError."""
    return (await view.limits()).browse_start is not None


async def used_configurations(view: View) -> tuple[ViewConfiguration, ...]:
    """Return what the recorded closed slices were written under, at least. Raises: ViewError."""
    start = (await view.limits()).content_start
    if start is None:
        return ()
    found = {
        ViewConfiguration(closed.window, max(closed.rows, default=0) + 1): None
        async for closed in view.closed_slices(start)
    }
    return tuple(found)


async def observe(view: View) -> Seen:
    """Return what advice goes by: the recorded closed slices, one small read for some thousands,
    and one page of rows of the busiest. Raises: ViewError, CredentialsRefused."""
    seen = Seen(hosts=await view.hosts())
    start = (await view.limits()).content_start
    if start is None:
        return seen
    fullest: Partition | None = None
    async for closed in view.closed_slices(start):
        before = seen.busiest
        rows = sum(closed.rows.values())
        seen = seen.with_slice(SliceCount(closed.slice_start, closed.window, rows))
        if seen.busiest is not before:
            fullest = _fullest(closed)
    return seen if fullest is None else await _with_row_size(view, seen, fullest)


def _fullest(closed: ClosedSlice) -> Partition:
    bucket = max(closed.rows, key=lambda each: closed.rows[each], default=0)
    return Partition(closed.slice_start, bucket)


async def _with_row_size(view: View, seen: Seen, partition: Partition) -> Seen:
    sizes: list[int] = []
    async for row in view.rows(partition):
        if isinstance(row, Entry):
            sizes.append(size_of(row))
        if len(sizes) == SAMPLE:
            break
    return replace(seen, row_bytes=round(mean(sizes))) if sizes else seen


REFRESHES_PER_LEASE = 4
"""A read every quarter leaves room for two that fail or take long within a third and the lease."""

RETRIES_PER_REFRESH = 4
"""A read that failed is tried again so many times sooner, with jitter: the process knows within
seconds that the view answers again, and a view that is away gets few requests."""

_LOG = logger("configuration")


@dataclass(frozen=True, slots=True)
class _Known:
    """Values that one good read gave, and since when. `read_at` is the elapsed time before the read
    began; `announced_at` and `written_at` are those after the answer: the step may be as young."""

    recorded: Recorded
    rollout: Rollout
    effective: Effective
    read_at: timedelta
    announced_at: Mapping[int, timedelta]
    written_at: timedelta


class LeasedConfiguration:
    """A `ConfigurationSource` over a history. `async with` reads it and keeps it fresh. `lease` is
    how long one reading is used here, `longest_read_lease` how long one is used by any process,
    `grace` how long after its end a slice stays open for rows that are on their way."""

    def __init__(
        self,
        history: History,
        clock: Clock,
        randomness: Randomness,
        *,
        lease: timedelta = READ_LEASE,
        longest_read_lease: timedelta = MAX_READ_LEASE,
        grace: timedelta = GRACE,
    ) -> None:
        self._history = history
        self._clock = clock
        self._randomness = randomness
        self._lease = lease
        self._timing = RolloutTiming(longest_read_lease, grace)
        self._known: _Known | None = None
        self._refreshing: asyncio.Task[None] | None = None
        self._reading = asyncio.Lock()

    def effective(self) -> Effective:
        """Return what holds now, from memory. Raises: ConfigurationStale past the lease."""
        known = self._known
        if known is None or self._clock.elapsed() - known.read_at > self._lease:
            raise errors.ConfigurationStale
        return known.effective

    async def refresh(self) -> None:
        """Read the history, and record the rollout's next step when this process may. What was
        known before stays good for the rest of its lease when this raises. Raises: QueueNotFound
        for an empty history; HistoryMissing for one that is not a continuation of what was read
        before; ViewError."""
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
            raise errors.QueueNotFound("the queue has no configuration history")
        replay(recorded.events)
        if self._known and not continues(self._known.recorded.events, recorded.events):
            raise errors.HistoryMissing(
                "the configuration history is not the one that was read before"
            )
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
            except (errors.ServerError, errors.ConfigurationError, errors.QueueNotFound) as error:
                _LOG.warning("configuration not read", error=error.explain())
            except Exception:
                _LOG.exception("configuration not read")


ATTEMPTS = 100
"""Number of times that an append is decided anew when other processes append at the same time. Each
lost attempt is another writer's progress, and few write at once, so this bounds a bug, not a
load."""

LIBRARY = "library"
"""`by` of the events that `open_queue` appends."""


@dataclass(frozen=True, slots=True)
class Settled:
    """Configuration that holds after a wanted configuration met the history. `state` is what the
    queue runs on, None when the history is missing or contradicts the status, or when none may
    begin: then nothing may be made or changed. `refusal` is why the wanted configuration does not
    hold (None when it does). `appended` is the event written now, to be announced once. `history`
    is complete."""

    state: Configured | None
    refusal: Refusal | None
    history: tuple[ConfigurationEvent, ...]
    appended: ConfigurationEvent | None = None

    def entries(self) -> list[Document]:
        """Return `status.history`. Empty without a state: the status must be left as it is."""
        return [to_document(each) for each in fold(self.history)]


async def _no_rows() -> bool:
    return False


async def settle(
    history: History,
    wanted: ViewConfiguration | None,
    *,
    at: datetime,
    by: str,
    generation: int | None = None,
    status: Sequence[Mapping[str, Any]] = (),
    has_data: Callable[[], Awaitable[bool]] = _no_rows,
    unfit: Refusal | None = None,
    recorded: Recorded | None = None,
) -> Settled:
    """Hold a wanted configuration against the history, and record what is decided.

    Idempotent, and safe for any number of callers at once: the history neither forks nor has an
    event twice. A refusal is recorded once and raises nothing.

    Args:
        wanted: None: whatever holds, or the defaults for a new queue.
        status: `status.history` as it stands, to notice a history that was lost or restored.
        has_data: whether the view holds anything of this queue; asked only when the history is
            empty, because a new history would not name what the rows were written under.
        unfit: why no history may begin with what is wanted; without a bearing on one that has
            begun.
        recorded: the history, where the caller has just read it.

    Raises: ConfigurationConflict when other processes were first each time; ViewError."""
    for _ in range(ATTEMPTS):
        events = (recorded or await history.load()).events
        recorded = None
        conflict = consistency.find_conflict(events, status)
        if conflict is None and not events and await has_data():
            conflict = "the configuration history is gone, but the queue's rows are still there"
        if conflict is not None:
            hint = "find out why, then record how the queue is configured"
            message = f"{conflict}: {hint} with `postroad config adopt`"
            return Settled(None, Refusal(consistency.HISTORY_CONFLICT, message, {}), ())
        if unfit is not None and not events:
            return Settled(None, unfit, ())
        state = replay(events)
        if wanted is None:
            wanted = state.configuration if state else ViewConfiguration()
        decision = decide(events, wanted, at=at, by=by, generation=generation)
        if decision.event is None:
            return Settled(decision.configured, decision.refusal, events)
        try:
            await history.append(decision.event)
        except errors.ConfigurationConflict:
            continue
        complete = (*events, decision.event)
        return Settled(decision.configured, decision.refusal, complete, decision.event)
    raise errors.ConfigurationConflict(
        "other processes appended to the configuration history each time"
    )


async def configured(
    history: History,
    view: View,
    clock: Clock,
    randomness: Randomness,
    *,
    create: bool,
    wanted: ViewConfiguration | None = None,
) -> LeasedConfiguration:
    """Return the configuration that an opened queue acts on, kept fresh until it is closed. With
    `create`, `wanted` is decided on against the history as a resource's is (None: whatever holds,
    or the defaults for a new queue). Raises: QueueNotFound; ConfigurationRefused with the nearest
    allowed values; HistoryMissing when rows exist whose history is gone; ViewError."""
    if create:
        settled = await settle(
            history, wanted, at=clock.now(), by=LIBRARY, has_data=lambda: has_rows(view)
        )
        if settled.state is None:
            raise errors.HistoryMissing
        if settled.refusal is not None:
            raise errors.ConfigurationRefused(settled.refusal.message)
    configuration = LeasedConfiguration(history, clock, randomness)
    try:
        await configuration.start()
    except errors.QueueNotFound:
        if await has_rows(view):
            raise errors.HistoryMissing from None
        raise
    return configuration


async def adopt(
    history: History,
    wanted: ViewConfiguration | None,
    *,
    at: datetime,
    by: str,
    reason: str,
    status: Sequence[Mapping[str, Any]] = (),
    used: Sequence[ViewConfiguration] = (),
) -> Settled:
    """Record an adoption, with what it brings back (`consistency.adopt`). A call that was cut short
    is finished by the next one. Raises: ConfigurationRefused, InvalidInput, HistoryMissing as
    `consistency.adopt`; ConfigurationConflict when another process appended meanwhile: look again;
    ViewError."""
    recorded = await history.load()
    events = consistency.adopt(
        recorded.events, status, wanted, at=at, by=by, reason=reason, used=used
    )
    complete = consistency.in_order(recorded.events, events)
    rollout = adoption_rollout(complete)
    # Before the events: a process that reads a history brought back only in part raises
    # HistoryMissing, since the rollout's version is not there yet. Without it, that process would
    # write under an early version, in slices that browse start has passed.
    if rollout != recorded.rollout and not await history.advance(recorded.rollout, rollout):
        raise errors.ConfigurationConflict
    for event in events:
        await history.append(event)
    return Settled(replay(complete), None, complete, events[-1])
