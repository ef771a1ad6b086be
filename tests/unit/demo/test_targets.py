"""Where `make demo` runs: in the local stack whatever the environment names, or in a cluster that
the user names."""

from __future__ import annotations

from pathlib import Path

import pytest

from demo.__main__ import main
from demo.local_cluster import unused
from stack import exports
from stack.kubernetes import Kubernetes
from stack.local import Stack


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["demo", *arguments])
    return main()


def test_without_kubeconfig_in_it_an_environment_names_no_other_cluster() -> None:
    assert unused({"PATH": "/usr/bin"}) == ""


def test_a_kubeconfig_is_not_used_and_the_demo_says_how_it_would_be() -> None:
    line = unused({"KUBECONFIG": "/home/user/.kube/config"})

    assert line.startswith("not used: KUBECONFIG.")
    assert "make demo CLUSTER=current" in line


def test_variables_of_other_servers_are_not_used_either() -> None:
    line = unused({"POSTROAD_RABBITMQ_URI": "amqp://h", "POSTROAD_RABBITMQ_QUEUE": "q"})

    assert line == "not used: POSTROAD_RABBITMQ_URI. The demo starts servers of its own"


def test_the_local_stack_is_found_in_spite_of_a_kubeconfig(tmp_path: Path) -> None:
    environment = {"KUBECONFIG": "/elsewhere", "POSTROAD_STACK_PROVIDER": "native", "HOME": "/root"}

    own = exports.without_given(environment)

    assert own == {"POSTROAD_STACK_PROVIDER": "native", "HOME": "/root"}
    assert isinstance(Stack(tmp_path, environment=own).kubernetes, Kubernetes)


def test_a_current_cluster_needs_an_image(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--cluster", "current") == 1
    assert "IMAGE=registry.example.org/postroad:TAG" in capsys.readouterr().err


def test_a_current_cluster_needs_kubectl(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    assert run(monkeypatch, "--cluster", "current", "--image", "postroad:1") == 1
    assert "there is no kubectl in PATH" in capsys.readouterr().err


def test_a_folder_without_mails_is_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(monkeypatch, "--mail", str(tmp_path)) == 1
    assert "holds no .eml files" in capsys.readouterr().err
