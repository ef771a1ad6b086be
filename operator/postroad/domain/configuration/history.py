"""A queue's view configuration as a history of events: *decide* and *evolve*, both pure.

A new configuration is judged against everything the history accepted, because mail still lies where
an earlier configuration put it. `sequence` numbers all events, `version` the accepted
configurations, both from 1 without gaps. Source: 000 Decision (eventSourcing); ADR 0005."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from postroad.domain.configuration import rules
from postroad.errors import HistoryMissing

STATUS_ENTRIES = 50
"""Number of events a resource's status holds, as its definition allows (`maxItems`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _RecordedEvent:
    """Fields that every event has. `by` is the part of postroad that wrote it; `generation` is that
    of the resource it followed, None where there is no resource."""

    sequence: int
    at: datetime
    by: str = ""
    generation: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Accepted(_RecordedEvent):
    version: int
    configuration: rules.ViewConfiguration


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigurationCreated(_Accepted):
    """The first configuration of a queue; no mail was stored before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigurationChanged(_Accepted):
    changes: tuple[rules.FieldChange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigurationRefused(_RecordedEvent):
    """A change that would have made mail invisible; the configuration before it stays in force."""

    wanted: rules.ViewConfiguration
    refusal: rules.Refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigurationAdopted(_Accepted):
    """Configuration that an administrator recorded after the history was lost or forked.
    `supersedes` is the last sequence of the contradicting status that this settles, else 0."""

    reason: str
    supersedes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryFolded(_Accepted):
    """Stands for `count` events up to `sequence`: the state that they led to. `at` is when that
    configuration was accepted, `since` when the first event was. Only ever the first of a history.
    """

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
    """The state that a history leads to: what holds, and where the history stands. `at` is when
    this configuration was accepted; informative."""

    sequence: int
    version: int
    configuration: rules.ViewConfiguration
    at: datetime


def evolve(state: Configured | None, event: ConfigurationEvent) -> Configured:
    """Apply one event. Raises: HistoryMissing when events are missing before it."""
    if state is not None:
        follows = event.sequence == state.sequence + 1
    else:
        follows = event.sequence == 1 or isinstance(event, (ConfigurationAdopted, HistoryFolded))
    if not follows:
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
class ConfigurationDecision:
    """Action on a wanted configuration. `event` is to be appended (None: the history has it
    already); `refusal` is None unless it is refused; `configured` holds once the event is
    appended."""

    event: ConfigurationEvent | None
    refusal: rules.Refusal | None
    configured: Configured


def decide(
    events: Sequence[ConfigurationEvent],
    wanted: rules.ViewConfiguration,
    *,
    at: datetime,
    by: str = "",
    generation: int | None = None,
) -> ConfigurationDecision:
    """Decide about a wanted configuration. The configuration that holds already gives no event, and
    neither does a refusal that was recorded since the last accepted change: resyncs leave no trace.
    Raises: HistoryMissing."""
    state = replay(events)
    if state is not None and wanted == state.configuration:
        return ConfigurationDecision(None, None, state)
    changes = rules.changes_between(state.configuration, wanted) if state else ()
    refusal = rules.refusal_of(state.configuration, wanted) if state else None
    if state is not None and refusal is not None and _was_refused(events, wanted):
        return ConfigurationDecision(None, refusal, state)
    common: dict[str, Any] = {
        "sequence": state.sequence + 1 if state else 1,
        "at": to_milliseconds(at),
        "by": by,
        "generation": generation,
    }
    event: ConfigurationEvent
    if state is None:
        event = ConfigurationCreated(**common, version=1, configuration=wanted)
    elif refusal is not None:
        event = ConfigurationRefused(**common, wanted=wanted, refusal=refusal)
    else:
        version = state.version + 1
        event = ConfigurationChanged(
            **common, version=version, configuration=wanted, changes=changes
        )
    return ConfigurationDecision(event, refusal, evolve(state, event))


def _was_refused(events: Sequence[ConfigurationEvent], wanted: rules.ViewConfiguration) -> bool:
    for event in reversed(events):
        if not isinstance(event, ConfigurationRefused):
            return False
        if event.wanted == wanted:
            return True
    return False


def to_milliseconds(moment: datetime) -> datetime:
    """Return a moment as documents hold it, so that an event is read back equal."""
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


def fold(
    history: Sequence[ConfigurationEvent], entries: int = STATUS_ENTRIES
) -> tuple[ConfigurationEvent, ...]:
    """Return at most so many events, two or more: the newest, and in front of them one that stands
    for all before. The result replays to the same state."""
    if len(history) <= entries:
        return tuple(history)
    older, newest = history[: 1 - entries], history[1 - entries :]
    state, first = replay(older), older[0]
    assert state is not None
    count, since = len(older), first.at
    if isinstance(first, HistoryFolded):
        count, since = count - 1 + first.count, first.since
    folded = HistoryFolded(
        sequence=state.sequence,
        at=state.at,
        version=state.version,
        configuration=state.configuration,
        count=count,
        since=since,
    )
    return (folded, *newest)
