"""Configuration of a queue's view, as an administrator sees it: the accepted one, its history, and
what a change would lead to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from postroad.configuration import has_rows, observe
from postroad.domain.configuration.advice import Advice, Seen, advise
from postroad.domain.configuration.documents import Document, configuration_document, to_document
from postroad.domain.configuration.history import (
    ConfigurationChanged,
    ConfigurationCreated,
    ConfigurationEvent,
    Configured,
    decide,
    first_rollout,
    replay,
)
from postroad.domain.configuration.rules import ViewConfiguration
from postroad.domain.queues.names import QueueName
from postroad.domain.values.instants import format_duration, rfc3339
from postroad.errors import HistoryMissing, QueueNotFound, ServerError
from postroad.ports.view import History, Recorded, View


@dataclass(frozen=True, slots=True)
class ConfigurationOf:
    """The configuration history of a queue, and the view whose rows it describes."""

    name: QueueName
    history: History
    view: View


async def state_of(opened: ConfigurationOf, recorded: Recorded) -> Configured:
    """Return the accepted configuration. Raises: HistoryMissing, QueueNotFound, ServerError."""
    state = replay(recorded.events)
    if state is None:
        if await has_rows(opened.view):
            raise HistoryMissing
        raise QueueNotFound(f"{opened.name} has no configuration history")
    return state


def present_document(opened: ConfigurationOf, recorded: Recorded, state: Configured) -> Document:
    """Return the accepted configuration, and how far it has spread."""
    rollout = recorded.rollout or first_rollout(recorded.events)
    return {
        "queue": str(opened.name),
        "version": state.version,
        **configuration_document(state.configuration),
        "accepted_at": to_document(recorded.events[-1])["at"],
        "writing_version": rollout.writing,
        "oldest_version": rollout.oldest,
    }


async def planned(opened: ConfigurationOf, given: Mapping[str, Any]) -> tuple[Document, str | None]:
    """Return what a change of some fields would lead to, with advice, and why there is no advice.
    Raises: InvalidInput, HistoryMissing, ServerError."""
    events = (await opened.history.load()).events
    if not events and await has_rows(opened.view):
        raise HistoryMissing
    state = replay(events)
    wanted = replace(state.configuration if state else ViewConfiguration(), **given)
    outcome, problem = outcome_of(str(opened.name), events, wanted), None
    present = state.configuration if state else wanted
    try:
        seen = await observe(opened.view)
        outcome["advice"] = advice_document(present, advise(present, seen), seen)
    except ServerError as error:  # the change itself is answered all the same
        outcome["advice"] = None
        problem = f"no advice, because the view could not be read: {error}"
    return outcome, problem


def outcome_of(
    queue: str, history: Sequence[ConfigurationEvent], wanted: ViewConfiguration
) -> Document:
    """Return what deciding on a wanted configuration would give, without recording anything.
    Raises: HistoryMissing for a history with a gap."""
    decision = decide(history, wanted, at=datetime.now(UTC))
    found: Document = {"queue": queue, "version": decision.configured.version}
    if decision.refusal is not None:
        allowed = {field: list(values) for field, values in decision.refusal.allowed.items()}
        return found | {
            "outcome": "refused",
            "reason": decision.refusal.reason,
            "message": decision.refusal.message,
            "allowed": allowed,
        }
    if isinstance(decision.event, ConfigurationChanged):
        return found | {"outcome": "changed", "changes": to_document(decision.event)["changes"]}
    created = isinstance(decision.event, ConfigurationCreated)
    return found | {"outcome": "created" if created else "unchanged"}


def advice_document(present: ViewConfiguration, advice: Advice, seen: Seen) -> Document:
    before = configuration_document(present)
    values = configuration_document(advice.configuration)
    reasons = {"sliceWindow": advice.window_reason, "bucketCount": advice.buckets_reason}
    busiest = seen.busiest
    return {
        **{
            name: {"present": before[name], "value": values[name], "reason": reason}
            for name, reason in reasons.items()
        },
        "closed_slices": seen.slices,
        "since": rfc3339(seen.since),
        "enough_history": seen.is_enough,
        "busiest_slice": busiest
        and {
            "start": rfc3339(busiest.start),
            "window": format_duration(busiest.window),
            "rows": busiest.rows,
        },
        "row_bytes": seen.row_bytes,
        "cassandra_hosts": seen.hosts,
    }
