"""A Docker engine of the stack's own, on a machine that cannot have one, and before it runs."""

import os
from pathlib import Path

import pytest

from stack import commands, docker, engine
from stack.engine import Engine
from stack.errors import MissingRequirement, StackError
from stack.progress import Progress


def test_who_is_not_root_reads_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    with pytest.raises(MissingRequirement, match="start yours, or become root"):
        Engine(tmp_path / "engine").start(Progress(quiet=True))


def test_an_engine_that_does_not_run_runs_no_command(tmp_path: Path) -> None:
    with pytest.raises(StackError, match="does not run"):
        Engine(tmp_path / "engine").run(["true"], {})


def test_an_engine_that_never_ran_can_be_removed(tmp_path: Path) -> None:
    Engine(tmp_path / "engine").remove()

    assert not (tmp_path / "engine").exists()


def test_removing_takes_its_images_too(tmp_path: Path) -> None:
    (tmp_path / "engine/data").mkdir(parents=True)

    Engine(tmp_path / "engine").remove()

    assert not (tmp_path / "engine").exists()


@pytest.mark.parametrize(
    ("bounding", "has"), [("000001ffffffffff", True), ("000001fffeffffff", False)]
)
def test_the_capability_that_docker_asks_for_is_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bounding: str, has: bool
) -> None:
    status = tmp_path / "status"
    status.write_text(f"Name:\tx\nCapBnd:\t{bounding}\n")
    monkeypatch.setattr(engine, "STATUS", status)

    assert engine.has_resource_capability() is has


def test_an_engine_that_answers_is_used_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docker, "engine_answers", lambda: True)
    monkeypatch.setattr(Engine, "start", lambda *_: pytest.fail("it was started"))

    with pytest.raises(SystemExit) as ended:
        commands.main(["engine", "run", "sh", "-c", "exit 7"])

    assert ended.value.code == 7
