"""Compares a resource's status with the history; an adoption ends a conflict.

The operator writes the history first and the status last, so a status is never ahead of an intact
history. Where it is ahead, Cassandra lost the history, was restored from a backup, or belongs to
another installation: postroad then decides nothing, because mail may lie where only the status
remembers. An adoption records the configuration that an administrator gives. It first brings back
what the status remembers, because a process with a lease may still write under the configuration
before the adopted one, and readers must read there.
Source: ADR 0005."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from math import gcd
from typing import Any

from postroad import errors
from postroad.domain.configuration.documents import from_document
from postroad.domain.configuration.history import (
    ConfigurationAdopted,
    ConfigurationEvent,
    ConfigurationRefused,
    HistoryFolded,
    evolve,
    replay,
    to_milliseconds,
)
from postroad.domain.configuration.rules import MIN_WINDOW, ViewConfiguration, refusal_of
from postroad.domain.values.instants import format_duration
from postroad.errors import HistoryMissing, InvalidInput

HISTORY_CONFLICT = "HistoryConflict"
"""The condition's reason while the status contradicts the history, or the history is incomplete."""

REASON_BYTES = 900
"""The longest reason of an adoption, as JSON: fifty events with it stay below 64 KiB, and its
characters below what the resource definition allows in a message (1,024)."""

Events = Sequence[ConfigurationEvent]


def find_conflict(history: Events, status: Sequence[Mapping[str, Any]]) -> str | None:
    """Return what is wrong with the history, as a sentence without its end; None: nothing. A status
    that is empty or behind is no conflict, and entries that cannot be read are left out: the
    operator writes the status anew. Neither is what an adoption settled."""
    known, settled = {each.sequence: each for each in history}, _settled_until(history)
    try:
        replay(history)
    except HistoryMissing:
        return "the configuration history has a gap: an event was deleted"
    if not status:
        return None
    if not history:
        return "the configuration history is gone, but the resource's status remembers one"
    for event in readable(status):
        if event.sequence <= settled or event == known.get(event.sequence):
            continue
        if event.sequence > history[-1].sequence:
            return (
                f"the resource's status remembers event {event.sequence} of the configuration "
                f"history, but the view's history ends with {history[-1].sequence}"
            )
        before = [each for each in history if each.sequence <= event.sequence]
        if not isinstance(event, HistoryFolded) or replay(before) != evolve(None, event):
            return (
                f"the resource's status and the view's history have different events "
                f"{event.sequence}"
            )
    return None


def _settled_until(history: Events) -> int:
    """Return the last sequence that an adoption, or a fold at the history's begin, settled."""
    settled = 0
    for event in history:
        if isinstance(event, ConfigurationAdopted):
            settled = max(settled, event.sequence - 1, event.supersedes)
        elif isinstance(event, HistoryFolded):
            settled = max(settled, event.sequence)
    return settled


def continues(before: Events, after: Events) -> bool:
    """Return whether a history goes on from where it was, or a new adoption replaced it."""
    if tuple(after[: len(before)]) == tuple(before):
        return True
    adopted = [each for each in after if isinstance(each, ConfigurationAdopted)]
    return bool(adopted) and adopted[-1] not in before


def readable(status: Sequence[Mapping[str, Any]]) -> tuple[ConfigurationEvent, ...]:
    """Return the entries of a status that can be read; a newer release may have written others."""
    found = []
    for document in status:
        try:
            found.append(from_document(document))
        except InvalidInput:
            continue
    return tuple(found)


def adopt(
    history: Events,
    status: Sequence[Mapping[str, Any]],
    wanted: ViewConfiguration | None,
    *,
    at: datetime,
    by: str,
    reason: str,
    used: Sequence[ViewConfiguration] = (),
) -> tuple[ConfigurationEvent, ...]:
    """Return the events to append, in order: what the status remembers, then the adoption.

    Args:
        wanted: None: the last configuration of the status.
        used: what else rows were written under, as closed slices show.

    Raises: ConfigurationRefused when mail would become unreachable; InvalidInput without a
    conflict, without a configuration, or for a reason of more than `REASON_BYTES`; HistoryMissing
    for a gap that the status does not fill."""
    if history and find_conflict(history, status) is None:
        raise InvalidInput(
            "there is nothing to adopt: the history is there and nothing contradicts it"
        )
    check_reason(reason)
    remembered = readable(status)
    restored = _restored(history, remembered)
    state = replay(in_order(history, restored))
    last = [each for each in (_last(history), _last(remembered)) if each]
    wanted = wanted or (last[-1] if remembered and last else None)
    if wanted is None:
        raise InvalidInput("give the configuration of the queue: nothing remembers it")
    _check(wanted, (*used, *last))
    reached = state.sequence if state else 0
    newest = max((each.sequence for each in remembered), default=0)
    adopted = ConfigurationAdopted(
        sequence=reached + 1,
        at=to_milliseconds(at),
        by=by,
        version=state.version + 1 if state else 1,
        configuration=wanted,
        reason=reason,
        supersedes=newest if newest > reached else 0,
    )
    return (*restored, adopted)


def check_reason(reason: str) -> None:
    """Check that every status has room for an adoption's reason. Raises: InvalidInput."""
    size = len(json.dumps(reason))
    if size > REASON_BYTES:
        raise InvalidInput(
            f"the reason is too long: it takes {size} bytes as JSON, of which a character beyond"
            f" ASCII takes six or more; write one of at most {REASON_BYTES} bytes"
        )


def in_order(*parts: Events) -> tuple[ConfigurationEvent, ...]:
    """Return the events of all parts by their sequence."""
    return tuple(sorted((event for part in parts for event in part), key=lambda e: e.sequence))


def _restored(history: Events, remembered: Events) -> tuple[ConfigurationEvent, ...]:
    """Return the remembered events that complete or continue the history; nothing when the status
    is of another one, or leaves a gap."""
    known = {each.sequence: each for each in history}
    entries = [
        each
        for each in remembered
        if not isinstance(each, HistoryFolded) or all(each.sequence < one for one in known)
    ]
    missing = tuple(each for each in entries if each.sequence not in known)
    if all(known.get(each.sequence, each) == each for each in entries):
        try:
            replay(in_order(history, missing))
        except HistoryMissing:
            return ()
        return missing
    return ()


def _last(history: Events) -> ViewConfiguration | None:
    """Return the configuration accepted last; what came before it need not be readable."""
    accepted = [each for each in history if not isinstance(each, ConfigurationRefused)]
    return accepted[-1].configuration if accepted else None


def _check(wanted: ViewConfiguration, known: Sequence[ViewConfiguration]) -> None:
    problems = [found.message for each in known if (found := refusal_of(each, wanted))]
    if problems:
        seconds = gcd(*(each.slice_window // MIN_WINDOW for each in known))
        window = format_duration(timedelta(seconds=seconds))
        buckets = max(each.bucket_count for each in known)
        raise errors.ConfigurationRefused(
            "; ".join(dict.fromkeys(problems)),
            hint=f"everything known is reached under {window} and {buckets} buckets",
        )
