"""Verdicts on mutants: which test noticed a fault, and which tests are not believed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from mutants.faults import Fault
from mutants.judging import Judge, Judged, Verdict
from mutants.outcome import Outcome, read

ROOT = Path(__file__).parents[3]
DURATIONS = "tests/unit/domain/test_durations.py"
NOTICES = f"{DURATIONS}::test_sixty_minutes_are_written_as_an_hour"
PASSES_ANYHOW = f"{DURATIONS}::test_what_is_no_duration_is_refused_with_an_example[h]"
DOCTEST = (
    "operator/postroad/domain/values/instants.py::postroad.domain.values.instants.parse_duration"
)
IS_NOT_THERE = f"{DURATIONS}::test_that_is_not_there"

SCRIPT = """
import json, sys
from pathlib import Path
import pytest
from mutants.collected import CollectedTests
from mutants.faults import faults_in
from mutants.workbench import ROOT, Workbench

path = "postroad/domain/values/instants.py"
code = (ROOT / "operator" / path).read_text()
line = code[:code.index("return timedelta(hours=")].count("\\n") + 1
[fault] = [
    each for each in faults_in(path, code)
    if (each.line, each.kind) == (line, "change what is returned")
]
folder, cases = Path(sys.argv[2]), json.loads(sys.argv[3])

def judge_all(judge):
    for tests in cases:
        judged = judge.judge(fault, tests)
        print(json.dumps([judged.verdict.name, judged.test, judged.ran]))

if sys.argv[1] == "workbench":
    judge_all(Workbench(folder / "bench", {}))
else:
    judge = CollectedTests(folder, ROOT / "operator", [path], {}, judge_all)
    pytest.main(["-qq", "-s", "-p", "no:cacheprovider", *sys.argv[4:]], [judge])
    if judge.error:
        raise judge.error
"""


def judged(judge: str, cases: Sequence[Sequence[str]], *collected: str) -> list[object]:
    """Return the verdicts of a process of its own: this one has imported the code."""
    (ROOT / "build").mkdir(exist_ok=True)
    with TemporaryDirectory(dir=ROOT / "build") as folder:
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, judge, folder, json.dumps(cases), *collected],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'operator'}:{ROOT / 'tests'}"},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]


def test_a_mutant_is_killed_by_a_test_that_passes_without_its_fault() -> None:
    cases = [
        [PASSES_ANYHOW],
        [PASSES_ANYHOW, NOTICES],
        [IS_NOT_THERE],
        [IS_NOT_THERE, NOTICES],
        [PASSES_ANYHOW, DOCTEST],
    ]

    assert judged("workbench", cases) == [
        ["SURVIVED", "", 1],
        ["KILLED", NOTICES, 2],
        ["UNDECIDED", "", 0],
        ["KILLED", NOTICES, 1],
        ["KILLED", DOCTEST, 2],
    ]


def test_collected_tests_judge_as_those_that_import_the_fault() -> None:
    (ROOT / "build").mkdir(exist_ok=True)
    with TemporaryDirectory(dir=ROOT / "build") as folder:
        fails = Path(folder) / "test_fails.py"
        fails.write_text("def test_that_fails(): assert False")
        always = f"{fails.relative_to(ROOT)}::test_that_fails"
        cases = [
            [PASSES_ANYHOW],
            [PASSES_ANYHOW, NOTICES],
            [always, NOTICES],
            [PASSES_ANYHOW, DOCTEST, NOTICES],
        ]
        found = judged("collected", cases, DURATIONS, "operator/postroad/domain", str(fails))

    assert found == [
        ["SURVIVED", "", 1],
        ["KILLED", NOTICES, 2],
        ["KILLED", NOTICES, 1],
        ["KILLED", DOCTEST, 2],
    ]


def test_the_running_test_is_the_culprit_of_a_fork_that_hangs(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    words = [("started", "a"), ("finished", "a"), ("started", "b")]
    notes.write_text("".join(json.dumps(each) + "\n" for each in words) + '["finished", "b')

    outcome = read(notes, None)

    assert (outcome.culprit, outcome.is_hung) == ("b", True)


def test_where_pytest_fails_behind_its_tests_each_is_a_suspect() -> None:
    assert Outcome(99, ["a", "b"], ["a", "b"]).suspects(["a", "b"]) == ["a", "b"]
    assert Outcome(1, ["a", "b"], ["a", "b"], failed="b").suspects(["a", "b"]) == ["b"]


def test_a_test_that_was_skipped_did_not_run() -> None:
    assert Outcome(0, finished=["a", "b"]).ran_all(["a", "b"])
    assert not Outcome(0, finished=["a", "b"], skipped=["b"]).ran_all(["a", "b"])
    assert not Outcome(0, finished=["a"]).ran_all(["a", "b"])


def test_tests_that_are_not_found_did_not_have_to_run() -> None:
    assert Outcome(0, finished=["a"], missing=["b"]).ran_all(["a", "b"])


def test_a_file_that_cannot_be_imported_makes_its_tests_suspects() -> None:
    tests = ["x.py::a", "y.py::a", "y.py::b"]

    assert Outcome(2, failed="y.py").suspects(tests) == ["y.py::a", "y.py::b"]


class ScriptedJudge(Judge):
    """Runs nothing: has the outcome of each run with the fault, and passes without it."""

    def __init__(self, folder: Path, outcomes: Sequence[Outcome]) -> None:
        super().__init__(folder, {})
        self.outcomes = list(outcomes)

    def run(self, tests: Sequence[str], path: str, fault: Fault | None) -> Outcome:
        return self.outcomes.pop(0) if fault else Outcome(0, finished=list(tests))


@pytest.mark.parametrize(
    ("outcomes", "verdict"),
    [
        ([Outcome(1, ["a"], ["a"], failed="a")], Verdict.KILLED),
        ([Outcome(2, failed="a.py")], Verdict.KILLED),
        ([Outcome(4)], Verdict.UNDECIDED),
        ([Outcome(5, missing=["a", "b"])], Verdict.UNDECIDED),
        ([Outcome(0, ["b"], ["b"], missing=["a"])], Verdict.SURVIVED),
    ],
    ids=["a test fails", "no import", "pytest refuses to run", "no test found", "one not found"],
)
def test_only_what_a_test_notices_counts(
    tmp_path: Path, outcomes: Sequence[Outcome], verdict: Verdict
) -> None:
    found: Judged = ScriptedJudge(tmp_path, outcomes).judge(Fault("a.py", 1, "x", 1), ["a", "b"])

    assert found.verdict is verdict
    assert found.verdict.is_noticed == (verdict is Verdict.KILLED)
