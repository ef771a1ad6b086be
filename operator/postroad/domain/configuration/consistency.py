"""Whether a resource's status and the history in the view tell the same story.

The view's history is written first, so an honest status is never ahead of it. One that is ahead
says that the view was lost, or restored from a backup, or belongs to somebody else: nothing may be
decided on such a history, since the data may lie where only the status remembers.
Source: ADR 0005.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from postroad.domain.configuration.documents import from_document
from postroad.domain.configuration.history import (
    ConfigurationAdopted,
    ConfigurationEvent,
    HistoryFolded,
    evolve,
    replay,
)
from postroad.errors import HistoryMissing, InvalidInput

HISTORY_CONFLICT = "HistoryConflict"
"""The reason of the condition while status and view contradict each other, or the view's part is
missing."""


def disagreement(
    mirror: Sequence[ConfigurationEvent], status: Sequence[Mapping[str, Any]]
) -> str | None:
    """Return what contradicts the view's history, as a sentence without its end; None: nothing.

    A status that is empty, behind, or unreadable beside a history contradicts nothing: it is
    rebuilt. What an adoption in the view's history settled is not brought up again.
    """
    if not is_whole(mirror):
        return "the configuration history has a gap: somebody deleted from it"
    if not status:
        return None
    if not mirror:
        return "the configuration history is gone, but the resource's status remembers one"
    settled = settled_until(mirror)
    known = {each.sequence: each for each in mirror}
    last = mirror[-1].sequence
    for event in readable(status):
        if event.sequence <= settled or event == known.get(event.sequence):
            continue
        if event.sequence > last:
            return (
                f"the resource's status remembers event {event.sequence} of the configuration "
                f"history, but the view's history ends with {last}"
            )
        if not isinstance(event, HistoryFolded) or not _stands_for(event, mirror):
            return (
                f"the resource's status and the view's history have different events "
                f"{event.sequence}"
            )
    return None


def _stands_for(folded: HistoryFolded, mirror: Sequence[ConfigurationEvent]) -> bool:
    state = replay(each for each in mirror if each.sequence <= folded.sequence)
    return state is not None and state == evolve(None, folded)


def is_whole(mirror: Sequence[ConfigurationEvent]) -> bool:
    """Return whether no event is missing within a history."""
    try:
        replay(mirror)
    except HistoryMissing:
        return False
    return True


def settled_until(mirror: Sequence[ConfigurationEvent]) -> int:
    """Return the last sequence that an adoption, or a fold at the history's begin, settled."""
    settled = 0
    for event in mirror:
        if isinstance(event, ConfigurationAdopted):
            settled = max(settled, event.sequence - 1, event.supersedes)
        elif isinstance(event, HistoryFolded):
            settled = max(settled, event.sequence)
    return settled


def readable(status: Sequence[Mapping[str, Any]]) -> tuple[ConfigurationEvent, ...]:
    """Return the entries of a status that can be read; a newer release may have written others."""
    found = []
    for document in status:
        try:
            found.append(from_document(document))
        except InvalidInput:
            continue
    return tuple(found)
