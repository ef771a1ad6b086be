"""Writes the reference of the API from the CRDs: `python3 -m support.api_reference`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from support.kubectl import manifests
from support.repository import ROOT

PAGE = "docs/operator/api-reference.md"

HEAD = """# Reference of the API

Every field of the three kinds in `{version}`, as `kubectl explain` has it.
Written by `make api-reference` from `crds/`: change the descriptions there.
What all fields keep: [conventions](api-conventions.md).
"""

Schema = Mapping[str, Any]


def page() -> str:
    """Return the text of the page."""
    crds = manifests(ROOT / "crds")
    (version,) = {
        f"{crd['spec']['group']}/{each['name']}" for crd in crds for each in crd["spec"]["versions"]
    }
    return HEAD.format(version=version) + "".join(map(_kind, crds))


def _kind(crd: Mapping[str, Any]) -> str:
    names, (version,) = crd["spec"]["names"], crd["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    rows = "\n".join(
        f"| `{path}` | {_type(each)} | {_default(each, is_required=is_required)} | {_text(each)} |"
        for top in ("spec", "status")
        for path, each, is_required in _fields(schema["properties"][top], top)
    )
    short = ", ".join(f"`{each}`" for each in names["shortNames"])
    return (
        f"\n## {names['kind']}\n\n{_line(schema['description'])} Short: {short}.\n\n"
        f"| field | type | default | meaning |\n|---|---|---|---|\n{rows}\n"
    )


def _fields(schema: Schema, path: str) -> Iterator[tuple[str, Schema, bool]]:
    for name, each in schema.get("properties", {}).items():
        place = f"{path}.{name}"
        yield place, each, name in schema.get("required", ())
        if name == "template":
            continue  # as in a Pod
        yield from _fields(each, place)
        if isinstance(each.get("items"), Mapping):
            yield from _fields(each["items"], f"{place}[]")


def _type(schema: Schema) -> str:
    kind: str = schema.get("type", "any")
    if "enum" in schema:
        return ", ".join(f"`{each}`" for each in schema["enum"])
    if kind == "array":
        return f"list of {_type(schema['items'])}, at most {schema['maxItems']}"
    if kind == "integer" and "maximum" in schema:
        return f"{schema['minimum']} to {schema['maximum']}"
    if kind == "string" and schema.get("pattern", "").startswith("^([0-9]{1,6}h)?"):
        return "duration"
    if "x-kubernetes-int-or-string" in schema:
        return "integer or string"
    return str(schema.get("format", kind))


def _default(schema: Schema, *, is_required: bool) -> str:
    if is_required:
        return "required"
    default = schema.get("default", {})
    if isinstance(default, list):
        return f"`[{', '.join(map(str, default))}]`"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    return "" if default == {} else f"`{default}`"


def _text(schema: Schema) -> str:
    return _line(schema.get("description", "")).replace("|", "\\|")


def _line(text: str) -> str:
    return " ".join(text.split())


if __name__ == "__main__":
    (ROOT / PAGE).write_text(page())
