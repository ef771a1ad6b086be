"""Which tests judge a fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from mutants.choosing import Measured, executing, importing, within
from mutants.faults import Fault

LINES = {
    "room/rates.py": {"7": ["t/a.py::slow", "t/a.py::fast"], "9": ["t/b.py::other"]},
    "room/user.py": {"3": ["t/c.py::uses"]},
    "room/third.py": {"3": ["t/d.py::third"]},
    "room/stranger.py": {"3": ["t/e.py::stranger", "tests/constants.py::names"]},
}
SECONDS = {
    "t/a.py::slow": 2.0,
    "t/a.py::fast": 0.1,
    "t/b.py::other": 1.0,
    "t/d.py::third": 0.1,
    "tests/constants.py::compares": 0.0,  # executes no line of the room
    "tests/constants.py::names": 0.0,
}
KNOWN = Measured(LINES, SECONDS, frozenset())


@pytest.fixture
def code(tmp_path: Path) -> Path:
    files = {
        "operator/room/rates.py": "RATE = 3",
        "operator/room/user.py": "from room.rates import RATE",
        "operator/room/third.py": "from room import rates",
        "operator/room/stranger.py": "from room.user import rates_of",
        "tests/constants.py": "import room.rates",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


@pytest.mark.parametrize("line", [9, 10])
def test_a_line_is_judged_by_the_tests_that_execute_it_or_the_line_before(line: int) -> None:
    assert executing(Fault("room/rates.py", line, "add one", 0), KNOWN) == ["t/b.py::other"]


def test_a_line_that_runs_at_import_is_judged_by_its_module_then_by_those_that_import_it(
    code: Path,
) -> None:
    assert importing(Fault("room/rates.py", 1, "add one", 0), KNOWN, code) == [
        *("t/a.py::fast", "t/b.py::other", "t/a.py::slow"),
        *("t/c.py::uses", "tests/constants.py::compares", "tests/constants.py::names"),
        "t/d.py::third",
    ]


def test_no_line_is_judged_by_tests_that_fail_anyway_or_by_more_than_its_time_allows() -> None:
    tests = ["t/a.py::fast", "t/b.py::other", "t/a.py::slow"]
    known = Measured(LINES, SECONDS, frozenset(["t/a.py::fast"]))

    assert within(tests, KNOWN, 0.0) == tests[:1]
    assert within(tests, KNOWN, 1.2) == tests[:2]
    assert within(tests, known, 9.0) == tests[1:]
    assert within([], KNOWN, 9.0) == []
