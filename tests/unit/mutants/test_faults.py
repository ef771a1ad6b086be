"""Faults that are put into code: each changes it, and only what a test has to notice."""

from __future__ import annotations

import ast

import pytest

from mutants.faults import drawn, faults_in, mutated

SOURCE = '''
def f(a: int = 3, *, b: bool = True) -> bool:
    """Return whether 1 < 2."""
    log.info("seen", a=a)
    try:
        g(a, b=b)
    except ValueError:
        pass
    if not a:
        return a < 7
    return False
'''


def code_with(kind: str, line: int) -> str:
    [fault] = [each for each in faults_in("x.py", SOURCE) if (each.kind, each.line) == (kind, line)]
    return ast.unparse(mutated(SOURCE, fault))


@pytest.mark.parametrize(
    ("kind", "line", "expected"),
    [
        ("drop the call", 6, "    try:\n        pass"),
        ("drop a keyword", 6, "g(a)"),
        ("drop a handler", 5, "'seen', a=a)\n    g(a, b=b)\n    if"),
        ("negate the condition", 9, "if not (not a):"),
        ("drop the not", 9, "if a:"),
        ("change the comparison", 10, "return a <= 7"),
        ("change what is returned", 10, "return not a < 7"),
        ("change what is returned", 11, "return True"),
        ("add one", 10, "return a < 8"),
        ("add one", 2, "a: int=4"),
    ],
)
def test_a_fault_changes_one_place(kind: str, line: int, expected: str) -> None:
    assert expected in code_with(kind, line).replace("not not a", "not (not a)")


def test_logs_and_annotations_have_no_faults() -> None:
    assert not [each for each in faults_in("x.py", SOURCE) if each.line == 4]
    assert faults_in("x.py", "x: dict[int, list[int]]") == []


def test_each_fault_leaves_code_that_can_be_compiled_and_differs() -> None:
    plain = ast.unparse(ast.parse(SOURCE))

    changed = [mutated(SOURCE, each) for each in faults_in("x.py", SOURCE)]

    assert len(changed) == 10
    assert all(compile(each, "x.py", "exec") for each in changed)
    assert plain not in map(ast.unparse, changed)


def test_a_seed_draws_the_same_faults_again() -> None:
    faults = faults_in("x.py", SOURCE)

    assert drawn(faults, 4, 1) == drawn(faults, 4, 1)
    assert drawn(faults, 4, 1) != drawn(faults, 4, 2)
    assert len(drawn(faults, 99, 1)) == len(faults)
