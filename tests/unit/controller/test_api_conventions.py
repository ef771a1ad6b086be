"""The CRDs keep the conventions of `docs/operator/api-conventions.md`, also in fields to come."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import pytest

from postroad.domain.smtp.sasl_client import Mechanism
from postroad.domain.values.instants import DURATION_PATTERN
from postroad.intake_settings.listeners import ListenerRole
from support import api_reference
from support.admission import schemas
from support.kubectl import manifests
from support.repository import ROOT

Schema = Mapping[str, Any]

PLURALS = ("mailqueues", "mailqueuetasks", "queueclusters")
REGISTERED = {each.value for each in (*Mechanism, *ListenerRole)}
"""Values that a registry names (those of SASL mechanisms have hyphens), and roles of listeners,
named as the protocols of their clients are."""

PODS = tuple(
    f"spec.{of}.{field}."
    for of in ("workers", "intake", "pipeline", "console")
    for field in ("pod", "template")
)
"""What Kubernetes defines: of a field that is an object of several levels, it checks what is in it.
The names are those of a PodTemplateSpec."""

TLS_FIELDS = {
    *("mode", "minVersion", "serverName", "honours"),
    *("caRef", "caFile", "certificates", "clientCertRef", "clients"),
}
WORDS = (
    *("true", "false", "null", "in", "as", "break", "const", "continue", "else", "for", "function"),
    *("if", "import", "let", "loop", "namespace", "package", "return", "var", "void", "while"),
)
"""Those of CEL: as names of fields, rules have them with underscores around."""

QUANTITIES = {"^[1-9][0-9]*(Mi|Gi)$", "^([1-9][0-9]{0,9})(Ki|Mi|Gi)?$"}


class Field(NamedTuple):
    path: str
    name: str
    schema: Schema
    parent: Schema

    @property
    def rules(self) -> str:
        return str(self.schema.get("x-kubernetes-validations", ""))


def fields(schema: Schema, path: str = "") -> Iterator[Field]:
    """Yield every field, and what lists and maps hold as `[]`."""
    for name, each in schema.get("properties", {}).items():
        place = f"{path}.{name}".removeprefix(".")
        if place not in ("apiVersion", "kind", "metadata"):
            yield Field(place, name, each, schema)
            yield from fields(each, place)
    for nested in ("items", "additionalProperties"):
        if isinstance(schema.get(nested), Mapping):
            yield Field(f"{path}[]", "[]", schema[nested], schema)
            yield from fields(schema[nested], f"{path}[]")


def enumeration(each: Field) -> bool:
    values = set(each.schema.get("enum", ())) - REGISTERED
    return all(re.fullmatch("[A-Z][A-Za-z0-9]*", value) for value in values)


def bounded(each: Field) -> bool:
    schema, in_spec = each.schema, each.path.startswith("spec")
    bounds = {
        "string": ("maxLength", "enum", "format"),
        "array": ("maxItems",),
        "integer": ("maximum",) if in_spec else ("minimum", "format"),
    }
    needed = bounds.get(schema.get("type", ""), ())
    if isinstance(schema.get("additionalProperties"), Mapping):
        needed = ("maxProperties",)
    return not needed or any(bound in schema for bound in needed)


def merged(each: Field) -> bool:
    if each.schema.get("type") != "array":
        return True
    kind, keys = (each.schema.get(f"x-kubernetes-list-{of}") for of in ("type", "map-keys"))
    return kind in ("atomic", "set") or (kind == "map" and bool(keys))


def described(each: Field) -> bool:
    return each.name == "[]" or str(each.schema.get("description", "")).endswith(".")


def named(each: Field) -> bool:
    is_camel = re.fullmatch("[a-z][a-z0-9]*([A-Z][a-z0-9]*)*(URL)?", each.name)
    has_unit = re.search("(Seconds?|Minutes|Hours|Days|Ms|Mb|Mib)$", each.name)
    is_negative = re.match("(is|has|no|not|disable)[A-Z]", each.name)
    if each.name == "[]" or each.path.startswith(PODS):
        return True
    return bool(is_camel) and not has_unit and not is_negative


def address(each: Field) -> bool:
    has_scheme = bool(re.match(r"\^[a-z]+s\??:", each.schema.get("pattern", "")))
    return has_scheme == (each.name in ("url", "issuer") or each.name.endswith("URL"))


def one_tls(each: Field) -> bool:
    if each.name == "tls":
        known = set(each.schema.get("properties", ())) <= TLS_FIELDS
        return each.schema.get("type") == "object" and known
    return each.name not in ("caRef", "caFile", "certRef", "clientCertRef") or (
        each.path.split(".")[-2] in ("tls", "certificates[]", "clients")
    )


def duration(each: Field) -> bool:
    pattern = each.schema.get("pattern", "")
    looks_like_one = re.fullmatch(r"\d+[a-z]+", str(each.schema.get("default", "")))
    return not looks_like_one or pattern == DURATION_PATTERN


def quantity(each: Field) -> bool:
    return not re.search(r"[MG]i", each.schema.get("pattern", "")) or (
        each.schema["pattern"] in QUANTITIES
    )


def reference(each: Field) -> bool:
    if not each.name.endswith("Ref"):
        return True
    schema = each.schema
    return (
        schema.get("type") == "object"
        and "name" in schema.get("required", ())
        and (set(schema["properties"]) <= {"name", "namespace", "kind", "key", "keys"})
    )


def shaped(each: Field) -> bool:
    free = each.schema.get("x-kubernetes-preserve-unknown-fields", False)
    return not free or each.path.startswith(PODS)


CONVENTIONS = (
    enumeration, bounded, merged, described, named, address, one_tls, duration, quantity,
    reference, shaped,
)  # fmt: skip


@pytest.mark.parametrize("plural", PLURALS)
@pytest.mark.parametrize("keeps", CONVENTIONS, ids=lambda each: str(each.__name__))
def test_every_field_keeps_the_convention(plural: str, keeps: Callable[[Field], bool]) -> None:
    assert [each.path for each in fields(schemas()[plural]) if not keeps(each)] == []


@pytest.mark.parametrize(
    ("keeps", "name", "schema"),
    [
        (enumeration, "mode", {"enum": ["verify-full"]}),
        (bounded, "size", {"type": "integer", "minimum": 0}),
        (bounded, "labels", {"type": "object", "additionalProperties": {"type": "string"}}),
        (merged, "hosts", {"type": "array", "maxItems": 1}),
        (merged, "hosts", {"type": "array", "x-kubernetes-list-type": "map"}),
        (described, "port", {"description": "no sentence"}),
        (named, "timeoutSeconds", {}),
        (named, "managementUrl_", {}),
        (named, "disableTls", {}),
        (address, "endpoint", {"pattern": "^https?://"}),
        (address, "url", {"pattern": "^[a-z]+$"}),
        (one_tls, "tls", {"type": "string"}),
        (one_tls, "tls", {"type": "object", "properties": {"secretRef": {}}}),
        (duration, "olderThan", {"default": "400d", "pattern": "^[0-9]+d$"}),
        (quantity, "memory", {"pattern": "^[0-9]+Mi$"}),
        (reference, "keyRef", {"type": "string"}),
        (shaped, "anything", {"x-kubernetes-preserve-unknown-fields": True}),
    ],
)
def test_a_field_that_breaks_a_convention_is_found(
    keeps: Callable[[Field], bool], name: str, schema: Schema
) -> None:
    assert not keeps(Field(f"spec.{name}", name, schema, {}))


@pytest.mark.parametrize("plural", PLURALS)
def test_rules_escape_fields_that_are_named_as_words_of_cel(plural: str) -> None:
    whole = Field("", "", schemas()[plural], {})
    rules = " ".join(each.rules for each in (whole, *fields(whole.schema)))

    assert re.findall(rf"\.(?:{'|'.join(WORDS)})\b", rules) == []


@pytest.mark.parametrize("plural", PLURALS)
def test_references_to_authorities_and_certificates_have_one_form(plural: str) -> None:
    forms: dict[str, set[str]] = {}
    for each in fields(schemas()[plural]):
        if each.name in ("caRef", "certRef", "clientCertRef"):
            shape = sorted(each.schema["properties"])
            forms.setdefault(each.name, set()).add(str(shape))

    assert all(len(found) == 1 for found in forms.values()), forms


@pytest.mark.parametrize("plural", PLURALS)
def test_a_field_that_cannot_be_changed_is_kept_by_a_rule(plural: str) -> None:
    schema = schemas()[plural]
    rules = str(schema["x-kubernetes-validations"])
    found = [
        each
        for each in fields(schema["properties"]["spec"], "spec")
        if "annot be changed" in each.schema.get("description", "")
    ]

    unkept = [
        each.path
        for each in found
        if f"self.{each.path} == oldSelf" not in rules
        and f"self.{each.path.rpartition('.')[0]} == oldSelf" not in rules
        and "oldSelf" not in each.rules
    ]

    assert found
    assert unkept == []


@pytest.mark.parametrize(
    "crd", manifests(ROOT / "crds"), ids=lambda each: each["spec"]["names"]["kind"]
)
def test_a_list_of_resources_says_what_is_wrong_and_can_be_selected(crd: dict[str, Any]) -> None:
    (version,) = crd["spec"]["versions"]
    columns = version["additionalPrinterColumns"]
    usual = [each["name"] for each in columns if not each.get("priority")]

    assert usual[0] == "Ready"
    assert usual[-2:] == ["Reason", "Age"]
    assert len(usual) <= 7
    assert all(each["description"].endswith(".") for each in columns)
    assert version["selectableFields"]


@pytest.mark.parametrize("plural", PLURALS)
def test_every_column_shows_a_field_that_there_is(plural: str) -> None:
    known = {each.path for each in fields(schemas()[plural])}
    (crd,) = (
        each for each in manifests(ROOT / "crds") if each["spec"]["names"]["plural"] == plural
    )
    (version,) = crd["spec"]["versions"]
    shown = [each["jsonPath"] for each in version["additionalPrinterColumns"]]
    shown += [each["jsonPath"] for each in version["selectableFields"]]
    paths = {re.sub(r"\[.*?\]\.", "[].", each).removeprefix(".") for each in shown}

    assert paths - known == {"metadata.creationTimestamp"} or paths <= known


def test_the_reference_is_that_of_the_crds() -> None:
    written = (ROOT / api_reference.PAGE).read_text()

    assert written == api_reference.page(), "run `make api-reference`"
