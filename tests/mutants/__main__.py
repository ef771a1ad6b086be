"""`python -m mutants ROOM`: draw faults, run the tests that execute them, list the survivors."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from mutants.choosing import Measured, executing, importing, measured, within
from mutants.collected import CollectedTests
from mutants.coverage_by_test import RESULT_VARIABLE, SOURCE_VARIABLE
from mutants.faults import Fault, drawn, faults_in
from mutants.functions import changed_functions
from mutants.judging import Judge, Judged, Verdict
from mutants.workbench import ROOT, Workbench

SERVERS = "rabbitmq,cassandra,s3"


@dataclass(frozen=True)
class Room:
    """The tests that have to notice a fault in it; its folders, where they are not those of its
    name; the servers that its tests need."""

    tests: tuple[str, ...]
    folders: tuple[str, ...] = ()
    servers: str = ""


ROOMS: Mapping[str, Room] = {
    "domain": Room(("tests/unit/domain", "tests/unit/distributed", "tests/unit/configuration")),
    "distributed": Room(("tests/unit/distributed", "tests/contract/test_distributed_queue.py",
                         "tests/contract/test_memory_queue.py")),
    "embedded": Room(("tests/unit/embedded", "tests/contract/test_embedded_queue.py",
                      "tests/crash")),
    "routing": Room(("tests/unit/routing", "tests/unit/adapters/test_dns_caching.py",
                     "tests/unit/adapters/test_dns_servers.py", "tests/unit/delivery_settings",
                     "tests/integration/test_routing_over_dns.py")),
    "scheduling": Room(("tests/unit/scheduling",)),
    "controller": Room(("tests/unit/controller", "tests/contract/test_claims.py")),
    "configuration": Room(("tests/unit/configuration", "tests/unit/distributed")),
    "intake": Room(("tests/unit/intake",)),
    "worker": Room(("tests/unit/worker",)),
    "smtp": Room(
        ("tests/unit/adapters", "tests/unit/intake", "tests/contract/test_connections.py",
         "tests/integration/test_connection_wire.py", "tests/integration/test_smtp_reply_table.py",
         "tests/integration/test_smtp_next_hops.py", "tests/integration/test_smtp_relay.py",
         "tests/integration/test_smtp_peers.py", "tests/integration/test_smtp_intake.py",
         "tests/integration/test_slow_sender.py", "tests/integration/test_implicit_tls.py",
         "tests/integration/test_tls_intake.py"),
    ),
    "adapters": Room(
        ("tests/unit/adapters", "tests/contract/test_brokers.py", "tests/contract/test_views.py",
         "tests/contract/test_blobs.py", "tests/contract/test_histories.py",
         "tests/contract/test_claims.py", "tests/contract/test_queue_users.py",
         "tests/integration/test_rabbitmq_*.py", "tests/integration/test_cassandra_*.py",
         "tests/integration/test_s3_*.py", "tests/integration/test_connecting.py"),
        ("adapters/rabbitmq", "adapters/cassandra", "adapters/s3"), SERVERS,
    ),
}  # fmt: skip

BUILD = ROOT / "build" / "mutants"
CODE = ROOT / "operator"


def measure(folders: Sequence[Path], tests: Sequence[str], result: Path) -> None:
    """Run the room's tests once. Raises: SystemExit where pytest could not run them."""
    environment = {
        **os.environ,
        "PYTHONPATH": f"{CODE}:{ROOT / 'tests'}",
        RESULT_VARIABLE: str(result),
        SOURCE_VARIABLE: os.pathsep.join(map(str, folders)),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "mutants.coverage_by_test", *tests]
    if subprocess.run(command, cwd=ROOT, env=environment).returncode not in (0, 1):
        raise SystemExit("mutants: the tests cannot run")


class Draw:
    """The faults that were drawn, and what became of them."""

    def __init__(self, faults: Sequence[Fault], known: Measured, seconds: float) -> None:
        self._known = known
        self._seconds = seconds
        self.found: dict[Fault, Judged] = {}
        self.unsound = set(known.failed)
        self._at_import = [each for each in faults if self._runs_at_import(each)]
        self._in_functions = [each for each in faults if each not in self._at_import]

    def judge(self, folder: Path, tests: Sequence[str]) -> None:
        """Judge all. The faults that need the code not to be imported yet come first."""
        workbench = Workbench(folder / "workbench", self._known.seconds)
        self._judge(workbench, self._at_import, importing)
        paths = {each.path for each in self._in_functions}
        collected = CollectedTests(folder, CODE, paths, self._known.seconds, self._judge_functions)
        # The libraries are imported before pytest could rewrite their assertions.
        options = ["-q", "-s", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
        pytest.main([*options, "-p", "no:cacheprovider", *tests], [collected])
        if collected.error is not None:
            raise collected.error
        if len(self.found) < len(self._at_import) + len(self._in_functions):
            raise SystemExit("mutants: the tests cannot be collected")

    def _judge_functions(self, judge: Judge) -> None:
        self._judge(judge, self._in_functions, executing)

    def _judge(
        self,
        judge: Judge,
        faults: Sequence[Fault],
        tests_of: Callable[[Fault, Measured], Sequence[str]],
    ) -> None:
        for fault in faults:
            tests = within(tests_of(fault, self._known), self._known, self._seconds)
            judged = self.found[fault] = judge.judge(fault, tests)
            print(f"{len(self.found)}: {described(fault, judged)}", flush=True)
        self.unsound |= judge.unsound

    def _runs_at_import(self, fault: Fault) -> bool:
        """Whether a fault has no effect on tests that were collected without it. A function that
        runs at import, and in tests, has the fault only in these."""
        if changed_functions(CODE / fault.path, fault) is None:
            return True
        tests = self._known.lines.get(fault.path, {}).get(str(fault.line))
        return not tests and fault.line in self._known.at_import.get(fault.path, ())


def report(room: str, seed: int, found: Mapping[Fault, Judged], unsound: set[str]) -> str:
    """Return the summary and the survivors."""
    noticed = [each for each in found.values() if each.verdict.is_noticed]
    hung = sum(each.verdict is Verdict.HUNG for each in noticed)
    share = f"{len(noticed) / max(1, len(found)):.0%}"
    lines = [f"{room}, seed {seed}: {len(noticed)} of {len(found)} killed ({share}), {hung} hung"]
    for fault, judged in found.items():
        if not judged.verdict.is_noticed:
            code = (CODE / fault.path).read_text().splitlines()[fault.line - 1]
            lines.append(f"{described(fault, judged)}: {code.strip()}")
    lines += [f"fails without a fault, and judged no mutant: {each}" for each in sorted(unsound)]
    return "\n".join(lines)


def _pool(folders: Sequence[Path], at: str) -> list[Fault]:
    """Return the faults of a room, of one module, or of one line."""
    wanted, _, line = at.partition(":")
    return [
        fault
        for folder in folders
        for path in sorted(folder.rglob("*.py"))
        if (name := str(path.relative_to(CODE))) == wanted or not at
        for fault in faults_in(name, path.read_text())
        if not line or fault.line == int(line)
    ]


def described(fault: Fault, judged: Judged) -> str:
    place = f"{fault.path}:{fault.line}: {fault.kind}: {judged.verdict.value}"
    why = " ".join(judged.why.split())[:100]
    by = f" by {judged.test}: {why}" if judged.test else why and f": {why}"
    return f"{place} ({judged.ran} tests ran){by}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__)
    parser.add_argument("room", choices=sorted(ROOMS))
    parser.add_argument("--count", type=int, default=60, help="mutants to draw")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--at", default="", help="draw only here: postroad/domain/mail/mail.py, or :113 of it"
    )
    parser.add_argument("--again", action="store_true", help="with the coverage of the run before")
    parser.add_argument("--tests", nargs="+", help="files of tests, instead of the room's")
    parser.add_argument(
        "--most", type=float, default=60.0, help="seconds of tests for each mutant, fastest first"
    )
    options = parser.parse_args()
    room = ROOMS[options.room]
    os.environ.update(POSTROAD_REQUIRE=room.servers)
    folders = [CODE / "postroad" / each for each in room.folders or [options.room]]
    files = [file for each in options.tests or room.tests for file in sorted(ROOT.glob(each))]
    tests = [str(each) for each in (*files, *folders)]  # the folders have doctests
    BUILD.mkdir(parents=True, exist_ok=True)
    name = options.room.replace("/", "-")
    result = BUILD / f"{name}.json"
    if not options.again:
        measure(folders, tests, result)
    faults = drawn(_pool(folders, options.at), options.count, options.seed)
    draw = Draw(faults, measured(result), options.most)
    with tempfile.TemporaryDirectory(dir=BUILD) as folder:
        draw.judge(Path(folder), tests)
    text = report(options.room, options.seed, draw.found, draw.unsound)
    (BUILD / f"{name}.md").write_text(text + "\n")
    print(text)
    return 0


sys.exit(main())
