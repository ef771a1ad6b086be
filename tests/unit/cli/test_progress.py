"""Progress of long work shows on a terminal, and nowhere else."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from postroad.cli import progress as shown
from postroad.cli.progress import progress

PROGRAM = "import time; from postroad.cli import progress; progress.INTERVAL = 0.02\n"
PROGRAM += "with progress.progress('counting'): time.sleep({})"


def on_a_terminal(seconds: float) -> str:
    """What a terminal gets on standard error while work takes so long."""
    reader, writer = os.openpty()
    subprocess.run([sys.executable, "-c", PROGRAM.format(seconds)], stderr=writer, check=True)
    os.write(writer, b"END")
    os.close(writer)
    text = b""
    while b"END" not in text:
        text += os.read(reader, 1024)
    os.close(reader)
    return text.decode()


def test_a_terminal_sees_how_long_it_takes_and_nothing_of_it_in_the_end() -> None:
    text = on_a_terminal(0.5)

    assert text.startswith("\r\033[Kcounting: 0 s")
    assert text.endswith("\r\033[KEND")


def test_short_work_shows_nothing_on_a_terminal() -> None:
    assert on_a_terminal(0) == "END"


def test_nothing_is_shown_where_no_terminal_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shown, "INTERVAL", 0.01)
    with progress("counting"):
        time.sleep(0.1)

    assert capsys.readouterr() == ("", "")
