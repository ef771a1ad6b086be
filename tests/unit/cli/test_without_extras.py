"""What an installation without extras can do; what it lacks is named with the command of pip."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.requirements import Requirement

from postroad.errors import EXTRAS

ROOT = Path(__file__).parents[3]
BARE = """
import json, sys, traceback
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
for name in sys.argv[1].split(","):
    sys.modules[name] = None
import postroad.cli
for program, *arguments in json.loads(sys.argv[2]):
    sys.argv[1:], code = arguments, 0
    with redirect_stdout(StringIO()) as output, redirect_stderr(StringIO()) as errors:
        try:
            getattr(postroad.cli, program)()
        except SystemExit as ended:
            code = ended.code
        except BaseException:
            traceback.print_exc()
            code = 1
    print(json.dumps([code, output.getvalue(), errors.getvalue()]))
"""
"""Runs commands one after the other: a process for each would mostly import the same again."""

EXTRA = ",".join(EXTRAS)
LACKING = {
    ("operator",): "operator",
    ("mta", "--queue", "embedded:///nowhere"): "smtp",
    ("console", "--help"): "console",
    ("users", "add", "ann"): "intake",
    ("size", "--queue", "distributed://a.b"): "distributed",
}
"""The extra that each command names."""

PROGRAMS = ("main", "kubectl_mailqueue")


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    output: str
    errors: str


Command = tuple[str, ...]


def bare(*commands: Command, lacking: str) -> dict[Command, Ended]:
    done = subprocess.run(
        [sys.executable, "-c", BARE, lacking, json.dumps(commands)],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(ROOT / "operator")},
    )
    assert done.returncode == 0, done.stderr
    ended = (Ended(*json.loads(line)) for line in done.stdout.splitlines())
    return dict(zip(commands, ended, strict=True))


@pytest.fixture(scope="module")
def without_extra() -> dict[Command, Ended]:
    lacking = [("main", *command) for command in LACKING]
    return bare(*((each, "--help") for each in PROGRAMS), *lacking, lacking=EXTRA)


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_command_is_listed(without_extra: dict[Command, Ended], program: str) -> None:
    listed = without_extra[program, "--help"]

    assert listed.code == 0, listed.errors
    assert "dead-letters" in listed.output


@pytest.mark.parametrize("command", LACKING)
def test_a_command_that_lacks_a_library_says_what_to_install(
    without_extra: dict[Command, Ended], command: Command
) -> None:
    refused = without_extra["main", *command]

    assert refused.code == 1
    assert refused.errors.endswith(
        f" is not installed (pip install 'postroad[{LACKING[command]}]')\n"
    )


def test_a_console_that_lacks_a_library_says_what_to_install() -> None:
    command = ("main", "console", "--queue", "memory://q", "--listen", "127.0.0.1:0")
    [refused] = bare(command, lacking="fastapi,uvicorn").values()

    assert refused.code == 1
    assert "pip install 'postroad[console]'" in refused.errors
    assert "Traceback" not in refused.errors


def test_a_library_that_no_extra_brings_is_named_by_a_traceback() -> None:
    [broken] = bare(("main", "operator"), lacking="prometheus_client").values()

    assert broken.code != 0
    assert "is not installed" not in broken.errors
    assert "No module named" in broken.errors or "import of prometheus_client" in broken.errors


PROGRAM = """
import asyncio, sys
sys.modules.update(dict.fromkeys(sys.argv[1].split(",")))
from postroad import Mail, open_queue, sync

async def main():
    async with open_queue(sys.argv[2], create=True) as queue:
        await queue.enqueue(Mail(None, ["b@example.net"], b"x"))
        async for item in queue.dequeue():
            await item.done()
            break
    async with open_queue("distributed://a.b"):
        pass

with sync.open_queue(sys.argv[2], create=True) as queue:
    print(queue.size().size)
asyncio.run(main())
"""


def test_a_directory_needs_no_extra_and_servers_name_theirs(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, EXTRA, f"embedded://{tmp_path}/queue"],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(ROOT / "operator")},
    )

    assert ended.stdout == "0\n", ended.stderr
    *_, last = ended.stderr.splitlines()
    assert last.startswith("postroad.errors.NotInstalled: ")
    assert last.endswith(" is not installed")


def _brought(name: str, found: set[str]) -> set[str]:
    """Add to `found` what an installation of a package without extras brings."""
    for text in distribution(name).requires or ():
        each = Requirement(text)
        if each.name not in found and (each.marker is None or each.marker.evaluate({"extra": ""})):
            found.add(each.name)
            _brought(each.name, found)
    return found


def test_an_installation_without_extras_is_small() -> None:
    found = _brought("postroad", {"postroad"})
    files = [file.locate() for name in found for file in distribution(name).files or ()]
    own = [each for each in (ROOT / "operator/postroad").rglob("*") if each.suffix != ".pyc"]
    size = sum(Path(each).stat().st_size for each in [*files, *own] if Path(each).is_file())

    assert {"pydantic", "click"} < found
    assert len(found) <= 12
    assert size < 40_000_000
