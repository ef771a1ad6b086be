"""The CRDs and the models of `controller.spec` say the same, field by field."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from postroad.controller.kubernetes import api
from postroad.controller.spec.cluster import QueueClusterSpec
from postroad.controller.spec.mailqueue import MailQueueSpec
from postroad.controller.spec.parts import MAX_LEVELS
from postroad.controller.spec.task import MailQueueTaskSpec
from postroad.controller.status.conditions import invalid_fields
from support import spec_cases
from support.kubectl import documents_in
from support.structural_schema import structural_schema

ROOT = Path(__file__).parents[3]
KINDS: dict[str, type[BaseModel]] = {
    "mailqueues": MailQueueSpec,
    "mailqueuetasks": MailQueueTaskSpec,
    "queueclusters": QueueClusterSpec,
}
CHECKED_BY_THE_SERVER_ONLY = (
    "x-kubernetes-validations",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
)


def schema_of(plural: str) -> dict[str, Any]:
    (crd,) = documents_in((ROOT / "crds" / f"{plural}.yaml").read_text())
    (version,) = crd["spec"]["versions"]
    found: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    return found


POD = schema_of("mailqueues")["properties"]["spec"]["properties"]["workers"]["properties"][
    "template"
]["properties"]
"""The partial PodTemplateSpec, which the model does not repeat: the API server checks it."""


PLACEMENT = {"affinity", "tolerations", "topologySpreadConstraints"}
"""Fields that tell `pod`: the model passes on what Kubernetes defines in it."""


def shallow(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a field without what it holds."""
    nested = ("properties", "items", "additionalProperties", *CHECKED_BY_THE_SERVER_ONLY)
    kept = {key: value for key, value in schema.items() if key not in nested}
    return {**kept, "description": " ".join(schema["description"].split())}


def comparable(schema: Any) -> Any:
    if isinstance(schema, dict):
        if schema.get("properties", {}).keys() > PLACEMENT:
            fields = {name: shallow(each) for name, each in schema["properties"].items()}
            return {**shallow(schema), "properties": fields}
        if "x-kubernetes-preserve-unknown-fields" in schema or schema.get("properties") == POD:
            return {"type": "object", "description": " ".join(schema["description"].split())}
        return {
            key: " ".join(value.split()) if key == "description" else comparable(value)
            for key, value in schema.items()
            if key not in CHECKED_BY_THE_SERVER_ONLY
        }
    return [comparable(each) for each in schema] if isinstance(schema, list) else schema


def fields(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, each in schema.get("properties", {}).items():
        yield from fields(each, f"{path}.{name}")
    for nested in ("items", "additionalProperties"):
        if isinstance(schema.get(nested), dict):
            yield from fields(schema[nested], f"{path}[]")


@pytest.mark.parametrize("plural", KINDS)
def test_the_crd_has_the_fields_defaults_bounds_and_descriptions_of_the_model(plural: str) -> None:
    spec = comparable(schema_of(plural)["properties"]["spec"])

    expected = comparable(structural_schema(KINDS[plural], spec["description"]))

    assert spec == expected


@pytest.mark.parametrize("plural", KINDS)
def test_every_field_is_described_in_a_sentence(plural: str) -> None:
    undescribed = [
        path
        for path, each in fields(schema_of(plural))
        if path not in (".metadata",)
        and not path.endswith("[]")
        and not each.get("description", "").endswith(".")
    ]

    assert undescribed == []


@pytest.mark.parametrize("plural", KINDS)
def test_every_string_and_list_is_bounded_so_that_a_resource_stays_small(plural: str) -> None:
    bounds = {"string": ("maxLength", "enum", "format"), "array": ("maxItems",)}
    unbounded = [
        path
        for path, each in fields(schema_of(plural))
        if each.get("type") in bounds
        and path not in (".apiVersion", ".kind")
        and not any(bound in each for bound in bounds[each["type"]])
    ]

    assert unbounded == []


@pytest.mark.parametrize("plural", KINDS)
def test_the_group_and_version_are_those_of_the_code(plural: str) -> None:
    (crd,) = documents_in((ROOT / "crds" / f"{plural}.yaml").read_text())

    assert crd["spec"]["group"] == api.GROUP
    assert [each["name"] for each in crd["spec"]["versions"]] == [api.VERSION]
    assert crd["spec"]["names"]["categories"] == ["postroad"]


@pytest.mark.parametrize("plural", KINDS)
def test_a_new_resource_shows_that_no_reconcile_has_ended(plural: str) -> None:
    status = schema_of(plural)["properties"]["status"]

    assert status["default"] == {"observedGeneration": -1}


def test_a_short_mail_queue_gets_the_documented_defaults() -> None:
    spec = MailQueueSpec.model_validate(
        {"clusterRef": {"name": "main"}, "workers": {"handler": {"relay": {"host": "sink"}}}}
    )

    assert spec.view.slice_window == timedelta(hours=1)
    assert spec.retry.lanes[-1] == timedelta(hours=4)
    assert spec.workers is not None
    assert (spec.workers.replicas, spec.workers.concurrency) == (2, 200)
    assert spec.workers.handler.relay
    assert spec.workers.handler.relay.tls.mode == "opportunistic"
    assert spec.intake is None
    assert spec.deletion_policy == "Retain"


@pytest.mark.parametrize(
    ("delivery", "handler", "problem"),
    [
        ({"retries": [{"maxAge": "2h"}]}, {"mx": {}}, "maxAge is longer than that of the queue"),
        ({"retries": [{"lanes": ["30m", "1h"], "maxAge": "45m"}]}, {"mx": {}}, "a lane cannot"),
        (
            {"suspensions": [{"reason": "Rate", "duration": "1h"}]},
            {"relay": {"host": "smtp.example"}},
            "goes with the handler mx",
        ),
    ],
)
def test_decisions_that_do_not_fit_the_queue_are_refused(
    delivery: dict[str, Any], handler: dict[str, Any], problem: str
) -> None:
    spec = {
        "clusterRef": {"name": "main"},
        "retry": {"lanes": ["5m"], "maxAge": "1h"},
        "workers": {"handler": handler},
    }
    assert MailQueueSpec.model_validate(spec)
    with pytest.raises(ValidationError, match=problem):
        MailQueueSpec.model_validate(spec | {"delivery": delivery})


def test_a_field_of_a_newer_crd_does_not_stop_this_program() -> None:
    spec = MailQueueSpec.model_validate({"clusterRef": {"name": "main"}, "later": {"field": 1}})

    assert spec.cluster_ref.name == "main"


@pytest.mark.parametrize("case", spec_cases.MAIL_QUEUES, ids=str)
def test_the_model_of_a_queue_refuses_what_the_crd_refuses(case: spec_cases.Case) -> None:
    attempt(MailQueueSpec, {"clusterRef": {"name": "main"}} | case.spec, case)


@pytest.mark.parametrize("case", spec_cases.TASKS, ids=str)
def test_the_model_of_a_task_refuses_what_the_crd_refuses(case: spec_cases.Case) -> None:
    attempt(MailQueueTaskSpec, {"queueRef": {"name": "q"}} | case.spec, case)


@pytest.mark.parametrize("case", spec_cases.QUEUE_CLUSTERS, ids=str)
def test_the_model_of_a_cluster_refuses_what_the_crd_refuses(case: spec_cases.Case) -> None:
    servers = {"rabbitmq": spec_cases.RABBITMQ, "cassandra": spec_cases.CASSANDRA, "s3": {}}
    attempt(QueueClusterSpec, servers | case.spec, case)


def attempt(model: type[BaseModel], spec: dict[str, Any], case: spec_cases.Case) -> None:
    if case.said is None:
        model.model_validate(spec)
        return
    with pytest.raises(ValidationError) as refusal:
        model.model_validate(spec)
    assert case.said in invalid_fields(refusal.value)


@pytest.mark.parametrize("levels", [MAX_LEVELS, MAX_LEVELS + 1, 9_000])
def test_a_template_that_nests_too_deeply_is_refused_by_its_field(levels: int) -> None:
    template: dict[str, Any] = {}
    for _ in range(levels - 1):
        template = {"a": template}
    spec = {
        "clusterRef": {"name": "main"},
        "workers": {"handler": {"relay": {"host": "sink"}}, "template": template},
    }
    if levels == MAX_LEVELS:
        assert MailQueueSpec.model_validate(spec)
        return
    with pytest.raises(ValidationError) as refused:
        MailQueueSpec.model_validate(spec)
    assert invalid_fields(refused.value) == (
        "spec.workers.template: Value error, must not nest deeper than 64 levels"
    )
