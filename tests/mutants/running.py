"""Runs tests against a copy of the code with one fault, in a fork of a process that has imported
the libraries: importing them takes longer than most tests."""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from enum import Enum
from pathlib import Path

import pytest

from mutants.faults import Fault, mutated

ROOT = Path(__file__).parents[2]
LIBRARIES = ("hypothesis", "pydantic", "prometheus_client", "click", "aiohttp", "google_crc32c")
LONGEST = 300.0
"""Seconds for all tests of one mutant. A fault that makes them endless is noticed."""

SLICE = 400
"""Tests of one pytest run; the fastest ones run first."""


class Verdict(Enum):
    """What became of a mutant."""

    KILLED = "killed"
    TIMED_OUT = "timed out"
    SURVIVED = "survived"
    NOT_EXECUTED = "not executed by any test"

    @property
    def is_noticed(self) -> bool:
        return self in (Verdict.KILLED, Verdict.TIMED_OUT)


class Workbench:
    """A copy of the code in which one fault at a time is put."""

    def __init__(self, folder: Path) -> None:
        self._code = folder / "operator"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(ROOT / "operator", self._code, ignore=shutil.ignore_patterns("__pycache__"))
        self._log = folder / "log"
        for name in LIBRARIES:
            importlib.import_module(name)
        loaded = [each for each in sys.modules if each.split(".")[0] == "postroad"]
        if loaded:
            raise RuntimeError(f"{loaded} are imported: a fork would test them unchanged")

    def verdict(self, fault: Fault, tests: Sequence[str]) -> Verdict:
        """Run tests, named by node id, against the fault, until one fails."""
        if not tests:
            return Verdict.NOT_EXECUTED
        target = self._code / fault.path
        source = target.read_text()
        target.write_text(mutated(source, fault))
        try:
            return self._run(tests)
        finally:
            target.write_text(source)

    def _run(self, tests: Sequence[str]) -> Verdict:
        until = time.monotonic() + LONGEST
        for start in range(0, len(tests), SLICE):
            status = self._forked(tests[start : start + SLICE], until)
            if status is None:
                return Verdict.TIMED_OUT
            if status != 0:
                return Verdict.KILLED
        return Verdict.SURVIVED

    def _forked(self, tests: Sequence[str], until: float) -> int | None:
        """Return pytest's exit code, None when the time was over."""
        child = os.fork()
        if child == 0:
            os.setpgid(0, 0)
            self._test(tests)
        while time.monotonic() < until:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.05)
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return None

    def _test(self, tests: Sequence[str]) -> None:
        """Run pytest in this process, and end it."""
        code = 99
        try:
            descriptor = os.open(self._log, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
            os.dup2(descriptor, 1)
            os.dup2(descriptor, 2)
            os.chdir(ROOT)
            # A cached module of the mutant before could have the same size and second.
            sys.dont_write_bytecode = True
            os.environ["PYTHONPATH"] = f"{self._code}:{ROOT / 'tests'}"
            sys.path[:0] = [str(self._code)]
            paths = f"pythonpath={self._code} {ROOT / 'tests'}"
            options = ["-x", "-q", "-p", "no:cacheprovider", "--tb=line", "-o", paths]
            code = int(pytest.main([*options, *tests]))
        finally:
            os._exit(code)
