"""Reports of failed tests are formatted whatever garbage a test leaves."""

import os
import subprocess
import sys
from pathlib import Path

FAILING = """
import ast, gc, sys

class Garbage:
    def __init__(self):
        self.itself = self

    def __del__(self):
        if not sys.is_finalizing():
            parse_below(20)
            Garbage()

def parse_below(frames):
    if frames:
        return parse_below(frames - 1)
    ast.parse("a = 1")

def test_fails():
    gc.set_threshold(50)
    Garbage()
    assert [{LONG}] == []
"""


def test_garbage_that_parses_in_a_finalizer_leaves_the_report_of_its_test_whole(
    tmp_path: Path,
) -> None:
    test = tmp_path / "test_failing.py"
    test.write_text(FAILING.replace("{LONG}", ", ".join(f"int({n})" for n in range(4_000))))
    plain = ["-c", "/dev/null", "--rootdir", str(tmp_path), "-p", "no:cacheprovider"]

    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "conftest", *plain, str(test)],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # some import, so parse, when a session ends
        },
        capture_output=True,
        text=True,
        check=False,
    )

    assert "1 failed" in ended.stdout, ended.stderr
    assert "INTERNALERROR" not in ended.stdout
