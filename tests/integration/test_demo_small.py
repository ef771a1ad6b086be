"""`make demo-small`, as a newcomer runs it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]


def test_every_mail_is_delivered_once_by_the_process_after_the_killed_one() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "demo.small"], cwd=TESTS, capture_output=True, text=True, timeout=240
    )

    lines = ran.stdout.splitlines()
    assert ran.returncode == 0, ran.stdout + ran.stderr
    # In flight while the next hop's first rest lasts, delayed behind it.
    assert re.search(r"^11 waiting \((0|10) delayed, 1 held\), 0 dead letters$", ran.stdout, re.M)
    assert "no damage" in lines
    assert lines[-1] == "demo: 11 accepted, 11 delivered, 0 lost, 0 duplicated"
