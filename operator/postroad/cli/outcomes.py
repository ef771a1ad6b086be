"""What a wanted configuration would lead to, as the commands that only ask say it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import click

from postroad.cli.queues import say
from postroad.domain.configuration import (
    ConfigurationChanged,
    ConfigurationCreated,
    ConfigurationEvent,
    decide,
)
from postroad.domain.configuration_rules import FIELD_NAMES, ViewConfiguration, value_of
from postroad.domain.history import Document, to_document


def outcome_of(
    queue: str, history: Sequence[ConfigurationEvent], wanted: ViewConfiguration
) -> Document:
    """Return what deciding on a wanted configuration would give, without recording anything.

    Raises: HistoryMissing for a history with a gap.
    """
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


def say_outcome(outcome: Document, *, as_json: bool) -> bool:
    """Print an outcome; return whether it is one to go on with."""
    lines = [f"{outcome['queue']}: {outcome['outcome']}"]
    lines += [
        f"  {each['field']}: {each['from']} -> {each['to']}" for each in outcome.get("changes", ())
    ]
    if outcome["outcome"] == "refused":
        lines.append(f"  {outcome['message']}")
    elif outcome["outcome"] != "unchanged":
        lines.append(f"  would be version {outcome['version']}")
    say(outcome, as_json=as_json, text="\n".join(lines))
    return bool(outcome["outcome"] != "refused")


def event_text(event: ConfigurationEvent) -> str:
    """Return an event as people read it in a list: one line."""
    document = to_document(event)
    parts = [
        f"{event.sequence:>4}",
        f"v{document['version']}" if "version" in document else "-",
        document["at"],
        document["type"],
        ", ".join(
            f"{each['field']} {each['from']} -> {each['to']}"
            for each in document.get("changes", ())
        )
        or ", ".join(f"{field} {document[field]}" for field in FIELD_NAMES.values()),
        f"({count} events folded)" if (count := document.get("count")) else "",
        document.get("message", ""),
        f"by {event.by}" if event.by else "",
        f"generation {event.generation}" if event.generation is not None else "",
    ]
    return "  ".join(part for part in parts if part)


def configuration_text(configuration: ViewConfiguration) -> str:
    """Return a configuration as people read it."""
    return ", ".join(
        f"{name} {value_of(configuration, attribute)}" for attribute, name in FIELD_NAMES.items()
    )


def note(text: str) -> None:
    """Say something beside the result, where scripts do not read it."""
    click.echo(text, err=True)
