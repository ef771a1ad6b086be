"""Schemas that kubeconform reads, from an OpenAPI document."""

from __future__ import annotations

from typing import Any

from stack.schemas import schemas_in

QUANTITY = "io.k8s.apimachinery.pkg.api.resource.Quantity"
OPENAPI: dict[str, Any] = {
    "definitions": {
        "Pod": {
            "description": "A pod.",
            "type": "object",
            "properties": {
                "description": {"type": "string", "description": "A field of this name."},
                "spec": {"$ref": "#/definitions/Spec"},
            },
            "x-kubernetes-group-version-kind": [{"group": "", "kind": "Pod", "version": "v1"}],
        },
        "Spec": {
            "type": "object",
            "properties": {"memory": {"$ref": f"#/definitions/{QUANTITY}"}},
            "required": ["memory"],
        },
        "Labels": {"type": "object", "additionalProperties": {"type": "string"}},
        QUANTITY: {"type": "string"},
    }
}


def test_a_kind_has_a_schema_with_all_that_it_refers_to() -> None:
    schemas = schemas_in(OPENAPI)

    assert schemas.keys() == {"pod-v1.json"}
    pod = schemas["pod-v1.json"]
    assert pod["definitions"].keys() == {"Spec", QUANTITY}
    assert pod["definitions"][QUANTITY] == {"type": ["number", "string"]}


def test_fields_that_have_no_schema_are_refused() -> None:
    pod = schemas_in(OPENAPI)["pod-v1.json"]

    assert pod["additionalProperties"] is False
    assert pod["definitions"]["Spec"] == {
        "type": "object",
        "properties": {"memory": {"$ref": f"#/definitions/{QUANTITY}"}},
        "required": ["memory"],
        "additionalProperties": False,
    }


def test_descriptions_go_and_fields_of_that_name_stay() -> None:
    pod = schemas_in(OPENAPI)["pod-v1.json"]

    assert "A pod." not in str(pod)
    assert pod["properties"]["description"] == {"type": "string"}


def test_what_is_open_stays_open() -> None:
    labels = {"type": "object", "additionalProperties": {"type": "string"}}
    kind = {"group": "apps", "kind": "Bag", "version": "v1"}
    openapi = {"definitions": {"Bag": {**labels, "x-kubernetes-group-version-kind": [kind]}}}

    assert schemas_in(openapi)["bag-apps-v1.json"] == {**labels, "definitions": {}}
