"""A pytest plugin: which lines each test executes, and how long it takes; which run at import.
Tests that are skipped are left out: they judge no mutant.

pytest runs it in a process of its own (`-p mutants.coverage_by_test`), where `coverage` measures
the modules of one room, whose folders stand in the environment; the node id of the running test is
the context of its lines.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import coverage
import pytest

RESULT_VARIABLE = "MUTANTS_RESULT"
SOURCE_VARIABLE = "MUTANTS_SOURCE"

_measured: coverage.Coverage | None = None
_seconds: dict[str, float] = {}
_skipped: set[str] = set()
_failed: set[str] = set()


def pytest_configure() -> None:
    global _measured
    folders = os.environ[SOURCE_VARIABLE].split(os.pathsep)
    _measured = coverage.Coverage(data_file=None, source=folders)
    _measured.start()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[Any]:
    assert _measured is not None
    _measured.switch_context(item.nodeid)
    try:
        return (yield)
    finally:
        _measured.switch_context("")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped:
        _skipped.add(report.nodeid)
    if report.failed:
        _failed.add(report.nodeid)
    _seconds[report.nodeid] = _seconds.get(report.nodeid, 0.0) + report.duration


def pytest_unconfigure() -> None:
    assert _measured is not None
    _measured.stop()
    data = _measured.get_data()
    contexts = {path: data.contexts_by_lineno(path) for path in data.measured_files()}
    result = {
        "lines": {
            path: {
                str(line): [each for each in tests if each and each not in _skipped]
                for line, tests in by_line.items()
            }
            for path, by_line in contexts.items()
        },
        "at_import": {
            path: [line for line, tests in by_line.items() if "" in tests]
            for path, by_line in contexts.items()
        },
        "seconds": {test: each for test, each in _seconds.items() if test not in _skipped},
        "failed": sorted(_failed),
    }
    Path(os.environ[RESULT_VARIABLE]).write_text(json.dumps(result))
