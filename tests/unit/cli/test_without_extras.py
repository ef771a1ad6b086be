"""What an installation without the extra `operator` can do: all but the operator."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
BARE = """
import sys
for name in sys.argv.pop(1).split(","):
    sys.modules[name] = None
import postroad.cli
getattr(postroad.cli, sys.argv.pop(1))()
"""


EXTRA = "kopf,kubernetes"


def bare(*arguments: str, lacking: str = EXTRA) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BARE, lacking, *arguments],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(ROOT / "operator")},
    )


@pytest.mark.parametrize("program", ["main", "kubectl_mailqueue"])
def test_every_command_is_listed(program: str) -> None:
    listed = bare(program, "--help")

    assert listed.returncode == 0, listed.stderr
    assert "dead-letters" in listed.stdout


def test_a_command_that_lacks_a_library_says_what_to_install() -> None:
    refused = bare("main", "operator")

    assert refused.returncode == 1
    assert "install postroad with the extra `operator`" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_library_that_no_extra_brings_is_named_by_a_traceback() -> None:
    broken = bare("main", "operator", lacking="pika")

    assert broken.returncode != 0
    assert "the extra" not in broken.stderr
    assert "No module named" in broken.stderr or "import of pika" in broken.stderr
