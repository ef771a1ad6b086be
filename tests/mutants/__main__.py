"""`python -m mutants ROOM`: draw faults, run the tests that execute them, list the survivors."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from mutants.coverage_by_test import RESULT_VARIABLE, SOURCE_VARIABLE
from mutants.faults import Fault, drawn, faults_in
from mutants.running import ROOT, Verdict, Workbench

ROOMS: Mapping[str, tuple[str, ...]] = {
    "domain": ("tests/unit/domain", "tests/unit/distributed", "tests/unit/configuration"),
    "distributed": ("tests/unit/distributed", "tests/contract/test_distributed_queue.py",
                    "tests/contract/test_memory_queue.py"),
    "embedded": ("tests/unit/embedded", "tests/contract/test_embedded_queue.py", "tests/crash"),
    "configuration": ("tests/unit/configuration", "tests/unit/distributed"),
    "intake": ("tests/unit/intake",),
    "worker": ("tests/unit/worker",),
    "adapters/network": ("tests/unit/adapters",),
}  # fmt: skip
"""Room and the tests that have to notice a fault in it. None needs a server."""

BUILD = ROOT / "build" / "mutants"


def measured(room: str, folder: Path) -> Mapping[str, Mapping[str, Sequence[str]]]:
    """Run the room's tests once; return by path and line the tests that execute it, the fastest
    first. Raises: SystemExit where a test fails without any fault."""
    result = folder / "coverage.json"
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT / 'operator'}:{ROOT / 'tests'}",
        RESULT_VARIABLE: str(result),
        SOURCE_VARIABLE: str(ROOT / "operator/postroad" / room),
    }
    tests = [each for each in ROOMS[room] if (ROOT / each).exists()]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "mutants.coverage_by_test"]
    if subprocess.run([*command, *tests], cwd=ROOT, env=environment).returncode:
        raise SystemExit("mutants: a test fails without any fault")
    found = json.loads(result.read_text())
    seconds = found["seconds"]
    return {
        str(Path(path).relative_to(ROOT / "operator")): {
            line: sorted(tests, key=lambda each: seconds.get(each, 0.0))
            for line, tests in by_line.items()
        }
        for path, by_line in found["lines"].items()
    }


def tests_of(fault: Fault, lines: Mapping[str, Mapping[str, Sequence[str]]]) -> Sequence[str]:
    """Return the tests that execute a line; of a line that runs at import, all of its module."""
    by_line = lines.get(fault.path, {})
    if tests := by_line.get(str(fault.line)):
        return tests
    return list(dict.fromkeys(test for tests in by_line.values() for test in tests))


def report(room: str, options: argparse.Namespace, verdicts: Mapping[Fault, Verdict]) -> str:
    """Return the summary and the survivors."""
    noticed = sum(each.is_noticed for each in verdicts.values())
    share = f"{noticed / len(verdicts):.0%}"
    lines = [f"{room}, seed {options.seed}: {noticed} of {len(verdicts)} mutants killed ({share})"]
    for fault, verdict in verdicts.items():
        if not verdict.is_noticed:
            code = (ROOT / "operator" / fault.path).read_text().splitlines()[fault.line - 1]
            lines.append(
                f"{fault.path}:{fault.line}: {fault.kind}: {verdict.value}: {code.strip()}"
            )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__)
    parser.add_argument("room", choices=sorted(ROOMS))
    parser.add_argument("--count", type=int, default=60, help="mutants to draw")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    pool = [
        fault
        for path in sorted((ROOT / "operator/postroad" / options.room).rglob("*.py"))
        for fault in faults_in(str(path.relative_to(ROOT / "operator")), path.read_text())
    ]
    verdicts: dict[Fault, Verdict] = {}
    with tempfile.TemporaryDirectory() as folder:
        lines = measured(options.room, Path(folder))
        workbench = Workbench(Path(folder) / "workbench")
        for number, fault in enumerate(drawn(pool, options.count, options.seed), 1):
            verdict = verdicts[fault] = workbench.verdict(fault, tests_of(fault, lines))
            print(f"{number}: {fault.path}:{fault.line}: {fault.kind}: {verdict.value}", flush=True)
    text = report(options.room, options, verdicts)
    BUILD.mkdir(parents=True, exist_ok=True)
    (BUILD / f"{options.room.replace('/', '-')}.md").write_text(text + "\n")
    print(text)
    return 0


sys.exit(main())
