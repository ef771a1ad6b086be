"""`kubectl mailqueue plan`: the decision before an apply, with exit codes for CI.

A script stands in for `kubectl` and answers from a folder of resources.
"""

from __future__ import annotations

import json
import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from postroad.bootstrap import distributed
from postroad.bootstrap.distributed import open_history
from postroad.cli import kubectl_mailqueue
from postroad.domain.configuration.documents import to_document
from postroad.domain.configuration.history import decide
from postroad.domain.configuration.rules import ViewConfiguration
from support import fake_kubectl
from support.fake_kubectl import folder

__all__ = ["folder"]


@pytest.fixture(autouse=True)
def without_cassandra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POSTROAD_CASSANDRA_CONTACT_POINTS", raising=False)


def put(folder: Path, name: str) -> None:
    """A resource whose status accepted an hour and three buckets."""
    event = decide((), ViewConfiguration(bucket_count=3), at=datetime.now(UTC)).event
    assert event is not None
    fake_kubectl.put(folder, name, [to_document(event)])


def manifest(name: str, window: str, buckets: int) -> str:
    return f"""
apiVersion: postroad.dev/v1beta1
kind: MailQueue
metadata: {{name: {name}}}
spec:
  clusterRef: {{name: main}}
  view: {{sliceWindow: {window}, bucketCount: {buckets}}}
---
apiVersion: v1
kind: ConfigMap
metadata: {{name: other}}
---"""


def plan(*manifests: str) -> Result:
    arguments = ["plan", "-f", "-", "--json"]
    return CliRunner().invoke(kubectl_mailqueue, arguments, input="\n".join(manifests))


def lines(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_a_plan_of_allowed_changes_exits_with_0(folder: Path) -> None:
    put(folder, "outgoing")

    result = plan(manifest("outgoing", "30m", 4), manifest("incoming", "7m", 1))

    assert result.exit_code == 0, result.output
    assert [(each["queue"], each["outcome"]) for each in lines(result)] == [
        ("mail.outgoing", "changed"),
        ("mail.incoming", "created"),
    ]
    assert lines(result)[0]["changes"] == [
        {"field": "sliceWindow", "from": "1h", "to": "30m"},
        {"field": "bucketCount", "from": "3", "to": "4"},
    ]


def test_one_refused_change_exits_with_1_after_all_are_listed(folder: Path) -> None:
    put(folder, "outgoing")

    result = plan(manifest("outgoing", "25m", 3), manifest("incoming", "7m", 1))

    assert result.exit_code == 1
    refused, created = lines(result)
    assert refused["reason"] == "SliceWindowDoesNotDivide"
    assert refused["allowed"] == {"sliceWindow": ["20m", "30m"]}
    assert created["outcome"] == "created"


def test_a_cluster_that_is_away_exits_with_75(folder: Path) -> None:
    (folder / "away").touch()

    result = plan(manifest("outgoing", "25m", 3))

    assert result.exit_code == 75
    assert "connection refused" in result.output


@pytest.mark.parametrize("text", ["kind: ConfigMap", "", "{"], ids=["other", "empty", "no yaml"])
def test_manifests_without_a_mail_queue_are_an_error(folder: Path, text: str) -> None:
    assert plan(text).exit_code in (1, 2)


@pytest.mark.parametrize("metadata", ["x", "{}", "{name: [1]}", "{name: a, namespace: 7}"])
def test_a_mail_queue_without_a_name_is_an_error(folder: Path, metadata: str) -> None:
    text = f"apiVersion: postroad.dev/v1beta1\nkind: MailQueue\nmetadata: {metadata}\n"
    result = plan(text, "---", "{kind: List, items: [1, {metadata: x}]}", "---", "{kind: List}")
    assert "a MailQueue in the manifests has no name" in result.output


def test_a_mail_queue_in_a_list_is_planned_too(folder: Path) -> None:
    inner = json.dumps(
        {
            "apiVersion": "v1",
            "kind": "List",
            "items": [
                {
                    "apiVersion": "postroad.dev/v1beta1",
                    "kind": "MailQueue",
                    "metadata": {"name": "q", "namespace": "elsewhere"},
                    "spec": {},
                }
            ],
        }
    )

    assert lines(plan(inner))[0]["queue"] == "elsewhere.q"


def test_without_kubectl_nothing_can_be_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    result = plan(manifest("outgoing", "30m", 3))

    assert result.exit_code == 1
    assert "kubectl is not in PATH (install it (" in result.output


def put_with_one_bucket(folder: Path, metadata: dict[str, Any] | None = None) -> None:
    """A resource that was made when one bucket was the default: the API server stored it."""
    event = decide((), ViewConfiguration(bucket_count=1), at=datetime.now(UTC)).event
    assert event is not None
    view = {"sliceWindow": "1h", "bucketCount": 1, "updateBrowseStartPace": 1000}
    history = [to_document(event)]
    fake_kubectl.put(folder, "outgoing", history, spec={"view": view}, metadata=metadata)


def applied_before(view: dict[str, Any] | None) -> dict[str, Any]:
    """The metadata that `kubectl apply` leaves."""
    last = json.dumps({"kind": "MailQueue", "spec": {} if view is None else {"view": view}})
    return {"annotations": {"kubectl.kubernetes.io/last-applied-configuration": last}}


def owned_by_an_applier(*fields: str) -> dict[str, Any]:
    """The metadata that a server-side apply leaves."""
    view: dict[str, Any] = {".": {}} | {f"f:{field}": {} for field in fields}
    owned = {"f:spec": {"f:view": view}}
    return {"managedFields": [{"operation": "Apply", "manager": "flux", "fieldsV1": owned}]}


def outgoing(spec: str) -> str:
    return f"""
apiVersion: postroad.dev/v1beta1
kind: MailQueue
metadata: {{name: outgoing}}
spec: {spec}
---"""


@pytest.mark.parametrize(
    "metadata",
    [
        pytest.param(None, id="created"),
        pytest.param(applied_before(None), id="applied without a view"),
        pytest.param(applied_before({"sliceWindow": "1h"}), id="applied without the field"),
        pytest.param(owned_by_an_applier("sliceWindow"), id="applied on the server"),
        pytest.param({"annotations": None, "managedFields": None}, id="nulls"),
    ],
)
@pytest.mark.parametrize("view", ["{sliceWindow: 1h}", "{sliceWindow: 60m}"])
def test_a_field_that_was_never_applied_keeps_its_stored_value(
    folder: Path, metadata: dict[str, Any] | None, view: str
) -> None:
    put_with_one_bucket(folder, metadata)

    result = plan(outgoing(f"{{clusterRef: {{name: main}}, view: {view}}}"))

    assert [each["outcome"] for each in lines(result)] == ["unchanged"]


def test_a_manifest_without_a_view_changes_nothing_that_was_never_applied(folder: Path) -> None:
    put_with_one_bucket(folder, applied_before(None))

    (planned,) = lines(plan(outgoing("{clusterRef: {name: main}}")))

    assert planned["outcome"] == "unchanged"


@pytest.mark.parametrize(
    ("metadata", "spec"),
    [
        pytest.param(
            applied_before({"bucketCount": 1}), "{view: {sliceWindow: 1h}}", id="left out now"
        ),
        pytest.param(applied_before({"bucketCount": 1}), "{}", id="the view left out now"),
        pytest.param(applied_before(None), "{view: {bucketCount: null}}", id="null now"),
        pytest.param(
            owned_by_an_applier("bucketCount"), "{view: {sliceWindow: 1h}}", id="owner lets go"
        ),
    ],
)
def test_a_field_that_an_apply_removes_gets_its_default(
    folder: Path, metadata: dict[str, Any], spec: str
) -> None:
    put_with_one_bucket(folder, metadata)

    (planned,) = lines(plan(outgoing(spec)))

    assert planned["changes"] == [{"field": "bucketCount", "from": "1", "to": "3"}]


def test_a_null_that_was_applied_before_removes_nothing_again(folder: Path) -> None:
    put_with_one_bucket(folder, applied_before({"bucketCount": None}))

    (planned,) = lines(plan(outgoing("{view: {bucketCount: null}}")))

    assert planned["outcome"] == "unchanged"


def test_a_mail_queue_that_is_new_gets_the_defaults(folder: Path) -> None:
    (planned,) = lines(plan(outgoing("{view: {sliceWindow: 30m}}")))

    assert planned["outcome"] == "created"


@pytest.mark.parametrize("is_away", [False, True])
def test_a_plan_by_the_view_goes_on_without_the_cluster(
    folder: Path, monkeypatch: pytest.MonkeyPatch, is_away: bool
) -> None:
    put_with_one_bucket(folder)
    if is_away:
        (folder / "away").touch()
    name = secrets.token_hex(4)
    monkeypatch.setattr(distributed, "open_history", lambda _: open_history(f"memory://{name}"))
    manifests = outgoing("{view: {sliceWindow: 1h}}")
    manifests = manifests.replace("{name: outgoing}", "{name: outgoing, namespace: mail}")

    result = CliRunner().invoke(
        kubectl_mailqueue, ["plan", "--from-view", "-f", "-", "--json"], input=manifests
    )

    assert result.exit_code == 0, result.output
    assert lines(result)[0]["outcome"] == "created"
    assert ("not read from the cluster" in result.stderr) == is_away
