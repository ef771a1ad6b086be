"""What an installation without the extra `operator` can do: all but the operator."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

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

EXTRA = "kopf,kubernetes"
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
    return bare(*((each, "--help") for each in PROGRAMS), ("main", "operator"), lacking=EXTRA)


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_command_is_listed(without_extra: dict[Command, Ended], program: str) -> None:
    listed = without_extra[program, "--help"]

    assert listed.code == 0, listed.errors
    assert "dead-letters" in listed.output


def test_a_command_that_lacks_a_library_says_what_to_install(
    without_extra: dict[Command, Ended],
) -> None:
    refused = without_extra["main", "operator"]

    assert refused.code == 1
    assert "install postroad with the extra `operator`" in refused.errors
    assert "Traceback" not in refused.errors


def test_a_library_that_no_extra_brings_is_named_by_a_traceback() -> None:
    [broken] = bare(("main", "operator"), lacking="pika").values()

    assert broken.code != 0
    assert "the extra" not in broken.errors
    assert "No module named" in broken.errors or "import of pika" in broken.errors
