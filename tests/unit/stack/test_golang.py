"""Which Go builds the servers: one that is there, or one that is fetched."""

import os
from pathlib import Path

import pytest

from stack import golang, packages
from stack.errors import MissingRequirement


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder in PATH, and a cache of one's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    return programs


def put_go(folder: Path, version: str) -> None:
    program = folder / "go"
    program.write_text(f"#!/bin/sh\necho {version}\n")
    program.chmod(0o755)


@pytest.mark.parametrize("version", ["go1.26.0", "go1.26.8", "go2.0", "devel +1a2b3c"])
def test_a_go_that_is_new_enough_is_used_as_it_is(folder: Path, version: str) -> None:
    put_go(folder, version)

    assert golang.go_version() == version
    assert golang.toolchain() == ()


@pytest.mark.parametrize("version", ["go1.19.8", "go1.25.11"])
def test_an_older_go_only_fetches_a_newer_one(folder: Path, version: str) -> None:
    put_go(folder, version)

    assert golang.go_version() == golang.TOOLCHAIN
    assert [entry.name for entry in golang.toolchain()] == ["go"]


def test_where_packages_may_be_installed_no_go_is_needed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages, "may_install", lambda: True)

    assert golang.go_version() == golang.TOOLCHAIN
    assert len(golang.toolchain()) == 1


def test_elsewhere_its_absence_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "may_install", lambda: False)

    with pytest.raises(MissingRequirement, match=r"Go 1\.26"):
        golang.go_version()


def test_packages_may_be_installed_by_root_of_debian_only(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert not packages.may_install()

    (folder / "apt-get").write_text("#!/bin/sh\n")
    (folder / "apt-get").chmod(0o755)
    assert packages.may_install()

    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert not packages.may_install()


def test_the_oldest_go_is_no_newer_than_the_one_that_is_fetched() -> None:
    fetched = tuple(map(int, golang.TOOLCHAIN.removeprefix("go").split(".")))

    assert fetched >= golang.OLDEST
