"""The contract of the CRDs, over the API server in memory with their schemas and rules.

`tests/controller` has it over a real one.
"""

from __future__ import annotations

from typing import Any

import pytest

from contract.admission_contract import AdmissionContract
from postroad.errors import KubernetesRefused
from support.admission import admitted, program, schemas, violations
from support.memory.clock import ManualClock
from support.memory.kubernetes.client import MemoryKubernetes
from support.memory.kubernetes.world import KubernetesWorld, ObjectPlace
from support.resources import mail_queue


class TestMemoryAdmission(AdmissionContract):
    """Over memory."""

    @pytest.fixture
    def api(self) -> MemoryKubernetes:
        world = KubernetesWorld(ManualClock())
        world.admission = admitted
        return MemoryKubernetes(world)

    @pytest.fixture
    def namespace(self) -> str:
        return "mail"


@pytest.mark.parametrize(
    ("schema", "value", "error"),
    [
        ({"type": "string", "maxLength": 2}, "abc", "Too long"),
        ({"type": "string", "minLength": 1}, "", "Too short"),
        ({"type": "string", "pattern": "^[a-z]+$"}, "A", "should match"),
        ({"type": "string", "enum": ["a"]}, "b", "Unsupported value"),
        ({"type": "string", "format": "date-time"}, "yesterday", "date-time"),
        ({"type": "integer"}, True, "must be of type integer"),
        ({"type": "integer"}, 2**63, "no int64"),
        ({"type": "integer", "minimum": 0}, -1, "Invalid value"),
        ({"type": "array", "maxItems": 1}, [1, 2], "Too long"),
        ({"type": "object", "required": ["a"]}, {}, "a: Required value"),
        ({"type": "object", "maxProperties": 0}, {"a": 1}, "Too long"),
        ({"type": "array", "x-kubernetes-list-type": "set"}, ["a", "a"], "Duplicate value"),
    ],
    ids=str,
)
def test_value_out_of_the_bounds_of_its_schema_is_named(
    schema: dict[str, Any], value: Any, error: str
) -> None:
    assert error in "".join(violations(schema, value, None))


def test_all_rules_of_the_crds_can_be_evaluated() -> None:
    rules = [each for schema in schemas().values() for each in rules_in(schema)]

    assert len(rules) > 50
    for each in rules:
        program(each["rule"])
        program(each.get("messageExpression", "''"))


def test_rule_that_cannot_be_evaluated_refuses_the_value() -> None:
    schema = {"x-kubernetes-validations": [{"rule": "self.missing == 1"}]}

    assert "cannot be evaluated" in "".join(violations(schema, {}, None))


def test_what_was_stored_before_a_bound_does_not_stop_other_changes() -> None:
    before = mail_queue("mail", "outgoing")
    before["spec"]["view"] = {"bucketCount": 5000}
    place = ObjectPlace("mailqueues", "mail", "outgoing")

    assert admitted(place, before, {**before, "spec": before["spec"] | {"paused": True}})
    with pytest.raises(KubernetesRefused, match="bucketCount"):
        admitted(place, None, before)


@pytest.mark.parametrize(
    ("plural", "change"),
    [
        ("configmaps", {"data": {"a": "x" * 1024 * 1024}}),
        ("configmaps", {"metadata": {"name": "c", "labels": {"a": "with space"}}}),
        ("configmaps", {"metadata": {"name": "c", "annotations": {"a": "x" * 256 * 1024}}}),
        ("configmaps", {"metadata": {"name": "Capital"}}),
        ("events", {"note": "\u00e9" * 600, "reason": "Ready", "action": "Reconcile"}),
    ],
    ids=lambda value: str(value)[:60],
)
def test_built_in_kinds_have_their_bounds(plural: str, change: dict[str, Any]) -> None:
    with pytest.raises(KubernetesRefused, match="is invalid"):
        admitted(ObjectPlace(plural, "mail", "c"), None, {"metadata": {"name": "c"}} | change)


def rules_in(schema: Any) -> list[dict[str, str]]:
    """Return the rules of a schema and of what is in it."""
    if isinstance(schema, list):
        return [each for inner in schema for each in rules_in(inner)]
    if not isinstance(schema, dict):
        return []
    own = schema.get("x-kubernetes-validations", [])
    return [*own, *(each for inner in schema.values() for each in rules_in(inner))]
