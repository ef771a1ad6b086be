"""Servers as containers: what Docker is asked to do. A script stands for the engine."""

import os
from pathlib import Path

import pytest

from stack import docker, kind
from stack.docker import DockerCassandra, DockerRabbitMQ, DockerVersityGW
from stack.errors import MissingRequirement, StackError
from stack.kind import KindCluster
from stack.records import Record

RECORD = Record(
    "docker",
    {"amqp": 20001, "management": 20002, "cql": 20003, "s3": 20004},
    {"password": "secret"},
)

DOCKER = """\
#!/bin/sh
echo "$*" >> "$(dirname "$0")/asked"
case "$*" in
  *inspect*) cat "$(dirname "$0")/status" ;;
  *broken*) echo "no such thing" >&2; exit 1 ;;
esac
"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in PATH with a `docker` and a `kind` that note what they are asked."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("docker", "kind"):
        (folder / name).write_text(DOCKER)
        (folder / name).chmod(0o755)
    (folder / "status").write_text("")
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


def asked(programs: Path) -> str:
    return (programs / "asked").read_text()


@pytest.mark.parametrize(
    ("server", "published"),
    [
        (DockerRabbitMQ, ["127.0.0.1:20001:5672", "127.0.0.1:20002:15672"]),
        (DockerCassandra, ["127.0.0.1:20003:9042"]),
        (DockerVersityGW, ["127.0.0.1:20004:7070"]),
    ],
)
def test_a_container_listens_on_loopback_only(
    programs: Path, tmp_path: Path, server: type[docker.Container], published: list[str]
) -> None:
    server(tmp_path / "own").launch(RECORD)

    made = next(line for line in asked(programs).splitlines() if line.startswith("run "))
    assert [word for word in made.split() if word.startswith("127.0.0.1:")] == published
    assert "--publish 0.0.0.0" not in made


def test_a_container_that_exists_is_started_again(programs: Path, tmp_path: Path) -> None:
    (programs / "status").write_text("exited")
    server = DockerRabbitMQ(tmp_path / "own")

    server.launch(RECORD)

    assert asked(programs).splitlines()[-1] == f"start {server.container}"


def test_ending_kills_what_runs_and_keeps_it(programs: Path, tmp_path: Path) -> None:
    (programs / "status").write_text("running")
    server = DockerRabbitMQ(tmp_path / "own")

    server.kill()

    assert asked(programs).splitlines()[-1] == f"kill {server.container}"


def test_a_cluster_is_made_by_kind_with_a_kubeconfig_of_its_own(
    programs: Path, tmp_path: Path
) -> None:
    cluster = KindCluster(tmp_path / "own")

    cluster.launch(RECORD)

    assert f"--kubeconfig {tmp_path}/own/kubeconfig" in asked(programs)
    assert cluster.container.endswith("-control-plane")


@pytest.mark.parametrize(
    ("named", "taken"), [("", "kindest/node:v1."), ("here.example/node:7", "here.example/node:7")]
)
def test_the_node_has_the_image_that_is_named_or_a_pinned_one(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str, taken: str
) -> None:
    monkeypatch.setenv(kind.NODE_IMAGE_VARIABLE, named)

    KindCluster(tmp_path / "own").launch(RECORD)

    assert f"--image {taken}" in asked(programs)


def test_where_pods_do_not_reach_the_machine_kind_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.platform", "darwin")

    with pytest.raises(MissingRequirement, match="on Linux only"):
        KindCluster(tmp_path / "own").check_machine()


def test_a_container_needs_no_package_of_the_native_server(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stack.packages.missing", lambda names: list(names))
    monkeypatch.setattr("stack.packages.may_install", lambda: False)

    DockerRabbitMQ(tmp_path / "own").check_machine()


def test_what_docker_says_is_passed_on(programs: Path) -> None:
    with pytest.raises(StackError, match="no such thing"):
        docker.run("docker", "broken")
