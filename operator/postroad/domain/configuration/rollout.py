"""Readers first: how far a configuration has spread through a queue's processes.

A new reader finds what an old writer stores; an old reader does not find what a new writer stores.
So a rollout, two versions that only move forward, is kept beside the history:

- `writing`: the version that writers use;
- `oldest`: the oldest version that any writer may still use, and that readers read until then.

A version is *announced* when it is appended, *written* once `writing` reaches it, and *alone* once
`oldest` does. A process records the next step when it has known the step before for long enough by
its own monotonic clock, so no clocks are compared, and a process that starts later acts at once on
what it reads. No process acts on a read older than the lease, and two steps are at least a lease
apart, so any two processes are at most one step apart.
Source: 000 Decision (only the values that may change); ADR 0005."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from postroad.domain.configuration.history import ConfigurationEvent, ConfigurationRefused
from postroad.domain.configuration.rules import ViewConfiguration
from postroad.errors import HistoryMissing

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
