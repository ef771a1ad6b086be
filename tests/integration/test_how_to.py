"""Each command of the tutorial and of the how-tos for a directory runs, and prints what its page
shows. Commands for a cluster run in tests/e2e/test_runbooks.py, programs in tests/unit/library."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.ports import free_port
from support.repository import ROOT

PAGES = tuple(
    f"{page.relative_to(ROOT / 'docs').with_suffix('')}"
    for page in (ROOT / "docs").rglob("*.md")
    if page.parent.name in ("tutorial", "how-to") and "$ kubectl " not in page.read_text()
)
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
VARYING = re.compile(
    r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|20\d\d-\d\d-\d\d[T ][\d:.]+(?:Z| UTC)?"
)
"""Ids and moments, which differ in each run."""
SECONDS = 30
"""How long a command that only looks is repeated until it prints what the page shows."""
LOOKS = re.compile(r"postroad (size|browse|sites|dead-letters|trace|show)\b|cat |ls |curl -s ")
END = "end of the command:"


def steps(page: str) -> list[tuple[str, str]]:
    """Return the commands of a page, each with what it prints by the page."""
    found: list[tuple[str, str]] = []
    is_open = False
    for line in "\n".join(BLOCK.findall(page)).splitlines():
        if line.startswith("$ "):
            found.append((line[2:], ""))
        elif is_open:
            found[-1] = (f"{found[-1][0]}\n{line}", "")
        elif line:
            found[-1] = (found[-1][0], f"{found[-1][1]}{line}\n")
        command = found[-1][0]
        here = "<<'EOF'" in command and not command.endswith("\nEOF")
        is_open = here or command.endswith("\\")
    return found


def is_shown(printed: str, shown: str) -> bool:
    """Return whether a page shows what was printed: `…` stands for any text."""
    lines = (re.escape(VARYING.sub("VARYING", each)) for each in shown.strip().split("…"))
    return re.fullmatch(".*".join(lines), VARYING.sub("VARYING", printed.strip()), re.S) is not None


class Shell:
    """A shell that runs commands one after the other; what they start ends with it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, command: str) -> tuple[int, str]:
        """Return the exit code of a command, and what it printed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{command}\necho '{END}' $?\n")
        self._process.stdin.flush()
        printed: list[str] = []
        for line in self._process.stdout:
            if line.startswith(END):
                return int(line.split()[-1]), "".join(printed)
            printed.append(line)
        raise AssertionError(f"the shell ended: {''.join(printed)}")


@contextmanager
def shell(folder: Path) -> Iterator[Shell]:
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    changed = {"PATH": programs, "HOME": str(folder), "POSTROAD_HEALTH_PORT": "0"}
    environment = {**os.environ, **changed, "PYTHONPATH": f"{ROOT / 'operator'}"}
    process = subprocess.Popen(
        ["bash", "--norc"], cwd=folder, env=environment, text=True, start_new_session=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    with process:
        running = Shell(process)
        running.run("set -m")
        try:
            yield running
        finally:
            running.run("kill $(jobs -p) && wait")


@pytest.mark.parametrize("name", PAGES)
def test_each_command_of_a_page_runs_and_prints_what_the_page_shows(
    name: str, tmp_path: Path
) -> None:
    ports = {port: str(free_port()) for port in ("2525", "2526")}
    places = {"/tmp": f"{tmp_path}", "/var": f"{tmp_path}", **ports}
    page = (ROOT / f"docs/{name}.md").read_text()
    assert len(steps(page)) >= 2

    with shell(tmp_path) as running:
        for command, shown in steps(page):
            there = re.sub(rf"(?:{'|'.join(places)})\b", lambda found: places[found[0]], command)
            ends = time.monotonic() + SECONDS
            while True:
                code, printed = running.run(there)
                for place, here in places.items():
                    printed = printed.replace(here, place)
                if is_shown(printed, shown) or not LOOKS.match(command) or time.monotonic() > ends:
                    break
                time.sleep(0.2)
            assert code == 0, f"{command}\n{printed}"
            assert not shown or is_shown(printed, shown), f"{command}\n{printed}\nnot\n{shown}"


def test_what_a_page_shows_is_found() -> None:
    text = (
        "```console\n$ a <<'EOF'\nx\nEOF\n$ b \\\n  c\n1 … 3\n2\n```\nthen\n```console\n$ d\n```\n"
    )

    assert steps(text) == [("a <<'EOF'\nx\nEOF", ""), ("b \\\n  c", "1 … 3\n2\n"), ("d", "")]
    assert is_shown("1 2 3\n2\n", "1 … 3\n2\n")
    assert not is_shown("1 2 4\n2\n", "1 … 3\n2\n")
    assert is_shown("2026-01-01T10:00:00.123Z due\n", "2027-01-01T00:00:00Z due\n")
