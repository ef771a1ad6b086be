"""The way out when a history was lost or forked: a person says how the queue is configured.

What the resource's status still remembers is brought back first, then the adoption is recorded
after it. Only a configuration under which everything known stays reachable can be adopted.
Source: ADR 0005.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from math import gcd
from typing import Any

from postroad import errors
from postroad.domain.configuration.consistency import disagreement, is_whole, readable
from postroad.domain.configuration.history import (
    ConfigurationAdopted,
    ConfigurationEvent,
    ConfigurationRefused,
    HistoryFolded,
    replay,
)
from postroad.domain.configuration.rollout import Rollout, versions
from postroad.domain.configuration.rules import SHORTEST_WINDOW, ViewConfiguration, refusal_of
from postroad.domain.durations import format_duration
from postroad.errors import HistoryMissing, InvalidInput


def adopt(
    mirror: Sequence[ConfigurationEvent],
    status: Sequence[Mapping[str, Any]],
    wanted: ViewConfiguration | None,
    *,
    at: datetime,
    by: str,
    reason: str,
    used: Sequence[ViewConfiguration] = (),
) -> tuple[ConfigurationEvent, ...]:
    """Return the events to append to the view's history, in order.

    Args:
        wanted: None: what the status says last.
        used: what else is known to have been written under, e.g. read from the rows.

    Raises: ConfigurationRefused when something known would become unreachable; InvalidInput when
    there is nothing to adopt, or no word of what; HistoryMissing for a gap that nothing fills.
    """
    if mirror and disagreement(mirror, status) is None and is_whole(mirror):
        raise InvalidInput(
            "there is nothing to adopt: the history is there and nothing contradicts it"
        )
    remembered = readable(status)
    brought_back = _continuing(mirror, remembered)
    state = replay(sorted((*mirror, *brought_back), key=lambda each: each.sequence))
    last = [each for each in (_last(mirror), _last(remembered)) if each]
    wanted = wanted or (last[-1] if remembered and last else None)
    if wanted is None:
        raise InvalidInput("say how the queue is configured: nothing remembers it")
    _check(wanted, (*used, *last))
    reached = state.sequence if state else 0
    newest = max((each.sequence for each in remembered), default=0)
    adopted = ConfigurationAdopted(
        sequence=reached + 1,
        at=at.replace(microsecond=at.microsecond // 1000 * 1000),
        by=by,
        version=state.version + 1 if state else 1,
        configuration=wanted,
        reason=reason,
        supersedes=newest if newest > reached else 0,
    )
    return (*brought_back, adopted)


def rollout_of(history: Sequence[ConfigurationEvent]) -> Rollout:
    """Return how far the configurations of a history have spread that ends with an adoption.

    The adopted one is announced like any change. Until it is written, the one accepted before it
    holds, and nothing earlier: browse start may have passed the slices of longer windows.
    """
    known = sorted(versions(history))
    version = known[-2] if len(known) > 1 else known[-1]
    return Rollout(version, version)


def _continuing(
    mirror: Sequence[ConfigurationEvent], remembered: Sequence[ConfigurationEvent]
) -> tuple[ConfigurationEvent, ...]:
    """Return what of the status is missing in the view's history, to complete or continue it;
    nothing, when it is another one.

    Raises: HistoryMissing when the view's history has a gap that the status cannot fill.
    """
    known = {each.sequence: each for each in mirror}
    first = min(known, default=None)
    entries = [
        each
        for each in remembered
        if first is None or each.sequence < first or not isinstance(each, HistoryFolded)
    ]
    missing = tuple(each for each in entries if each.sequence not in known)
    is_another = any(known.get(each.sequence, each) != each for each in entries)
    try:
        replay(sorted((*mirror, *missing), key=lambda each: each.sequence))
    except HistoryMissing:
        is_another = True
    if is_another:
        replay(mirror)
        return ()
    return missing


def _last(history: Sequence[ConfigurationEvent]) -> ViewConfiguration | None:
    """Return the configuration accepted last; what came before it need not be readable."""
    accepted = (
        each.configuration
        for each in reversed(history)
        if not isinstance(each, ConfigurationRefused)
    )
    return next(accepted, None)


def _check(wanted: ViewConfiguration, known: Sequence[ViewConfiguration]) -> None:
    problems = [found.message for each in known if (found := refusal_of(each, wanted))]
    if problems:
        finest = reaching(known)
        raise errors.ConfigurationRefused(
            "; ".join(dict.fromkeys(problems)),
            hint=f"everything known is reached under {format_duration(finest.slice_window)} and "
            f"{finest.bucket_count} buckets",
        )


def reaching(known: Sequence[ViewConfiguration]) -> ViewConfiguration:
    """Return the coarsest configuration under which all of these are reachable."""
    seconds = gcd(*(each.slice_window // SHORTEST_WINDOW for each in known))
    return ViewConfiguration(timedelta(seconds=seconds), max(each.bucket_count for each in known))
