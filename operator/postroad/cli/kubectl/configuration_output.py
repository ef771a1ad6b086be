"""Output of the configuration commands: outcomes of a wanted configuration, advice, events."""

from collections.abc import Sequence
from datetime import UTC, datetime

import click

from postroad.cli.options import say
from postroad.domain.configuration.advice import Advice, Seen
from postroad.domain.configuration.documents import Document, configuration_document, to_document
from postroad.domain.configuration.history import (
    ConfigurationChanged,
    ConfigurationCreated,
    ConfigurationEvent,
    decide,
)
from postroad.domain.configuration.rules import FIELD_NAMES, ViewConfiguration, value_of
from postroad.domain.values.instants import format_duration, rfc3339


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


def say_outcome(outcome: Document, *, as_json: bool) -> bool:
    """Print an outcome; return whether it is accepted."""
    lines = [f"{outcome['queue']}: {outcome['outcome']}"]
    lines += [f"  {each['field']}: {_change(each)}" for each in outcome.get("changes", ())]
    if outcome["outcome"] == "refused":
        lines.append(f"  {outcome['message']}")
    elif outcome["outcome"] != "unchanged":
        lines.append(f"  would be version {outcome['version']}")
    if outcome.get("advice") is not None:
        lines += _advice_lines(outcome["advice"])
    say(outcome, as_json=as_json, text="\n".join(lines))
    return bool(outcome["outcome"] != "refused")


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


def _advice_lines(advice: Document) -> list[str]:
    count, since = advice["closed_slices"], advice["since"]
    basis = f"{count} closed slice{'' if count == 1 else 's'}"
    lines = [f"  advice, from {basis}{f' since {since}' if since else ''}:"]
    for name in ("sliceWindow", "bucketCount"):
        present, value = advice[name]["present"], advice[name]["value"]
        change = f"keep {value}" if value == present else f"{present} -> {value}"
        lines.append(f"    {name}: {change}; {advice[name]['reason']}")
    return lines


def event_text(event: ConfigurationEvent) -> str:
    """Return an event as people read it in a list: one line."""
    document = to_document(event)
    changes = [f"{each['field']} {_change(each)}" for each in document.get("changes", ())]
    parts = [
        f"{event.sequence:>4}",
        f"v{document['version']}" if "version" in document else "-",
        document["at"],
        document["type"],
        ", ".join(changes or (f"{field} {document[field]}" for field in FIELD_NAMES.values())),
        f"({count} events folded)" if (count := document.get("count")) else "",
        document.get("message", ""),
        f"by {event.by}" if event.by else "",
        f"generation {event.generation}" if event.generation is not None else "",
    ]
    return "  ".join(part for part in parts if part)


def _change(change: Document) -> str:
    return f"{change['from']} -> {change['to']}"


def configuration_text(configuration: ViewConfiguration) -> str:
    return ", ".join(
        f"{name} {value_of(configuration, attribute)}" for attribute, name in FIELD_NAMES.items()
    )


def note(text: str) -> None:
    """Print a remark beside the result, on standard error, which scripts do not parse."""
    click.echo(text, err=True)
