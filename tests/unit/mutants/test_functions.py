"""Which functions a fault changes, and that those which exist have it afterwards."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from mutants.faults import Fault, faults_in
from mutants.functions import LiveFunctions, changed_functions

SOURCE = """
LIMIT = 11

def plain(a, b=12):
    return a + 13

def makes(c):
    def made():
        return max(each + c + 14 for each in (0,))
    return made

MADE = makes(0)

class Kept:
    size = 15

    @staticmethod
    def count(a):
        return (lambda: a + 16)()

LAMBDAS = (lambda: 17), (lambda: 18)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "code.py"
    path.write_text(SOURCE)
    return path


@pytest.fixture
def module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("code_under_test", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def one_more_than(number: int) -> Fault:
    """Return the fault that adds one to a number of the code."""
    line = next(place for place, text in enumerate(SOURCE.splitlines(), 1) if str(number) in text)
    found = [each for each in faults_in("code.py", SOURCE) if each.line == line]
    return [each for each in found if each.kind == "add one"][-1]


@pytest.mark.parametrize("number", [13, 14, 16])
def test_functions_that_exist_or_are_made_later_have_the_fault(
    path: Path, module: ModuleType, number: int
) -> None:
    changed = changed_functions(path, one_more_than(number))

    assert changed is not None
    assert LiveFunctions().change(changed) > 0
    results = {
        13: (module.plain(0),),
        14: (module.MADE(), module.makes(0)()),
        16: (module.Kept.count(0),),
    }
    for each, found in results.items():
        assert set(found) == {each + (each == number)}


@pytest.mark.parametrize("number", [11, 12, 15, 17])
def test_what_runs_at_import_or_has_a_twin_on_its_line_is_no_function(
    path: Path, number: int
) -> None:
    assert changed_functions(path, one_more_than(number)) is None


def test_a_function_that_would_need_other_variables_keeps_its_code(tmp_path: Path) -> None:
    path = tmp_path / "code.py"
    path.write_text("def f(a):\n    def g():\n        return a\n    return g\n")
    fault = next(
        each
        for each in faults_in("code.py", path.read_text())
        if (each.line, each.kind) == (3, "change what is returned")
    )

    assert changed_functions(path, fault) is None
