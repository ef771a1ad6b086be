"""A session of Spark: what it writes beside a job's answer."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.needs("java")

ONE_QUERY = """
from postroad.pipeline.spark.session import close_session, open_session
session = open_session("local[1]")
print(session.range(3).count())
close_session(session)
"""


def test_a_session_prints_no_lines_of_its_own() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ONE_QUERY], capture_output=True, text=True, check=True
    )

    assert (done.stdout, done.stderr) == ("3\n", "")
