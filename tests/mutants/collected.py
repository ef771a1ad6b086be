"""Judges faults in functions by tests that were collected once: a fork replaces the functions' code
and runs the tests. Importing and collecting them again would take longer than most tests.
"""

from __future__ import annotations

import gc
import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import pytest

from mutants.faults import Fault, module_of
from mutants.functions import LiveFunctions, changed_functions
from mutants.judging import Judge
from mutants.outcome import Notes, Outcome


class CollectedTests(Judge):
    """A pytest plugin that calls `judge_all` with itself instead of running the tests. `paths`: of
    the modules below `code` that get faults."""

    def __init__(
        self,
        folder: Path,
        code: Path,
        paths: Iterable[str],
        seconds: Mapping[str, float],
        judge_all: Callable[[Judge], None],
    ) -> None:
        super().__init__(folder, seconds)
        self._code = code
        self._paths = paths
        self._judge_all = judge_all
        self.error: Exception | None = None
        """Why not all were judged. pytest would print it and go on."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._session = session
        self._items = {each.nodeid: each for each in session.items}
        for path in self._paths:  # a test may import a module only when it runs
            importlib.import_module(module_of(path))
        self._functions = LiveFunctions()
        gc.collect()
        gc.freeze()  # else a collection in a fork would copy all that it looks at
        try:
            self._judge_all(self)
        except Exception as error:
            self.error = error
        return True

    def run(self, tests: Sequence[str], path: str, fault: Fault | None) -> Outcome:
        return self.forked(lambda: self._run(tests, path, fault))

    def _run(self, tests: Sequence[str], path: str, fault: Fault | None) -> int:
        if fault is not None:
            changed = changed_functions(self._code / path, fault)
            if not changed or not self._functions.change(changed):
                raise RuntimeError(f"{fault}: no function has its code")
        items = [self._items[each] for each in tests]
        with self.notes.open("a") as file:
            notes = Notes(file)
            self._session.config.pluginmanager.register(notes)
            for item, following in zip(items, [*items[1:], None], strict=True):
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if notes.has_failed:
                    break
            # A test that failed before the last one has left what its fixtures hold.
            self._session._setupstate.teardown_exact(None)
        return int(notes.has_failed)
