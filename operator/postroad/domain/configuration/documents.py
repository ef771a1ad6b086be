"""Configurations and events as documents, as Cassandra and the resource's status keep them.

A document is a JSON-able dict with camelCase keys. A status keeps the newest events and one fold in
front of them, because the API server bounds an object; the complete history is in Cassandra."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from postroad.domain.configuration import history as events
from postroad.domain.configuration.history import ConfigurationEvent, Configured
from postroad.domain.configuration.rules import (
    FIELD_NAMES,
    FieldChange,
    Refusal,
    ViewConfiguration,
)
from postroad.domain.values.instants import format_duration, parse_duration
from postroad.errors import InvalidInput

Document = dict[str, Any]

_LEFT_OUT = {"by", "generation"}
"""Fields that `to_document` leaves out where they are empty."""


def configuration_document(configuration: ViewConfiguration) -> Document:
    """Return a configuration as the resource's `spec.view` has it."""
    return {
        "sliceWindow": format_duration(configuration.slice_window),
        "bucketCount": configuration.bucket_count,
        "updateBrowseStartPace": configuration.update_browse_start_pace,
    }


def configuration_from(document: Mapping[str, Any] | None) -> ViewConfiguration:
    """Read `spec.view`; what is left out has its default. Raises: InvalidInput."""
    if not isinstance(document, Mapping):
        raise InvalidInput("a view configuration is a mapping of its fields")
    default = ViewConfiguration()
    return ViewConfiguration(
        _window(document, default.slice_window),
        _whole(document, "bucketCount", default.bucket_count),
        _whole(document, "updateBrowseStartPace", default.update_browse_start_pace),
    )


def effective_document(state: Configured, effective_from: datetime) -> Document:
    return {
        "version": state.version,
        **configuration_document(state.configuration),
        "effectiveFrom": _moment(effective_from),
    }


def to_document(event: ConfigurationEvent) -> Document:
    """Return an event as a document that `from_document` reads back to an equal event. A refusal
    has the wanted values where the others have the accepted ones, and no version."""
    document: Document = {"sequence": event.sequence}
    if not isinstance(event, events.ConfigurationRefused):
        document["version"] = event.version
    document |= {"type": type(event).__name__, "at": _moment(event.at)}
    if event.by:
        document["by"] = event.by
    if event.generation is not None:
        document["generation"] = event.generation
    match event:
        case events.ConfigurationRefused(refusal=refusal):
            document |= {"reason": refusal.reason, "message": refusal.message}
            document["allowed"] = {name: list(values) for name, values in refusal.allowed.items()}
            return document | configuration_document(event.wanted)
        case events.ConfigurationChanged(changes=changes):
            document["changes"] = [
                {"field": each.field, "from": each.before, "to": each.after} for each in changes
            ]
        case events.ConfigurationAdopted():
            document |= {"message": event.reason, "supersedes": event.supersedes}
        case events.HistoryFolded():
            document |= {"count": event.count, "since": _moment(event.since)}
    return document | configuration_document(event.configuration)


def from_document(document: Mapping[str, Any]) -> ConfigurationEvent:
    """Read an event. Raises: InvalidInput for anything that `to_document` did not write: what a
    newer release added to an event may change where mail lies."""
    try:
        event = _read(document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidInput("a configuration event cannot be read") from error
    unknown = document.keys() - to_document(event).keys() - _LEFT_OUT
    if unknown:
        names = ", ".join(sorted(map(str, unknown)))
        raise InvalidInput(f"a configuration event has fields that are unknown: {names}")
    return event


def _read(document: Mapping[str, Any]) -> ConfigurationEvent:
    common: Document = {
        "sequence": int(document["sequence"]),
        "at": _instant(document["at"]),
        "by": str(document.get("by", "")),
        "generation": document.get("generation"),
    }
    kind = document["type"]
    configuration = configuration_from({name: document[name] for name in FIELD_NAMES.values()})
    if kind == "ConfigurationRefused":
        allowed = {name: tuple(values) for name, values in document["allowed"].items()}
        refusal = Refusal(document["reason"], document["message"], allowed)
        return events.ConfigurationRefused(**common, wanted=configuration, refusal=refusal)
    common |= {"version": int(document["version"]), "configuration": configuration}
    match kind:
        case "ConfigurationCreated":
            return events.ConfigurationCreated(**common)
        case "ConfigurationChanged":
            changes = tuple(
                FieldChange(each["field"], each["from"], each["to"]) for each in document["changes"]
            )
            return events.ConfigurationChanged(**common, changes=changes)
        case "ConfigurationAdopted":
            return events.ConfigurationAdopted(
                **common, reason=document["message"], supersedes=int(document["supersedes"])
            )
        case "HistoryFolded":
            return events.HistoryFolded(
                **common, count=int(document["count"]), since=_instant(document["since"])
            )
    raise InvalidInput(f"{kind!r} is no type of configuration event")


def _window(document: Mapping[str, Any], default: timedelta) -> timedelta:
    value = document.get("sliceWindow")
    if value is None:
        return default
    try:
        return parse_duration(str(value))
    except InvalidInput as error:
        raise InvalidInput(f"sliceWindow: {error}") from error


def _whole(document: Mapping[str, Any], field: str, default: int) -> int:
    value = document.get(field)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidInput(f"{field} must be a whole number")
    return value


def _moment(moment: datetime) -> str:
    text = moment.astimezone(UTC).isoformat(timespec="milliseconds")
    return text.replace(".000", "").replace("+00:00", "Z")


def _instant(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise InvalidInput("a time needs its zone")
    return moment
