"""A queue's view configuration as a history of events: *decide* and *evolve*, both pure; and how
far a configuration has spread through a queue's processes.

A new configuration is judged against everything the history accepted, because mail still lies where
an earlier configuration put it. `sequence` numbers all events, `version` the accepted
configurations, both from 1 without gaps.

Readers first: a new reader finds what an old writer stores; an old reader does not find what a new
writer stores. So a rollout, two versions that only move forward, is kept beside the history:

- `writing`: the version that writers use;
- `oldest`: the oldest version that any writer may still use, and that readers read until then.

A version is *announced* when it is appended, *written* once `writing` reaches it, and *alone* once
`oldest` does. A process records the next step when it has known the step before for long enough by
its own monotonic clock, so no clocks are compared, and a process that starts later acts at once on
what it reads. No process acts on a read older than the lease, and two steps are at least a lease
apart, so any two processes are at most one step apart.
Source: 000 Decision (eventSourcing, only the values that may change); ADR 0005."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from postroad.domain.configuration import rules
from postroad.domain.configuration.rules import ViewConfiguration
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


READ_LEASE = timedelta(seconds=30)
"""Time that this process may act on one read of the history and the limits. No setting, because
other processes count on it: at most the MAX_READ_LEASE of every release beside this one."""

MAX_READ_LEASE = timedelta(seconds=30)
"""Time that this process waits until no process, of any release beside it, acts on what was read
before: before the next step of a rollout, and before it deletes what browse start has passed.
Part of the protocol: lowered only when the READ_LEASE of the release before is as short."""

GRACE = timedelta(seconds=60)
"""Time after its end that a slice stays open for rows on their way. Part of the protocol likewise:
longer than the deadline of an insertion and the tolerated skew of three clocks."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """Versions that are in use; `oldest` <= `writing` <= the newest version of the history."""

    writing: int
    oldest: int


def versions(events: Sequence[ConfigurationEvent]) -> Mapping[int, ViewConfiguration]:
    return {
        event.version: event.configuration
        for event in events
        if not isinstance(event, ConfigurationRefused)
    }


def first_rollout(events: Sequence[ConfigurationEvent]) -> Rollout:
    """Return the rollout of a history that has none recorded: all use the first version."""
    first = min(versions(events))
    return Rollout(first, first)


def adoption_rollout(events: Sequence[ConfigurationEvent]) -> Rollout:
    """Return the rollout of a history that ends with an adoption. The adopted version is announced
    like any change. Until it is written, the one accepted before it is, and nothing earlier: browse
    start may have passed the slices of longer windows."""
    version = sorted(versions(events))[-2:][0]
    return Rollout(version, version)


@dataclass(frozen=True, slots=True)
class RolloutTiming:
    """Time that a step is watched before the next: the longest lease of a reading, and the grace
    period after a slice's end in which late rows may still arrive."""

    longest_read_lease: timedelta
    grace: timedelta


@dataclass(frozen=True, slots=True)
class Watched:
    """Time for which this process has known each announced version, and the present `writing`."""

    announced: Mapping[int, timedelta]
    written: timedelta


def writing_and_reading(
    events: Sequence[ConfigurationEvent], rollout: Rollout
) -> tuple[ViewConfiguration, tuple[ViewConfiguration, ...]]:
    """Return what to write under, and all that must be read under, newest first. Raises:
    HistoryMissing when the history does not have what is written under."""
    known = versions(events)
    if rollout.writing not in known:
        raise HistoryMissing(f"version {rollout.writing} is written but not in the history")
    reading = [known[each] for each in sorted(known, reverse=True) if each >= rollout.oldest]
    return known[rollout.writing], tuple(dict.fromkeys(reading))


def next_step(
    events: Sequence[ConfigurationEvent], rollout: Rollout, watched: Watched, timing: RolloutTiming
) -> Rollout | None:
    """Return the step that this process may record now; None when it is too early or none is left.
    A version is written when it was watched, announced, for a lease: by then every process that may
    read knows it. Older versions are left behind a lease (the last old writer), one of their
    windows (the last old slice) and the grace period after that."""
    known = versions(events)
    ripe = [
        version
        for version in known
        if version > rollout.writing
        and watched.announced.get(version, timedelta(0)) >= timing.longest_read_lease
    ]
    if ripe:
        return Rollout(max(ripe), rollout.oldest)
    older = [known[each].slice_window for each in known if rollout.oldest <= each < rollout.writing]
    if older and watched.written >= timing.longest_read_lease + max(older) + timing.grace:
        return Rollout(rollout.writing, rollout.writing)
    return None
