"""A queue's view configuration as a history of events: *decide* and *evolve*, both pure.

What a queue once accepted is never forgotten: the history decides, not the last YAML.
`sequence` numbers all events from 1, `version` the accepted configurations from 1, both without
gaps. The rules themselves are in `configuration_rules`. Source: 000 Decision (eventSourcing);
ADR 0005.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from postroad.domain.configuration.rules import (
    FieldChange,
    Refusal,
    ViewConfiguration,
    changes_between,
    refusal_of,
)
from postroad.errors import HistoryMissing

__all__ = [
    "ConfigurationAdopted",
    "ConfigurationChanged",
    "ConfigurationCreated",
    "ConfigurationEvent",
    "ConfigurationRefused",
    "Configured",
    "Decision",
    "HistoryFolded",
    "ViewConfiguration",
    "decide",
    "evolve",
    "replay",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    """What every event has. `by` says which part of postroad wrote it; `generation` is that of the
    resource it followed, None where there is no resource."""

    sequence: int
    at: datetime
    by: str = ""
    generation: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigurationCreated(_Event):
    """The first configuration of a queue; nothing lay anywhere before."""

    version: int
    configuration: ViewConfiguration


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigurationChanged(_Event):
    """An accepted change."""

    version: int
    configuration: ViewConfiguration
    changes: tuple[FieldChange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigurationRefused(_Event):
    """A change that would have made mail invisible; the configuration before it stays in force."""

    wanted: ViewConfiguration
    refusal: Refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigurationAdopted(_Event):
    """A person's word for how the queue is configured, after its history was lost or forked.

    `supersedes` is the last sequence of the contradicting status that this settles, else 0.
    """

    version: int
    configuration: ViewConfiguration
    reason: str
    supersedes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryFolded(_Event):
    """Stands for `count` events up to `sequence`: the state that they led to. `at` is when that
    configuration was accepted, `since` when the first event was. Only ever the first of a history.
    """

    version: int
    configuration: ViewConfiguration
    count: int
    since: datetime


ConfigurationEvent = (
    ConfigurationCreated
    | ConfigurationChanged
    | ConfigurationRefused
    | ConfigurationAdopted
    | HistoryFolded
)


@dataclass(frozen=True, slots=True)
class Configured:
    """The state that a history leads to: what holds, and where the history stands."""

    sequence: int
    version: int
    configuration: ViewConfiguration
    at: datetime
    """When this configuration was accepted; informative."""


def evolve(state: Configured | None, event: ConfigurationEvent) -> Configured:
    """Apply one event. Raises: HistoryMissing when events are missing before it."""
    may_begin = isinstance(event, ConfigurationAdopted | HistoryFolded) or event.sequence == 1
    if (state is None and not may_begin) or (state and event.sequence != state.sequence + 1):
        before = state.sequence if state else 0
        raise HistoryMissing(
            f"the configuration history has no events between {before} and {event.sequence}"
        )
    if isinstance(event, ConfigurationRefused):
        if state is None:
            raise HistoryMissing("the configuration history begins with a refusal")
        return Configured(event.sequence, state.version, state.configuration, state.at)
    return Configured(event.sequence, event.version, event.configuration, event.at)


def replay(events: Iterable[ConfigurationEvent]) -> Configured | None:
    """Return the state that a history leads to; None when it is empty. Raises: HistoryMissing."""
    state = None
    for event in events:
        state = evolve(state, event)
    return state


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do about a wanted configuration.

    `event` is to be appended (None: the history says it already); `refusal` is None unless it is
    refused; `configured` holds once the event is appended.
    """

    event: ConfigurationEvent | None
    refusal: Refusal | None
    configured: Configured


def decide(
    events: Sequence[ConfigurationEvent],
    wanted: ViewConfiguration,
    *,
    at: datetime,
    by: str = "",
    generation: int | None = None,
) -> Decision:
    """Decide about a wanted configuration.

    The configuration that holds already gives no event, and neither does a refusal that was
    recorded since the last accepted change: resyncs leave no trace. Raises: HistoryMissing.
    """
    at = at.replace(microsecond=at.microsecond // 1000 * 1000)
    state = replay(events)
    event: ConfigurationEvent | None
    if state is None:
        event = ConfigurationCreated(
            sequence=1, at=at, by=by, generation=generation, version=1, configuration=wanted
        )
        return Decision(event, None, evolve(None, event))
    if wanted == state.configuration:
        return Decision(None, None, state)
    sequence = state.sequence + 1
    refusal = refusal_of(state.configuration, wanted)
    if refusal is None:
        event = ConfigurationChanged(
            sequence=sequence,
            at=at,
            by=by,
            generation=generation,
            version=state.version + 1,
            configuration=wanted,
            changes=changes_between(state.configuration, wanted),
        )
    elif _was_refused(events, wanted):
        return Decision(None, refusal, state)
    else:
        event = ConfigurationRefused(
            sequence=sequence,
            at=at,
            by=by,
            generation=generation,
            wanted=wanted,
            refusal=refusal,
        )
    return Decision(event, refusal, evolve(state, event))


def _was_refused(events: Sequence[ConfigurationEvent], wanted: ViewConfiguration) -> bool:
    for event in reversed(events):
        if not isinstance(event, ConfigurationRefused):
            return False
        if event.wanted == wanted:
            return True
    return False
