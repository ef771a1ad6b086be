"""Judges faults by running tests in forks of this process until one fails.

A verdict is checked before it counts: a survivor's tests must all have run to their end, and the
test that failed or hung against the fault must pass without it, in a fork like that one.
"""

from __future__ import annotations

import os
import resource
import signal
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import NoReturn

import pytest

from mutants.faults import Fault
from mutants.outcome import Outcome, read

HANGING = 60.0
"""Seconds for one test, unless it needs a tenth of that without a fault: then ten times as many."""

MEMORY = 6 << 30
"""Bytes of address space of a fork: a fault can make a list endless."""

BROKEN = 99
"""The exit code of a fork in which pytest could not run, or not end: a fault may break what pytest
cleans up behind its tests."""

SLICE = 400
"""Tests of one fork; the fastest ones run first."""


class Verdict(Enum):
    """What became of a mutant."""

    KILLED = "killed"
    HUNG = "hung"
    SURVIVED = "survived"
    NOT_EXECUTED = "not executed by any test"
    UNDECIDED = "undecided"

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


class Judge(ABC):
    """Judges faults with tests. `seconds`: how long each test takes without a fault. `folder` is
    for what the forks write."""

    def __init__(self, folder: Path, seconds: Mapping[str, float]) -> None:
        self._seconds = seconds
        self.log = folder / "log"
        self.notes = folder / "notes"
        self.unsound: set[str] = set()
        """Tests that fail in a fork without any fault: they judge no mutant."""

    def judge(self, fault: Fault, tests: Sequence[str]) -> Judged:
        """Run tests, named by node id, until one fails with the fault and passes without it. A test
        that pytest does not find with the fault has not noticed it."""
        ran, missing = 0, set[str]()
        while left := [each for each in tests if each not in self.unsound | missing][ran:]:
            part = left[:SLICE]
            outcome = self.run(part, fault.path, fault)
            if outcome.is_passed:
                if not outcome.ran_all(part):
                    raise RuntimeError(f"{fault}: not all tests ran, see {self.log}")
                ran += len(part) - len(outcome.missing)
                missing.update(outcome.missing)
                continue
            if outcome.code == pytest.ExitCode.USAGE_ERROR:
                return Judged(Verdict.UNDECIDED, why="pytest refused to run", ran=ran)
            suspects = outcome.suspects(part)
            if self.run(suspects, fault.path, None).code == 0:
                verdict = Verdict.HUNG if outcome.is_hung else Verdict.KILLED
                why = outcome.why or f"exit code {outcome.code}"
                return Judged(verdict, suspects[0], why, ran + len(outcome.started))
            if len(suspects) > 1:  # for example on a crowded machine
                return Judged(Verdict.UNDECIDED, why="its tests failed without it too", ran=ran)
            self.unsound.add(suspects[0])
        if missing and not ran:
            return Judged(Verdict.UNDECIDED, why="none of its tests exists with it")
        return Judged(Verdict.SURVIVED if ran else Verdict.NOT_EXECUTED, ran=ran)

    @abstractmethod
    def run(self, tests: Sequence[str], path: str, fault: Fault | None) -> Outcome:
        """Run tests with a fault in a module, or without one."""

    def limit(self, test: str) -> float:
        """Return after how many seconds a test hangs."""
        return max(HANGING, 10 * self._seconds.get(test, 0.0))

    def forked(self, run: Callable[[], int]) -> Outcome:
        """Run tests in a fork, which may take memory and time up to the limits, and writes notes;
        its processes end with it."""
        self.notes.write_text("")
        child = os.fork()
        if child == 0:
            self._end_with(run)
        outcome = read(self.notes, self._awaited(child))
        if outcome.code == BROKEN and not outcome.started:
            raise RuntimeError(f"pytest did not run: {self.log.read_text()}")
        return outcome

    def _end_with(self, run: Callable[[], int]) -> NoReturn:
        code = BROKEN
        try:
            os.setpgid(0, 0)
            descriptor = os.open(self.log, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
            os.dup2(descriptor, 1)
            os.dup2(descriptor, 2)
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            code = run()
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(code)

    def _awaited(self, child: int) -> int | None:
        """Return the fork's exit code, None when a test took so long that the fork was killed."""
        noted, until = -1, 0.0
        while True:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                _kill_group(child)
                return os.waitstatus_to_exitcode(status)
            if (size := self.notes.stat().st_size) != noted:
                limit = self.limit(read(self.notes, None).culprit)
                noted, until = size, time.monotonic() + limit
            if time.monotonic() > until:
                break
            time.sleep(0.01)
        _kill_group(child)
        os.waitpid(child, 0)
        return None


def _kill_group(leader: int) -> None:
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        pass
