"""`kubectl mailqueue plan`: the decision before an apply, with exit codes for CI.

`kubectl` is played by a script that answers like it, from a folder of resources.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from postroad.cli import kubectl_mailqueue
from postroad.domain.configuration import decide
from postroad.domain.configuration_rules import ViewConfiguration
from postroad.domain.history import to_document
from support import played_kubectl
from support.played_kubectl import folder

__all__ = ["folder"]


@pytest.fixture(autouse=True)
def without_cassandra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POSTROAD_CASSANDRA_CONTACT_POINTS", raising=False)


def put(folder: Path, name: str) -> None:
    """A resource whose status accepted an hour and three buckets."""
    event = decide((), ViewConfiguration(bucket_count=3), at=datetime.now(UTC)).event
    assert event is not None
    played_kubectl.put(folder, name, [to_document(event)])


def manifest(name: str, window: str, buckets: int) -> str:
    return f"""
apiVersion: postroad.dev/v1alpha1
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


def test_one_refused_change_exits_with_1_after_all_were_said(folder: Path) -> None:
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


def test_a_mail_queue_in_a_list_is_planned_too(folder: Path) -> None:
    inner = json.dumps(
        {
            "apiVersion": "v1",
            "kind": "List",
            "items": [
                {
                    "apiVersion": "postroad.dev/v1alpha1",
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

    assert result.exit_code == 75
    assert "kubectl cannot be run" in result.output
