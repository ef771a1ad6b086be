"""`kubectl-mailqueue` as one file, run by a Python that has no library at all."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml

from release import plugin
from support.fake_kubectl import answer, folder, put, put_list

__all__ = ["folder"]

BARE = [str(Path(sys.base_prefix) / "bin" / "python3"), "-I", "-S"]
"""Without site-packages, PYTHONPATH and the present directory."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plugin.make(tmp_path_factory.mktemp("plugin"))


def run(file: Path, caches: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "XDG_CACHE_HOME": str(caches), "LC_ALL": "C.UTF-8"}
    return subprocess.run(
        [*BARE, str(file), *arguments], capture_output=True, text=True, env=environment, timeout=120
    )


def test_it_needs_nothing_but_python(made: Path, folder: Path, tmp_path: Path) -> None:
    caches = tmp_path / "caches"
    helped = run(made, caches, "--help")
    assert helped.returncode == 0, helped.stderr
    for command in ("status", "top", "browse", "plan", "suppression"):
        assert command in helped.stdout

    queue = {"metadata": {"name": "outgoing"}, "spec": {}, "status": {"size": 12}}
    (folder / "outgoing.json").write_text(json.dumps(queue))
    status = run(made, caches, "status", "outgoing")
    assert "12 waiting" in status.stdout, status.stderr


def test_a_command_runs_in_a_pod_of_the_queue(made: Path, folder: Path, tmp_path: Path) -> None:
    running = {"name": "worker", "ready": True, "state": {"running": {}}}
    pod = {"metadata": {"name": "outgoing-worker-x"}, "status": {"containerStatuses": [running]}}
    put(folder, "outgoing", [])
    put_list(folder, "pods", [pod])
    answer(folder, stdout="3 waiting\n")

    sized = run(made, tmp_path / "caches", "size", "outgoing")

    assert sized.stdout == "3 waiting\n", sized.stderr
    assert "postroad" in (folder / "executed").read_text().split()


def test_it_is_unpacked_once_and_whole(made: Path, tmp_path: Path) -> None:
    caches = tmp_path / "caches"
    run(made, caches, "--help")
    (unpacked,) = (caches / "postroad").iterdir()
    before = unpacked.stat().st_mtime_ns
    run(made, caches, "--help")

    assert [each.name for each in (caches / "postroad").iterdir()] == [unpacked.name]
    assert unpacked.stat().st_mtime_ns == before
    assert caches.joinpath("postroad").stat().st_mode & 0o077 == 0


def test_under_the_name_that_kubectl_looks_for_it_completes_words(
    made: Path, tmp_path: Path
) -> None:
    completer = tmp_path / "kubectl_complete-mailqueue"
    shutil.copy(made, completer)

    found = run(completer, tmp_path / "caches", "re").stdout.splitlines()

    assert {"release", "remove", "requeue"} <= {line.partition("\t")[0] for line in found}
    assert found[-1] == ":4"
    options = run(completer, tmp_path / "caches", "browse", "outgoing", "--se").stdout
    assert options.startswith("--sender")


def test_where_it_cannot_be_unpacked_it_names_the_variable(made: Path, tmp_path: Path) -> None:
    (tmp_path / "caches").write_text("a file")

    done = run(made, tmp_path / "caches", "--help")

    assert done.returncode == 1
    assert "set XDG_CACHE_HOME" in done.stderr


def test_two_runs_give_one_file_and_the_manifest_has_the_digest(made: Path, tmp_path: Path) -> None:
    again = plugin.make(tmp_path, "https://mirror.example.org")

    assert again.read_bytes() == made.read_bytes()
    (described,) = yaml.safe_load((tmp_path / "mailqueue.yaml").read_text())["spec"]["platforms"]
    archive = tmp_path / described["uri"].removeprefix("https://mirror.example.org/")
    assert described["sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()
    with tarfile.open(archive) as files:
        assert described["bin"] in files.getnames()
