"""What a pytest run in a fork writes down while it runs, and what can be read from that.

A line is written before and after each test, because a fork that hangs or is killed cannot report
afterwards. Where the module with the fault is loaded from a copy, the last line has its file.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import pytest


class Notes:
    """A pytest plugin that writes the lines. `copy` is where a copy of the code lies: a doctest
    there has the name of the one in the code; `module` is loaded from there. Of what pytest
    collects, only the `chosen` tests run, in their order."""

    def __init__(
        self, file: TextIO, module: str = "", copy: str = "", chosen: Sequence[str] = ()
    ) -> None:
        self._file = file
        self._module = module
        self._copy = copy
        self._chosen = chosen
        self.has_failed = False

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write("failed", self._name(report.nodeid), str(report.longrepr))

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        collected = {self._name(each.nodeid): each for each in items}
        items[:] = [collected[each] for each in self._chosen if each in collected]
        for each in self._chosen:
            if each not in collected:
                self._write("missing", each)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._write("started", self._name(nodeid))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.has_failed = True
            crash = getattr(report.longrepr, "reprcrash", None)
            self._write(
                "failed",
                self._name(report.nodeid),
                crash.message if crash else str(report.longrepr),
            )
        elif report.skipped:
            self._write("skipped", self._name(report.nodeid))

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._write("finished", self._name(nodeid))

    def pytest_sessionfinish(self) -> None:
        loaded = sys.modules.get(self._module)
        self._write("loaded", str(loaded.__file__) if loaded else "")

    def _name(self, nodeid: str) -> str:
        return nodeid.removeprefix(self._copy)

    def _write(self, *words: str) -> None:
        print(json.dumps(words), file=self._file, flush=True)


@dataclass
class Outcome:
    """What a run wrote down; `code` is its exit code, None where it was killed for hanging."""

    code: int | None = None
    started: list[str] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    """Tests that pytest did not find: a fault can change their parameters."""
    failed: str = ""
    why: str = ""
    loaded: str = ""

    @property
    def culprit(self) -> str:
        """The test that failed, or that was running when the fork hung or died."""
        open_ended = [each for each in self.started if each not in self.finished]
        return self.failed or (open_ended[-1] if open_ended else "")

    def suspects(self, tests: Sequence[str]) -> Sequence[str]:
        """The tests that may have noticed the fault: the culprit, those of a file that cannot be
        imported, or all that ran where each passed and pytest failed behind them."""
        if not self.culprit or self.culprit in tests:
            return [self.culprit] if self.culprit else tests
        return [each for each in tests if each.startswith(f"{self.culprit}::")] or tests

    @property
    def is_passed(self) -> bool:
        """Say whether no test failed that ran; none may have been found."""
        return self.code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)

    @property
    def is_hung(self) -> bool:
        return self.code is None or "Timeout (>" in self.why

    def ran_all(self, tests: Sequence[str]) -> bool:
        """Say whether each of these tests that exists ran to its end and was not skipped."""
        return set(tests) - set(self.missing) <= set(self.finished) - set(self.skipped)


def read(path: Path, code: int | None) -> Outcome:
    """Return what a run wrote into a file, without a line that it still writes."""
    outcome = Outcome(code)
    for line in path.read_text().split("\n")[:-1]:
        word, *rest = json.loads(line)
        if word == "failed" and not outcome.failed:
            outcome.failed, outcome.why = rest[0], rest[1] if len(rest) > 1 else ""
        elif word == "loaded":
            outcome.loaded = rest[0]
        elif word in ("started", "finished", "skipped", "missing"):
            getattr(outcome, word).append(rest[0])
    return outcome
