"""The demo before a cluster of the user's, over a real API server: it asks, and changes nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stack
from demo.current_cluster import CurrentCluster
from postroad.adapters.kubernetes.api_server import ApiServer
from stack.control_plane import ControlPlane
from stack.errors import StackError
from support.kubectl import Kubectl, Manifest, manifests
from support.namespaces import new_namespace
from support.repository import ROOT

pytestmark = pytest.mark.needs("kubernetes")

RESTRICTED = "pod-security.kubernetes.io/enforce=restricted"
"""The strictest standard of Kubernetes for pods."""


@pytest.fixture(scope="module")
def program() -> Path:
    """The kubectl of the API server alone."""
    server = stack.Stack(environment={}).server("apiserver")
    assert isinstance(server, ControlPlane)
    return Path(server.kubectl.command()[0])


@pytest.fixture
def kubectl(program: Path, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch) -> Kubectl:
    """The administrator's kubectl; the demo finds program and configuration as a user's would."""
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    return Kubectl([str(program)])


@pytest.fixture(scope="module")
def marked(program: Path, kubeconfig: Path) -> Iterator[None]:
    """A cluster with what an earlier demo left: its CRDs, and the operator's namespace."""
    kubectl = Kubectl([str(program), "--kubeconfig", str(kubeconfig)])
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "postroad-system"}}
    kubectl.apply(namespace)
    kubectl("label", "namespace", "postroad-system", "postroad.dev/demo=yes", "--overwrite")
    yield
    kubectl("delete", "namespace", "postroad-system", "--timeout=60s", timeout=70)


def test_a_cluster_with_another_operator_is_left_alone(kubectl: Kubectl) -> None:
    with pytest.raises(StackError, match="the CRDs of postroad are there"):
        CurrentCluster("to-try", "registry.example.org/postroad:1", "")


def test_before_the_user_agrees_nothing_changes(
    kubectl: Kubectl, marked: None, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(StackError, match=r"nothing was changed\. To agree: .* CONFIRM="):
        CurrentCluster("to-try", "registry.example.org/postroad:1", "")

    assert "from the image registry.example.org/postroad:1" in capsys.readouterr().out
    assert kubectl("get", "namespace", "to-try", "--ignore-not-found") == ""
    assert kubectl("get", "deploy,clusterrole", "-n", "postroad-system", "-o", "name").count(
        "postroad"
    ) == 0  # fmt: skip


def test_the_confirmation_of_another_context_is_none(kubectl: Kubectl, marked: None) -> None:
    with pytest.raises(StackError, match="nothing was changed"):
        CurrentCluster("to-try", "registry.example.org/postroad:1", "production")


@pytest.mark.parametrize("answer", ["y", EOFError()])
def test_an_answer_that_is_not_yes_changes_nothing(
    kubectl: Kubectl, marked: None, monkeypatch: pytest.MonkeyPatch, answer: str | EOFError
) -> None:
    def typed(_: str) -> str:
        if isinstance(answer, EOFError):
            raise answer
        return answer

    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", typed)

    with pytest.raises(StackError, match=r"nothing was changed$"):
        CurrentCluster("to-try", "registry.example.org/postroad:1", "")


def test_who_confirmed_the_context_goes_on(kubectl: Kubectl, marked: None) -> None:
    context = kubectl("config", "current-context").strip()

    target = CurrentCluster("to-try", "registry.example.org/postroad:1", context)

    assert target.next_commands()[-2].split() == [
        *("kubectl", "--context", context, "delete", "namespace", "to-try", "postroad-system")
    ]


def test_a_user_without_rights_reads_which_ones_are_lacking(
    kubectl: Kubectl, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubectl("create", "serviceaccount", "user", "-n", namespace)
    token = kubectl("create", "token", "user", "-n", namespace).strip()
    config: dict[str, Any] = json.loads(kubectl("config", "view", "--raw", "-o", "json"))
    for user in config["users"]:
        user["user"] = {"token": token}
    (tmp_path / "config").write_text(json.dumps(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    with pytest.raises(StackError) as refused:
        CurrentCluster("to-try", "registry.example.org/postroad:1", "")

    lines = str(refused.value).splitlines()
    assert lines[0].startswith("you lack rights in this cluster")
    assert "  create namespaces" in lines
    assert "  create statefulsets.apps in to-try" in lines


async def test_the_servers_for_trying_run_where_the_restricted_standard_is_enforced(
    kubectl: Kubectl, api: ApiServer, marked: None
) -> None:
    target = CurrentCluster("to-try", "postroad:1", kubectl("config", "current-context").strip())
    objects = [*manifests(ROOT / "manifests" / "servers"), *target._sink_manifests()]
    async with new_namespace(api) as place:
        kubectl("label", "namespace", place, RESTRICTED)
        for each in objects:
            each["metadata"]["namespace"] = place
        kubectl.apply(*objects, dry_run=True)
        pods = [pod(each) for each in objects if "template" in each.get("spec", {})]
        assert len(pods) == 4
        kubectl.apply(*pods, dry_run=True)


def pod(workload: Manifest) -> Manifest:
    """Return a pod of a workload, which admission judges as it does the workload's own."""
    template = workload["spec"]["template"]
    metadata = {**template["metadata"], **workload["metadata"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
