"""Judges faults in what runs at import: a copy of the code gets the fault, and a fork of a process
that has imported the libraries, which takes longer than most tests, imports the copy.

The fork must have loaded the module from the copy.
"""

from __future__ import annotations

import ast
import importlib
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from mutants.faults import Fault, module_of, mutated
from mutants.judging import Judge
from mutants.outcome import Notes, Outcome

ROOT = Path(__file__).parents[2]
LIBRARIES = ("hypothesis", "pydantic", "prometheus_client", "click", "aiohttp", "google_crc32c")


class Workbench(Judge):
    """A copy of the code in which one fault at a time is put, in a folder below that of pytest's
    configuration."""

    def __init__(self, folder: Path, seconds: Mapping[str, float]) -> None:
        super().__init__(folder, seconds)
        self._code = folder / "operator"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(ROOT / "operator", self._code, ignore=shutil.ignore_patterns("__pycache__"))
        for name in LIBRARIES:
            importlib.import_module(name)
        loaded = [each for each in sys.modules if each.split(".")[0] == "postroad"]
        if loaded:
            raise RuntimeError(f"{loaded} are imported: a fork would test them unchanged")

    def run(self, tests: Sequence[str], path: str, fault: Fault | None) -> Outcome:
        target = self._code / path
        source = target.read_text()
        if fault is not None:
            target.write_text(ast.unparse(mutated(source, fault)))
        try:
            outcome = self.forked(lambda: self._run(tests, path, 2 * max(map(self.limit, tests))))
        finally:
            target.write_text(source)
        if outcome.loaded and not outcome.loaded.startswith(str(self._code)):
            raise RuntimeError(f"the tests loaded {outcome.loaded}, which has no fault")
        return outcome

    def _run(self, tests: Sequence[str], path: str, limit: float) -> int:
        """Run pytest in this process."""
        os.chdir(ROOT)
        # A cached module of the mutant before could have the same size and second.
        sys.dont_write_bytecode = True
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        os.environ["PYTHONPATH"] = f"{self._code}:{ROOT / 'tests'}"
        sys.path[:0] = [str(self._code)]
        paths = f"pythonpath={self._code} {ROOT / 'tests'}"
        options = ["-x", "-q", "-p", "no:cacheprovider", "--tb=line", "-o", paths]
        # The libraries are imported before pytest could rewrite their assertions.
        options += ["-W", "ignore::pytest.PytestAssertRewriteWarning", f"--timeout={limit:.0f}"]
        copy = os.path.relpath(self._code.parent, ROOT) + "/"
        with self.notes.open("a") as file:
            notes = Notes(file, module_of(path), copy, tests)
            # Files, since pytest would refuse to run anything where it does not find one test.
            files = dict.fromkeys(map(self._file_of, tests))
            return int(pytest.main([*options, *files], [notes]))

    def _file_of(self, test: str) -> str:
        """Return the file of a test, in the copy if it is a doctest."""
        path = test.partition("::")[0]
        return str(self._code.parent / path) if path.startswith("operator/") else path
