"""Turns a pydantic model into the structural schema that a CRD has to contain for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, TypeAdapter

BOUNDS = (
    ("minimum", "minimum"),
    ("maximum", "maximum"),
    ("minLength", "minLength"),
    ("maxLength", "maxLength"),
    ("minItems", "minItems"),
    ("maxItems", "maxItems"),
    ("minProperties", "minProperties"),
    ("maxProperties", "maxProperties"),
    ("pattern", "pattern"),
    ("enum", "enum"),
    ("type", "type"),
    ("x-kubernetes-preserve-unknown-fields", "x-kubernetes-preserve-unknown-fields"),
    ("x-kubernetes-int-or-string", "x-kubernetes-int-or-string"),
)


def structural_schema(model: type[BaseModel], description: str | None = None) -> dict[str, Any]:
    """Return the schema of an object: descriptions on one line, optional fields without a null."""
    whole = model.model_json_schema(by_alias=True)
    return _with(_convert(whole, whole.get("$defs", {}), model), description or model.__doc__)


def _with(schema: dict[str, Any], description: str | None) -> dict[str, Any]:
    return schema | {"description": " ".join((description or "").split())}


def _convert(
    schema: Mapping[str, Any], definitions: Mapping[str, Any], model: Any
) -> dict[str, Any]:
    schema = _resolve(schema, definitions)
    result: dict[str, Any] = {name: schema[key] for key, name in BOUNDS if key in schema}
    if "properties" in schema:
        fields = {field.alias: field for field in model.model_fields.values()}
        result["properties"] = {
            name: _property(each, definitions, fields[name])
            for name, each in schema["properties"].items()
        }
        if schema.get("required"):
            result["required"] = list(schema["required"])
    if "items" in schema:
        result["items"] = _nested(schema["items"], definitions, model)
    if isinstance(schema.get("additionalProperties"), Mapping):
        result["additionalProperties"] = _nested(schema["additionalProperties"], definitions, model)
    return result


def _property(schema: Mapping[str, Any], definitions: Mapping[str, Any], field: Any) -> Any:
    nested = next(iter(_models(field.annotation)), None)
    result = _with(_convert(schema, definitions, nested), field.description)
    if not field.is_required() and field.default not in (None, [], {}, ()):
        adapter = TypeAdapter(field.rebuild_annotation())
        result["default"] = (
            {}
            if isinstance(field.default, BaseModel)
            else adapter.dump_python(field.default, mode="json", by_alias=True)
        )
    return result


def _nested(schema: Mapping[str, Any], definitions: Mapping[str, Any], model: Any) -> Any:
    converted = _convert(schema, definitions, model)
    if "properties" in converted:
        converted = _with(converted, model.__doc__)
    return converted


def _resolve(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Mapping[str, Any]:
    if "$ref" in schema:
        return _resolve(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    if "anyOf" in schema:
        (chosen,) = (each for each in schema["anyOf"] if each != {"type": "null"})
        return _resolve(chosen, definitions)
    return schema


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for each in getattr(annotation, "__args__", ()) for found in _models(each)]
