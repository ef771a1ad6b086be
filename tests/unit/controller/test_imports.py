"""The operator has in memory what it uses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

OPERATOR = Path(__file__).parents[3] / "operator"
IMPORT = """
import sys
from postroad.adapters.kubernetes import kopf_watch
from postroad.controller.run import program
print(*{each.partition(".")[0] for each in sys.modules})
"""
OF_OTHERS = {"cryptography", "dns", "google_crc32c", "pyspark", "matplotlib"}


def test_libraries_of_other_programs_are_not_imported() -> None:
    """Keys that sign mail alone would be a tenth of the memory of an operator without queues."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORT],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(OPERATOR)},
    )

    imported = set(done.stdout.split())
    assert {"kopf", "pika", "cassandra", "boto3", "obstore"} <= imported
    assert imported & OF_OTHERS == set()
