"""Finds what resources have that this release does not know. The API server drops such fields of a
spec once it has this release's CRDs, and what such an event of a history says about where mail lies
is unknown: so a way back to this release is refused before anything has changed."""

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from postroad.controller.kubernetes.api import (
    GROUP,
    MAIL_QUEUE,
    MAIL_QUEUE_TASK,
    QUEUE_CLUSTER,
    VERSION,
)
from postroad.controller.spec.cluster import QueueClusterSpec
from postroad.controller.spec.mailqueue import MailQueueSpec
from postroad.controller.spec.parts import Model
from postroad.controller.spec.task import MailQueueTaskSpec
from postroad.domain.configuration.documents import from_document
from postroad.errors import InvalidInput
from postroad.ports.kubernetes import Kind

SPECS: Mapping[Kind, type[Model]] = {
    MAIL_QUEUE: MailQueueSpec,
    QUEUE_CLUSTER: QueueClusterSpec,
    MAIL_QUEUE_TASK: MailQueueTaskSpec,
}
_NAMED = {kind.name: model for kind, model in SPECS.items()}
SCHEMAS = f"/openapi/v3/apis/{GROUP}/{VERSION}"
"""Path at which the API server has the schemas of the CRDs that are installed."""


def unknown_parts(
    resources: Iterable[Mapping[str, Any]], published: Mapping[str, Any] | None = None
) -> list[str]:
    """Return a sentence, without its end, for each field or value of a spec, and each event of a
    history. `published`: what is at `SCHEMAS`; fields that have their default there are none."""
    schemas = {
        each["kind"]: schema["properties"]["spec"]
        for schema in ((published or {}).get("components") or {}).get("schemas", {}).values()
        for each in schema.get("x-kubernetes-group-version-kind", ())
        if each["kind"] in _NAMED
    }
    return [
        f"{each['kind']} {each['metadata']['namespace']}/{each['metadata']['name']}: {part}"
        for each in resources
        for part in (*_fields(each, schemas.get(each["kind"], {})), *_events(each))
    ]


def _fields(found: Mapping[str, Any], schema: Mapping[str, Any]) -> list[str]:
    try:
        _NAMED[found["kind"]].model_validate(found["spec"], extra="forbid")
    except ValidationError as error:
        errors = error.errors(include_url=False, include_context=False)
    else:
        return []
    unknown = []
    for each in errors:
        path = ".".join(("spec", *map(str, each["loc"])))
        if each["type"] == "literal_error":
            unknown.append(f"{path} has a value that is unknown: choose another one first")
        elif each["type"] == "extra_forbidden" and not _is_default(
            _schema_at(schema, each["loc"]), each["input"]
        ):
            unknown.append(f"{path} is unknown, and would be lost: take it out first")
        elif each["type"] != "extra_forbidden" and not _is_refused(found):
            why = each["msg"].removeprefix("Value error, ")
            unknown.append(f"{path} is refused by this release: {why}: change it first")
    return unknown


def _is_refused(found: Mapping[str, Any]) -> bool:
    """True for a spec that the release which runs refuses too: it keeps none from going back."""
    conditions = (found.get("status") or {}).get("conditions") or ()
    return any(each["reason"] == "InvalidSpec" for each in conditions)


def _schema_at(schema: Mapping[str, Any], path: Iterable[int | str]) -> Mapping[str, Any]:
    for step in path:
        inner = schema.get("items") if isinstance(step, int) else schema.get("properties")
        schema = (inner if isinstance(step, int) else (inner or {}).get(step)) or {}
    return schema


def _is_default(schema: Mapping[str, Any], value: Any) -> bool:
    if "default" in schema and isinstance(value, Mapping):
        fields = schema.get("properties", {})
        return all(_is_default(fields.get(name, {}), each) for name, each in value.items())
    return "default" in schema and bool(schema["default"] == value)


def _events(found: Mapping[str, Any]) -> list[str]:
    unread = []
    for document in (found.get("status") or {}).get("history") or ():
        try:
            from_document(document)
        except InvalidInput as error:
            number = document.get("sequence")
            unread.append(f"event {number} of its configuration history cannot be read: {error}")
    return unread
