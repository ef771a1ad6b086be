"""Runs tests against a copy of the code with one fault, in a fork of a process that has imported
the libraries: importing them takes longer than most tests.

A verdict is checked before it counts. The fork must have loaded the module from the copy; a
survivor's tests must all have run to their end; and the test that failed or hung against the fault
must pass without it, in a fork like that one.
"""

from __future__ import annotations

import importlib
import os
import resource
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import pytest

from mutants.faults import Fault, mutated
from mutants.outcome import Notes, Outcome, read

ROOT = Path(__file__).parents[2]
LIBRARIES = ("hypothesis", "pydantic", "prometheus_client", "click", "aiohttp", "google_crc32c")
HANGING = 60.0
"""Seconds for one test, unless it needs a tenth of that without a fault: then ten times as many."""

MEMORY = 6 << 30
"""Bytes of address space of a fork: a fault can make a list endless."""

BROKEN = 99
"""The exit code of a fork in which pytest could not run, or not end: a fault may break what pytest
cleans up behind its tests."""

SLICE = 400
"""Tests of one pytest run; the fastest ones run first."""


class Verdict(Enum):
    """What became of a mutant."""

    KILLED = "killed"
    HUNG = "hung"
    SURVIVED = "survived"
    NOT_EXECUTED = "not executed by any test"
    UNDECIDED = "undecided, since its tests failed without it too"

    @property
    def is_noticed(self) -> bool:
        return self in (Verdict.KILLED, Verdict.HUNG)


@dataclass(frozen=True)
class Judged:
    """A verdict, the test that noticed the fault, and how many tests ran."""

    verdict: Verdict
    test: str = ""
    why: str = ""
    ran: int = 0


class Workbench:
    """A copy of the code in which one fault at a time is put, in a folder below that of pytest's
    configuration. `seconds`: how long each test takes without a fault."""

    def __init__(self, folder: Path, seconds: Mapping[str, float]) -> None:
        self._code = folder / "operator"
        self._seconds = seconds
        self.unsound: set[str] = set()
        """Tests that fail in a fork without any fault: they judge no mutant."""
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(ROOT / "operator", self._code, ignore=shutil.ignore_patterns("__pycache__"))
        self._log = folder / "log"
        self._notes = folder / "notes"
        for name in LIBRARIES:
            importlib.import_module(name)
        loaded = [each for each in sys.modules if each.split(".")[0] == "postroad"]
        if loaded:
            raise RuntimeError(f"{loaded} are imported: a fork would test them unchanged")

    def judge(self, fault: Fault, tests: Sequence[str]) -> Judged:
        """Run tests, named by node id, until one fails with the fault and passes without it."""
        target = self._code / fault.path
        source = target.read_text()
        changed = mutated(source, fault)
        ran = 0
        while left := [each for each in tests if each not in self.unsound][ran:]:
            part = left[:SLICE]
            target.write_text(changed)
            try:
                outcome = self._forked(part, fault.path)
            finally:
                target.write_text(source)
            if outcome.code == 0:
                if not outcome.ran_all(part):
                    raise RuntimeError(f"{fault}: not all tests ran, see {self._log}")
                ran += len(part)
                continue
            suspects = outcome.suspects(part)
            culprit = suspects[0]
            if self._stand(suspects, fault.path):
                verdict = Verdict.HUNG if outcome.is_hung else Verdict.KILLED
                why = outcome.why or f"exit code {outcome.code}"
                return Judged(verdict, culprit, why, ran + len(outcome.started))
            if len(suspects) > 1:
                return Judged(Verdict.UNDECIDED, ran=ran)  # for example on a crowded machine
            self.unsound.add(culprit)
        return Judged(Verdict.SURVIVED if ran else Verdict.NOT_EXECUTED, ran=ran)

    def _stand(self, tests: Sequence[str], path: str) -> bool:
        """Say whether tests pass without a fault."""
        return self._forked(tests, path).code == 0

    def _forked(self, tests: Sequence[str], path: str) -> Outcome:
        """Run tests in a fork."""
        self._notes.write_text("")
        child = os.fork()
        if child == 0:
            os.setpgid(0, 0)
            self._test(tests, path, 2 * max(map(self._limit, tests)))
        outcome = read(self._notes, self._awaited(child))
        if outcome.code == BROKEN and not outcome.started:
            raise RuntimeError(f"pytest did not run: {self._log.read_text()}")
        if outcome.loaded and not outcome.loaded.startswith(str(self._code)):
            raise RuntimeError(f"the tests loaded {outcome.loaded}, which has no fault")
        return outcome

    def _awaited(self, child: int) -> int | None:
        """Return pytest's exit code, None when a test took so long that the fork was killed."""
        noted, until = -1, 0.0
        while True:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            if (size := self._notes.stat().st_size) != noted:
                limit = self._limit(read(self._notes, None).culprit)
                noted, until = size, time.monotonic() + limit
            if time.monotonic() > until:
                break
            time.sleep(0.05)
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return None

    def _limit(self, test: str) -> float:
        """Return after how many seconds a test hangs."""
        return max(HANGING, 10 * self._seconds.get(test, 0.0))

    def _test(self, tests: Sequence[str], path: str, limit: float) -> None:
        """Run pytest in this process, and end it."""
        code = BROKEN
        try:
            descriptor = os.open(self._log, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
            os.dup2(descriptor, 1)
            os.dup2(descriptor, 2)
            os.chdir(ROOT)
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            # A cached module of the mutant before could have the same size and second.
            sys.dont_write_bytecode = True
            os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
            os.environ["PYTHONPATH"] = f"{self._code}:{ROOT / 'tests'}"
            sys.path[:0] = [str(self._code)]
            paths = f"pythonpath={self._code} {ROOT / 'tests'}"
            options = ["-x", "-q", "-p", "no:cacheprovider", "--tb=line", "-o", paths]
            # The libraries are imported before pytest could rewrite their assertions.
            options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
            module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            with self._notes.open("a") as file:
                timeout = f"--timeout={limit:.0f}"
                copy = os.path.relpath(self._code.parent, ROOT) + "/"
                notes = Notes(file, module, copy)
                code = int(pytest.main([*options, timeout, *map(self._placed, tests)], [notes]))
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(code)

    def _placed(self, test: str) -> str:
        """Return the node id in the copy, if it is a doctest's."""
        path, _, name = test.partition("::")
        return f"{self._code.parent / path}::{name}" if path.startswith("operator/") else test
