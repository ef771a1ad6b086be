"""What a person sees first: the targets of the Makefile on a machine that lacks something."""

import os
import subprocess
from pathlib import Path

import pytest

from bench.__main__ import main as bench
from postroad.bootstrap import open_queue
from postroad.errors import NotInstalled
from stack.errors import MissingRequirement
from stack.local import Stack
from stack.rabbitmq import RabbitMQ
from stack.server import Server
from support.repository import ROOT


def checked(
    folder: Path, system: str, release: str, *goals: str
) -> subprocess.CompletedProcess[str]:
    """Run check-machine.sh where `uname` prints the name of another system."""
    script = f'#!/bin/sh\ncase $1 in -s) echo "{system}" ;; -r) echo "{release}" ;; esac\n'
    (folder / "uname").write_text(script)
    (folder / "uname").chmod(0o755)
    return subprocess.run(
        ["sh", ROOT / "tests/check-machine.sh", *goals],
        env={"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_on_linux_nothing_is_printed(tmp_path: Path) -> None:
    done = checked(tmp_path, "Linux", "6.1.0-9-amd64", "demo")

    assert (done.returncode, done.stderr) == (0, "")


def test_under_wsl_a_person_reads_that_it_was_not_tried(tmp_path: Path) -> None:
    done = checked(tmp_path, "Linux", "5.15.90.1-microsoft-standard-WSL2", "demo")

    assert done.returncode == 0
    assert "WSL 2" in done.stderr


@pytest.mark.parametrize("goal", ["demo", "demo-small", "unit", "test", "bench"])
def test_on_macos_what_cannot_work_ends_with_the_reason(tmp_path: Path, goal: str) -> None:
    done = checked(tmp_path, "Darwin", "23.1.0", goal)

    assert done.returncode == 1
    assert f"make {goal} needs Linux, and this is Darwin" in done.stderr


def test_on_macos_checks_go_on(tmp_path: Path) -> None:
    done = checked(tmp_path, "Darwin", "23.1.0", "check")

    assert done.returncode == 0
    assert "never tried" in done.stderr


async def test_the_embedded_engine_names_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "posix_fallocate")

    with pytest.raises(NotInstalled, match="needs Linux"):
        await open_queue(f"embedded://{tmp_path}/store", create=True)


def test_a_bench_without_a_program_names_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure() -> None:
        raise MissingRequirement("as root: apt-get install debootstrap")

    monkeypatch.setattr("bench.mta_room.measure", measure)

    assert bench(["mta"]) == 1
    assert capsys.readouterr().err == "bench: as root: apt-get install debootstrap\n"


def test_what_cannot_run_here_is_refused_before_anything_is_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []

    def refuse(server: Server) -> None:
        raise MissingRequirement("no control groups")

    monkeypatch.setattr("stack.kubernetes.Kubernetes.check_machine", refuse)
    monkeypatch.setattr(RabbitMQ, "check_machine", lambda _: None)
    monkeypatch.setattr(RabbitMQ, "prepare", lambda *_: begun.append("rabbitmq"))

    for act in (Stack.up, Stack.prepare):
        with pytest.raises(MissingRequirement, match="no control groups"):
            act(Stack(tmp_path, environment={}), ["rabbitmq", "kubernetes"])

    assert begun == []


def test_a_person_reads_all_that_is_missing_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr("stack.packages.missing", list)
    monkeypatch.setattr("stack.packages.shutil.which", lambda _: "/usr/bin/apt-get")
    monkeypatch.setattr("stack.golang._version_in_path", lambda: None)

    with pytest.raises(MissingRequirement) as refused:
        Stack(tmp_path, environment={"POSTROAD_STACK_PROVIDER": "native"}).check()

    assert str(refused.value).splitlines() == [
        (
            "a server of a newer Debian runs as root on Debian only: name one of yours by its"
            " variable, as POSTROAD_RABBITMQ_URI with POSTROAD_RABBITMQ_MANAGEMENT_URL"
        ),
        (
            "packages are missing; as root: apt-get install --no-install-recommends maven"
            " openjdk-17-jre-headless"
        ),
        (
            "building the stack's servers needs Go 1.26 or newer in PATH"
            " (on Debian, root gets one by itself)"
        ),
        "a native Kubernetes needs root: rootless use is not supported (or use a Docker engine)",
    ]
