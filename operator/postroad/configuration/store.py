"""How a wanted configuration becomes the accepted one: load, decide, append, and only then act.

The history in the view is written before anything that follows from it (queues, workers, the
resource's status), so a process that dies between any two steps leaves a complete history, and
whoever resumes finds in it what is still to be done. The caller's order is: `settle`, then the
effects of `Settled.state`, then `Settled.entries` into the status. Source: ADR 0005.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from postroad.configuration.leased import LeasedConfiguration
from postroad.domain.configuration import adoption
from postroad.domain.configuration.consistency import HISTORY_CONFLICT, disagreement
from postroad.domain.configuration.documents import (
    Document,
    FoldLimits,
    effective_document,
    fold,
    to_document,
)
from postroad.domain.configuration.history import ConfigurationEvent, Configured, decide, replay
from postroad.domain.configuration.rollout import LEASE
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
"""How often an append is decided anew when others append at the same time. Each lost attempt is
another writer's progress, and few write at once, so this bounds a bug, not a load."""


LIBRARY = "library"
"""How those who open a queue themselves sign the history's events."""


@dataclass(frozen=True, slots=True)
class Settled:
    """What holds after a wanted configuration met the history.

    `state` is what the queue runs on, None when the history is missing or contradicts the status:
    then nothing may be made or changed. `refusal` says why the wanted configuration does not hold
    (None when it does). `appended` is the event written now, to be announced once. `history` is
    complete.
    """

    state: Configured | None
    refusal: Refusal | None
    history: tuple[ConfigurationEvent, ...]
    appended: ConfigurationEvent | None = None

    def entries(self, limits: FoldLimits | None = None) -> list[Document]:
        """Return `status.history`. Empty without a state: the status must be left as it is."""
        return [to_document(each) for each in fold(self.history, limits)] if self.history else []

    def configuration(self) -> Document | None:
        """Return `status.configuration`; None without a state: the status is left as it is."""
        return effective_document(self.state, self.state.at + LEASE) if self.state else None


async def _no_data() -> bool:
    return False


async def settle(
    history: History,
    wanted: ViewConfiguration | None,
    *,
    at: datetime,
    by: str,
    generation: int | None = None,
    status: Sequence[Mapping[str, Any]] = (),
    has_data: Callable[[], Awaitable[bool]] = _no_data,
) -> Settled:
    """Hold a wanted configuration against the history, and record what is decided.

    Idempotent, and safe for any number of callers at once: the history neither forks nor has an
    event twice. A refusal is recorded once and raises nothing.

    Args:
        wanted: None: whatever holds, or the defaults for a new queue.
        status: `status.history` as it stands, to notice a history that was lost or restored.
        has_data: whether the view holds anything of this queue; asked only when the history is
            empty, since an empty history over data must never be begun anew.

    Raises: ConfigurationConflict when others were faster too often; ViewError.
    """
    for _ in range(ATTEMPTS):
        mirror = (await history.load()).events
        problem = disagreement(mirror, status)
        if problem is None and not mirror and await has_data():
            problem = "the configuration history is gone, but the queue's rows are still there"
        if problem is not None:
            return _stalled(problem)
        state = replay(mirror)
        if wanted is None:
            wanted = state.configuration if state else ViewConfiguration()
        decision = decide(mirror, wanted, at=at, by=by, generation=generation)
        if decision.event is None:
            return Settled(decision.configured, decision.refusal, mirror)
        try:
            await history.append(decision.event)
        except ConfigurationConflict:
            continue
        complete = (*mirror, decision.event)
        return Settled(decision.configured, decision.refusal, complete, decision.event)
    raise ConfigurationConflict("others kept appending to the configuration history first")


def _stalled(problem: str) -> Settled:
    hint = "find out why, then record how the queue is configured with `postroad config adopt`"
    return Settled(None, Refusal(HISTORY_CONFLICT, f"{problem}: {hint}", {}), ())


async def configured(
    history: History,
    view: View,
    clock: Clock,
    randomness: Randomness,
    *,
    create: bool,
    wanted: ViewConfiguration | None = None,
    by: str = LIBRARY,
) -> LeasedConfiguration:
    """Return the configuration that an opened queue acts on, kept fresh until it is closed.

    With `create`, whoever opens is held to the same rules as a resource: `wanted` is decided on
    against the history (None: whatever holds, or the defaults for a new queue).

    Raises: QueueNotFound; ConfigurationRefused with the nearest allowed values; HistoryMissing when
    rows exist whose history is gone; ViewError.
    """

    async def has_data() -> bool:
        return (await view.limits()).browse_start is not None

    if create:
        settled = await settle(history, wanted, at=clock.now(), by=by, has_data=has_data)
        if settled.state is None:
            raise HistoryMissing
        if settled.refusal is not None:
            raise ConfigurationRefused(settled.refusal.message)
    configuration = LeasedConfiguration(history, clock, randomness)
    try:
        await configuration.start()
    except QueueNotFound:
        if await has_data():
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
    """Record a person's word for how the queue is configured (`domain.adoption`).

    A call that was cut short is finished by the next one. Raises: ConfigurationRefused,
    InvalidInput as `domain.adoption.adopt`; ConfigurationConflict when somebody appended meanwhile:
    look again; ViewError.
    """
    recorded = await history.load()
    mirror = recorded.events
    events = adoption.adopt(mirror, status, wanted, at=at, by=by, reason=reason, used=used)
    rollout = adoption.rollout_of((*mirror, *events))
    # Before the events, so that no process ever writes under an early version of what is brought
    # back only in part: until the version of the rollout is there, the history counts as missing.
    if rollout != recorded.rollout and not await history.advance(recorded.rollout, rollout):
        raise ConfigurationConflict
    for event in events:
        await history.append(event)
    complete = tuple(sorted((*mirror, *events), key=lambda each: each.sequence))
    return Settled(replay(complete), None, complete, events[-1])


async def used_windows(view: View) -> tuple[ViewConfiguration, ...]:
    """Return what the closed slices that are left say of the configurations they were written
    under: evidence for an adoption. Raises: ViewError."""
    start = (await view.limits()).content_start
    if start is None:
        return ()
    found = {
        ViewConfiguration(closed.window, max(closed.rows, default=0) + 1): None
        async for closed in view.closed_slices(start)
    }
    return tuple(found)
