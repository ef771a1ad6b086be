"""JSON schemas of Kubernetes' own kinds, strict, as kubeconform reads them: a file for each kind.

They are made of the OpenAPI document of the Kubernetes that the stack runs, so that a field which
this version does not know is an error.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from stack import golang, kube
from stack.cache import Entry

Schema = Any
"""A JSON schema, or a part of one."""

RECIPE = "1"
"""Counts the changes of what is written; old schemas are then made anew."""
OPENAPI = "api/openapi-spec/swagger.json"
PROMETHEUS_OPERATOR = ("github.com/prometheus-operator/prometheus-operator", "v0.82.2")
LOCATION = "{{ .ResourceKind }}{{ .KindSuffix }}.json"
"""The name of a kind's file, as a template of kubeconform's `-schema-location`."""

EITHER = {
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": {"type": ["integer", "string"]},
    "io.k8s.apimachinery.pkg.api.resource.Quantity": {"type": ["number", "string"]},
}
"""Definitions that name one type in OpenAPI and accept two."""


def entry() -> Entry:
    """Return the cache entry of the schemas."""

    def convert(module: Path, folder: Path) -> None:
        for name, schema in schemas_in(json.loads((module / OPENAPI).read_text())).items():
            (folder / name).write_text(json.dumps(schema))

    version = f"v{kube.kubernetes_version()}"
    return golang.made_from("kubernetes-schemas", "k8s.io/kubernetes", version, RECIPE, convert)


def of_the_prometheus_operator() -> Entry:
    """Return the cache entry of the schemas of its monitors and rules."""

    def convert(module: Path, folder: Path) -> None:
        for file in (module / "jsonnet/prometheus-operator").glob("*-crd.json"):
            spec = json.loads(file.read_text())["spec"]
            for version in spec["versions"]:
                name = file_name(spec["names"]["kind"], spec["group"], version["name"])
                schema = strict(version["schema"]["openAPIV3Schema"])
                (folder / name).write_text(json.dumps(schema))

    return golang.made_from("monitoring-schemas", *PROMETHEUS_OPERATOR, RECIPE, convert)


def schemas_in(openapi: Mapping[str, Any]) -> dict[str, Schema]:
    """Return the schema of each kind of an OpenAPI document, by the name of its file."""
    definitions = {name: strict(each) for name, each in openapi["definitions"].items()} | EITHER
    return {
        file_name(kind["kind"], kind["group"], kind["version"]): {
            **definitions[name],
            "definitions": {used: definitions[used] for used in _needed(name, definitions)},
        }
        for name, definition in openapi["definitions"].items()
        for kind in definition.get("x-kubernetes-group-version-kind", ())
    }


def file_name(kind: str, group: str, version: str) -> str:
    """Return the name of a kind's file.

    >>> file_name("Role", "rbac.authorization.k8s.io", "v1"), file_name("Pod", "", "v1")
    ('role-rbac-v1.json', 'pod-v1.json')
    """
    parts = [kind.lower(), *([group.partition(".")[0]] if group else []), version]
    return f"{'-'.join(parts)}.json"


def strict(schema: Schema) -> Schema:
    """Return a schema that refuses fields which it does not name, without its descriptions."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    result = {
        name: _each_strict(part) if name == "properties" else strict(part)
        for name, part in schema.items()
        if name != "description" and not name.startswith("x-kubernetes-")
    }
    is_open = "additionalProperties" in schema or schema.get("x-kubernetes-preserve-unknown-fields")
    if "properties" in schema and not is_open:
        result["additionalProperties"] = False
    return result


def _each_strict(properties: Mapping[str, Schema]) -> dict[str, Schema]:
    return {name: strict(each) for name, each in properties.items()}


def _needed(name: str, definitions: Mapping[str, Schema]) -> list[str]:
    """Return the definitions that one refers to, and those that these refer to."""
    needed: set[str] = set()
    waiting = [name]
    while waiting:
        found = set(_references(definitions[waiting.pop()])) - needed
        needed |= found
        waiting += found
    return sorted(needed)


def _references(schema: Schema) -> Iterator[str]:
    if isinstance(schema, dict):
        if isinstance(reference := schema.get("$ref"), str):
            yield reference.removeprefix("#/definitions/")
        for part in schema.values():
            yield from _references(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from _references(part)
