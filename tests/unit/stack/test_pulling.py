"""Images that are pulled, and the equal ones that are made where none can be."""

import os
from pathlib import Path

import pytest

from stack import packages, pulling
from stack.errors import StackError
from stack.progress import Progress

ENGINE = """\
#!/bin/sh
case "$*" in
  "image inspect there") exit 0 ;;
  "pull --quiet far") exit 0 ;;
  *) echo "no such host" >&2; exit 1 ;;
esac
"""


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which images were made here."""
    (tmp_path / "docker").write_text(ENGINE)
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(packages, "may_install", lambda: True)
    return []


@pytest.mark.parametrize("image", ["there", "far"])
def test_an_image_that_is_here_or_can_be_pulled_is_not_made(image: str, made: list[str]) -> None:
    pulling.obtain(image, Progress(quiet=True), lambda _: made.append(image))

    assert made == []


def test_an_image_that_cannot_be_pulled_is_made_and_the_stack_says_why(
    made: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    pulling.obtain("away", Progress(), lambda _: made.append("away"))

    assert made == ["away"]
    assert "away cannot be pulled (no such host): an equal one is made" in capsys.readouterr().err


def test_where_packages_cannot_be_installed_the_pull_fails(
    made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages, "may_install", lambda: False)

    with pytest.raises(StackError, match="docker pull away: no such host"):
        pulling.obtain("away", Progress(quiet=True), lambda _: made.append("away"))

    assert made == []


@pytest.mark.timeout(30)
def test_a_release_that_the_engine_refuses_ends_the_import(
    made: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine reads nothing, and the release is larger than a pipe."""
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "large").write_bytes(bytes(2**20))
    monkeypatch.setattr(pulling, "_made", lambda *_: tmp_path)

    with pytest.raises(StackError, match=f"import {pulling.RABBITMQ_BASE}: no such host"):
        pulling.ensure_release(Progress(quiet=True))
