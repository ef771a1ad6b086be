"""Which tests judge a fault: those that execute its line. A line that runs at import is executed by
none of them alone; it is judged by the tests of its module and of the modules that import it.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, takewhile
from pathlib import Path

from mutants.faults import Fault, module_of
from mutants.workbench import ROOT

OVERHEAD = 0.005
"""Seconds that pytest takes for a test beside the test."""


@dataclass(frozen=True)
class Measured:
    """By path and line the tests that execute it, the fastest first; the seconds of each test; the
    tests that fail without any fault; by path the lines that run at import."""

    lines: Mapping[str, Mapping[str, Sequence[str]]]
    seconds: Mapping[str, float]
    failed: frozenset[str]
    at_import: Mapping[str, frozenset[int]] = field(default_factory=dict)


def measured(result: Path) -> Measured:
    """Return what `coverage_by_test` wrote."""
    found = json.loads(result.read_text())
    seconds = found["seconds"]
    lines = {
        _below_code(path): {
            line: sorted(tests, key=lambda each: seconds.get(each, 0.0))
            for line, tests in by_line.items()
        }
        for path, by_line in found["lines"].items()
    }
    at_import = {_below_code(path): frozenset(each) for path, each in found["at_import"].items()}
    return Measured(lines, seconds, frozenset(found["failed"]), at_import)


def _below_code(path: str) -> str:
    return str(Path(path).relative_to(ROOT / "operator"))


def executing(fault: Fault, known: Measured) -> Sequence[str]:
    """Return the tests that execute a line within a function, or, where none does, the next line
    before it: a statement of several lines may have no event on each of them."""
    own = known.lines.get(fault.path, {})
    before = [int(line) for line, tests in own.items() if tests and int(line) <= fault.line]
    return own[str(max(before))] if before else []


def within(tests: Sequence[str], known: Measured, seconds: float) -> Sequence[str]:
    """Return the first tests that together take no longer than this, at least one; without those
    that fail without a fault."""
    sound = [each for each in tests if each not in known.failed]
    ends = accumulate(known.seconds.get(each, 0.0) + OVERHEAD for each in sound)
    return sound[: max(1, sum(1 for _ in takewhile(lambda end: end <= seconds, ends)))]


def importing(fault: Fault, known: Measured, root: Path = ROOT) -> Sequence[str]:
    """Return the tests that judge a line which runs at import: those of its module, then those of
    files of tests and of modules that import it, each the fastest first."""
    own = known.lines.get(fault.path, {})
    importers = set(_importers(fault.path, root))
    in_files = {test for test in known.seconds if test.partition("::")[0] in importers}
    of_modules = {
        test
        for path, lines in known.lines.items()
        if f"operator/{path}" in importers
        for each in lines.values()
        for test in each
    }
    of_module = {test for each in own.values() for test in each}
    others = _by_speed((in_files | of_modules) - of_module, known)
    return [*_by_speed(of_module, known), *others]


def _by_speed(tests: Iterable[str], known: Measured) -> list[str]:
    return sorted(tests, key=lambda each: (known.seconds.get(each, 0.0), each))


def _importers(path: str, root: Path) -> Iterator[str]:
    """Yield the files of code and tests that import a module, as paths below `root`."""
    module = module_of(path)
    name = module.rpartition(".")[2]
    for folder in ("operator", "tests"):
        for file in (root / folder).rglob("*.py"):
            text = file.read_text()
            if name in text and module in _imported(text):
                yield str(file.relative_to(root))


def _imported(text: str) -> Iterator[str]:
    """Yield the modules that a module imports, and the names of which it may import one."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{each.name}" for each in node.names)
