"""Judges objects as an API server does: the CRDs' structural schemas and rules, and the bounds of
built-in kinds that the operator could reach.

Unknown fields are pruned, defaults set, and what an object does not keep is refused, except what
the object from before did not keep either (ratcheting). The library `cel` evaluates the rules.
Source: Kubernetes documentation (Extend the Kubernetes API with CustomResourceDefinitions; Common
Expression Language in Kubernetes).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import cel

from postroad.errors import KubernetesRefused
from postroad.ports.kubernetes import Object
from support.kubectl import manifests
from support.memory.kubernetes.world import ObjectPlace, copied
from support.repository import ROOT

Schema = Mapping[str, Any]

MAX_DATA = 1024 * 1024
"""Bytes of a ConfigMap or Secret."""

MAX_ANNOTATIONS = 256 * 1024
MAX_NOTE = 1024
LABEL = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9])?")
END = re.compile(r"(?<!\\)\$")
"""In Go's expressions, the end of the text alone; in Python's, also before a last line feed."""

SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")

KINDS: Mapping[str, type | tuple[type, ...]] = {
    "object": dict, "array": list, "string": str, "boolean": bool, "integer": int,
    "number": (int, float),
}  # fmt: skip


@cache
def schemas() -> Mapping[str, Schema]:
    """Return the schemas of the CRDs, by plural."""
    return {
        each["spec"]["names"]["plural"]: each["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        for each in manifests(ROOT / "crds")
    }


def admitted(place: ObjectPlace, found: Object | None, wanted: Object) -> Object:
    """Return an object as an API server stores it. Raises: KubernetesRefused."""
    schema = schemas().get(place.plural)
    errors = [*metadata_errors(wanted), *native_errors(place, wanted)]
    if schema is not None:
        wanted = shaped(schema, copied(wanted), is_root=True)
        before = found and shaped(schema, found, is_root=True)
        if before is not None and before.get("spec") == wanted.get(
            "spec"
        ):  # all rules are about it
            status = schema["properties"]["status"]
            errors += violations(status, wanted.get("status") or {}, None, ".status")
        else:
            errors += violations(schema, wanted, before)
        if errors and before is not None:
            known = set(violations(schema, before, None))
            errors = [each for each in errors if each not in known]
    if errors:
        raise KubernetesRefused(
            f'422 {place.plural} "{place.name}" is invalid: {"; ".join(errors)}'
        )
    return wanted


def metadata_errors(wanted: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong about names, labels and annotations."""
    metadata = wanted["metadata"]
    name, annotations = metadata["name"], metadata.get("annotations") or {}
    if len(name) > 253 or not (SUBDOMAIN.fullmatch(name) or ":" in name):
        yield f"metadata.name: Invalid value: {name!r}"
    for label, value in (metadata.get("labels") or {}).items():
        if not LABEL.fullmatch(value):
            yield f"metadata.labels: Invalid value: {label}={value!r}"
    if sum(len(key) + len(value.encode()) for key, value in annotations.items()) > MAX_ANNOTATIONS:
        yield f"metadata.annotations: Too long: may not be more than {MAX_ANNOTATIONS} bytes"


def native_errors(place: ObjectPlace, wanted: Mapping[str, Any]) -> Iterator[str]:
    """Yield which bounds of its kind an object exceeds."""
    if place.plural in ("configmaps", "secrets"):
        data = wanted.get("data") or {}
        if sum(len(key) + len(value.encode()) for key, value in data.items()) > MAX_DATA:
            yield f"[]: Too long: may not be more than {MAX_DATA} bytes"
    if place.plural == "events":
        if len(wanted["note"].encode()) > MAX_NOTE:
            yield f"note: Too long: may not be more than {MAX_NOTE} bytes"
        if not 0 < len(wanted["reason"]) <= 128 or not 0 < len(wanted["action"]) <= 128:
            yield "reason, action: Invalid value"


def shaped(schema: Schema, value: Any, *, is_root: bool = False) -> Any:
    """Return a value without unknown fields and nulls, and with defaults."""
    if isinstance(value, list) and "items" in schema:
        return [shaped(schema["items"], each) for each in value]
    if not isinstance(value, dict):
        return value
    properties, others = schema.get("properties", {}), schema.get("additionalProperties")
    keeps = schema.get("x-kubernetes-preserve-unknown-fields")
    result = {}
    for name, each in value.items():
        if is_root and name in ("apiVersion", "kind", "metadata"):
            result[name] = each
        elif name in properties:
            if each is not None or properties[name].get("nullable"):
                result[name] = each
        elif keeps or isinstance(others, Mapping):
            result[name] = each if keeps else shaped(others or {}, each)
    for name, each in properties.items():
        if name not in result and "default" in each:
            result[name] = copied(each["default"])
        if name in result and not (is_root and name == "metadata"):
            result[name] = shaped(each, result[name])
    return result


def violations(schema: Schema, value: Any, old: Any, path: str = "") -> Iterator[str]:
    """Yield what a value does not keep of its schema, then of its rules."""
    if value is None and schema.get("nullable"):
        return
    where = path.removeprefix(".") or "object"
    found = list(own_violations(schema, value))
    yield from (f"{where}: {each}" for each in found)
    missing = set(schema.get("required", ())).difference(value if isinstance(value, dict) else ())
    yield from (f"{path}.{each}: Required value".removeprefix(".") for each in sorted(missing))
    if any(each.startswith("Invalid type") for each in found):
        return
    if isinstance(value, dict):
        known, rest = schema.get("properties", {}), schema.get("additionalProperties")
        earlier = old if isinstance(old, dict) else {}
        for name, each in value.items():
            inner = known.get(name, rest)
            if isinstance(inner, Mapping) and (path or name != "metadata"):
                yield from violations(inner, each, earlier.get(name), f"{path}.{name}")
    if isinstance(value, list):
        for number, each in enumerate(value):
            yield from violations(schema.get("items", {}), each, None, f"{path}[{number}]")
    if not (found or missing):
        yield from (f"{where}: {each}" for each in broken_rules(schema, value, old))


def own_violations(schema: Schema, value: Any) -> Iterator[str]:
    """Yield what a value alone, without what is in it, does not keep."""
    kind = KINDS.get(schema.get("type", ""))
    if kind and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
        yield f"Invalid type: {value!r}: must be of type {schema['type']}"
        return
    if schema.get("x-kubernetes-int-or-string") and type(value) not in (int, str):
        yield f"Invalid type: {value!r}: must be an integer or a string"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"Unsupported value: {value!r}"
    if isinstance(value, str):
        yield from text_violations(schema, value)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        if value < schema.get("minimum", value) or value > schema.get("maximum", value):
            yield f"Invalid value: {value}"
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            yield f"Invalid value: {value}: no int64"
    elif isinstance(value, list):
        yield from bounded(schema, len(value), "Items")
        keys = schema.get("x-kubernetes-list-map-keys")
        names = [str([each.get(key) for key in keys]) if keys else str(each) for each in value]
        if schema.get("x-kubernetes-list-type") in ("map", "set") and len({*names}) < len(names):
            yield "Duplicate value"
    elif isinstance(value, dict):
        yield from bounded(schema, len(value), "Properties")


def text_violations(schema: Schema, value: str) -> Iterator[str]:
    """Yield what a text does not keep."""
    yield from bounded(schema, len(value), "Length")
    if "pattern" in schema and not re.search(END.sub(r"\\Z", schema["pattern"]), value):
        yield f"Invalid value: {value!r}: should match {schema['pattern']!r}"
    if schema.get("format") == "date-time":
        try:
            datetime.fromisoformat(value)
        except ValueError:
            yield f"Invalid value: {value!r}: must be of type date-time"


def bounded(schema: Schema, count: int, what: str) -> Iterator[str]:
    """Yield where a number of items, fields or characters is out of bounds."""
    if count > schema.get(f"max{what}", count):
        yield f"Too long: {count}: must have at most {schema[f'max{what}']} {what}"
    if count < schema.get(f"min{what}", count):
        yield f"Too short: {count}: must have at least {schema[f'min{what}']} {what}"


def broken_rules(schema: Schema, value: Any, old: Any) -> Iterator[str]:
    """Yield the messages of the rules that a value does not keep. A rule about the value from
    before holds where there was none."""
    rules = schema.get("x-kubernetes-validations")
    if not rules:
        return
    if isinstance(value, dict) and "metadata" in value:
        value = {**value, "metadata": {"name": value["metadata"]["name"]}}
    context = cel.Context(variables={"self": value, "oldSelf": old}, functions=FUNCTIONS)
    for rule in rules:
        if "oldSelf" in rule["rule"] and old is None:
            continue
        try:
            if not program(rule["rule"]).execute(context):
                message = rule.get("messageExpression")
                yield str(program(message).execute(context)) if message else rule["message"]
        except Exception as error:
            yield f"rule {rule['rule']!r} cannot be evaluated: {error!r}"


@cache
def program(rule: str) -> Any:
    """Return the program of a rule. Fields named as CEL's reserved words, which Kubernetes has
    escaped (`self.__function__`), are as they are for the library."""
    return cel.compile(re.sub(r"\b__([a-z]+)__\b", r"\1", rule))


def is_url(text: str) -> bool:
    """Whether a text is an absolute URL."""
    try:
        return bool(urlsplit(text).scheme)
    except ValueError:
        return False


def port_of(url: str) -> str:
    """Return the digits of a URL's port, none where it has none."""
    return urlsplit(url).netloc.rpartition("@")[2].rpartition("]")[2].partition(":")[2]


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "isURL": is_url,
    "url": lambda text: text,
    "getPort": port_of,
    "min": min,
    "sum": lambda durations: sum(durations, timedelta()),
    "max": max,
    "format": lambda text, values: text % tuple(values),
    "lowerAscii": str.lower,
    "getSeconds": lambda duration: int(duration.total_seconds()),
}
"""Of Kubernetes' libraries, those that the rules use."""
