"""How a wanted configuration becomes the accepted one: load, decide, append, and only then act.

The history is written before anything that follows from it (queues, workers, the resource's
status), so a process that dies between any two steps leaves a complete history, and the next
process finds in it what is still to be done. The caller's order is: `settle`, then the effects of
`Settled.state`, then `Settled.entries` into the status. Source: ADR 0005.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from postroad.configuration.evidence import has_rows
from postroad.configuration.leased import LeasedConfiguration
from postroad.domain.configuration import consistency
from postroad.domain.configuration.documents import Document, effective_document, to_document
from postroad.domain.configuration.history import (
    ConfigurationEvent,
    Configured,
    decide,
    fold,
    replay,
)
from postroad.domain.configuration.rollout import LONGEST_READING_LEASE, adoption_rollout
from postroad.domain.configuration.rules import Refusal, ViewConfiguration
from postroad.errors import (
    ConfigurationConflict,
    ConfigurationRefused,
    HistoryMissing,
    QueueNotFound,
)
from postroad.ports.clock import Clock, Randomness
from postroad.ports.history import History
from postroad.ports.view import View

ATTEMPTS = 100
"""How often an append is decided anew when other processes append at the same time. Each lost
attempt is another writer's progress, and few write at once, so this bounds a bug, not a load."""

LIBRARY = "library"
"""`by` of the events that `open_queue` appends."""


@dataclass(frozen=True, slots=True)
class Settled:
    """What holds after a wanted configuration met the history.

    `state` is what the queue runs on, None when the history is missing or contradicts the status,
    or when none may begin: then nothing may be made or changed. `refusal` is why the wanted
    configuration does not hold (None when it does). `appended` is the event written now, to be
    announced once. `history` is complete.
    """

    state: Configured | None
    refusal: Refusal | None
    history: tuple[ConfigurationEvent, ...]
    appended: ConfigurationEvent | None = None

    def entries(self) -> list[Document]:
        """Return `status.history`. Empty without a state: the status must be left as it is."""
        return [to_document(each) for each in fold(self.history)]

    def configuration(self) -> Document | None:
        """Return `status.configuration`; None without a state: the status is left as it is."""
        return (
            effective_document(self.state, self.state.at + LONGEST_READING_LEASE)
            if self.state
            else None
        )


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

    Raises: ConfigurationConflict when other processes were first each time; ViewError.
    """
    for _ in range(ATTEMPTS):
        events = (await history.load()).events
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
        except ConfigurationConflict:
            continue
        complete = (*events, decision.event)
        return Settled(decision.configured, decision.refusal, complete, decision.event)
    raise ConfigurationConflict("other processes appended to the configuration history each time")


async def configured(
    history: History,
    view: View,
    clock: Clock,
    randomness: Randomness,
    *,
    create: bool,
    wanted: ViewConfiguration | None = None,
) -> LeasedConfiguration:
    """Return the configuration that an opened queue acts on, kept fresh until it is closed.

    With `create`, `wanted` is decided on against the history as a resource's is (None: whatever
    holds, or the defaults for a new queue).

    Raises: QueueNotFound; ConfigurationRefused with the nearest allowed values; HistoryMissing when
    rows exist whose history is gone; ViewError.
    """
    if create:
        settled = await settle(
            history, wanted, at=clock.now(), by=LIBRARY, has_data=lambda: has_rows(view)
        )
        if settled.state is None:
            raise HistoryMissing
        if settled.refusal is not None:
            raise ConfigurationRefused(settled.refusal.message)
    configuration = LeasedConfiguration(history, clock, randomness)
    try:
        await configuration.start()
    except QueueNotFound:
        if await has_rows(view):
            raise HistoryMissing from None
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
    """Record an adoption, with what it brings back (`consistency.adopt`).

    A call that was cut short is finished by the next one. Raises: ConfigurationRefused,
    InvalidInput, HistoryMissing as `consistency.adopt`; ConfigurationConflict when another process
    appended meanwhile: look again; ViewError.
    """
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
        raise ConfigurationConflict
    for event in events:
        await history.append(event)
    return Settled(replay(complete), None, complete, events[-1])
