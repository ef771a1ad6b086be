"""Which tests judge a fault: those that execute its line. A line that runs at import is executed by
none of them alone; it is judged by the tests of its module and of the modules that import it.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mutants.faults import Fault
from mutants.running import ROOT


@dataclass(frozen=True)
class Measured:
    """By path and line the tests that execute it, the fastest first; the seconds of each test; the
    tests that fail without any fault."""

    lines: Mapping[str, Mapping[str, Sequence[str]]]
    seconds: Mapping[str, float]
    failed: frozenset[str]


def measured(result: Path) -> Measured:
    """Return what `coverage_by_test` wrote."""
    found = json.loads(result.read_text())
    seconds = found["seconds"]
    lines = {
        str(Path(path).relative_to(ROOT / "operator")): {
            line: sorted(tests, key=lambda each: seconds.get(each, 0.0))
            for line, tests in by_line.items()
        }
        for path, by_line in found["lines"].items()
    }
    return Measured(lines, seconds, frozenset(found["failed"]))


def judges_of(fault: Fault, known: Measured, root: Path = ROOT) -> Sequence[str]:
    """Return the tests that execute a line; of a line that runs at import, those of its module,
    then those of files of tests and of modules that import it, each the fastest first."""
    own = known.lines.get(fault.path, {})
    if tests := own.get(str(fault.line)):
        return tests
    importers = set(_importers(fault.path, root))
    ran = {test for lines in known.lines.values() for each in lines.values() for test in each}
    in_files = {test for test in ran if test.partition("::")[0] in importers}
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
    module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
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
