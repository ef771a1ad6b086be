"""The unit of systemd for a relay on a host."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from postroad.cli.processes.mta import mta
from support.repository import ROOT

UNIT = ROOT / "manifests" / "systemd" / "postroad.service"
MAX_EXPOSURE = "20"
"""Tenths of the points by which systemd counts what a service may do beyond its work."""

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd is not installed"
)


def directives() -> list[tuple[str, str]]:
    lines = (each for each in UNIT.read_text().splitlines() if "=" in each and each[0] != "#")
    return [(name, value) for name, _, value in (each.partition("=") for each in lines)]


def analyzed(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", *arguments], check=False, capture_output=True, text=True
    )


def test_unit_starts_a_command_with_options_that_it_has() -> None:
    program, name, *given = shlex.split(dict(directives())["ExecStart"])
    options = {each for parameter in mta.params for each in parameter.opts}

    assert (Path(program).name, name) == ("postroad", "mta")
    assert {each for each in given if each.startswith("--")} <= options


@needs_systemd
def test_unit_has_no_directive_that_systemd_refuses(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    unit.write_text(
        UNIT.read_text().replace("/opt/postroad/bin/postroad", shutil.which("true") or "")
    )

    assert (found := analyzed("verify", str(unit))).returncode == 0, found.stderr
    assert "Unknown" not in found.stderr


@needs_systemd
def test_unit_may_do_little_beyond_its_work() -> None:
    found = analyzed("security", "--offline=true", f"--threshold={MAX_EXPOSURE}", str(UNIT))

    assert found.returncode == 0, found.stdout
