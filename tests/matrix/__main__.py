"""Run the contract suites over each leg and print a table of what each showed.

`python -m matrix [LEG...]`, all legs by default; `make test-matrix`. The servers of a leg are
started for it and removed after it; those it does not replace are the default stack's.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matrix.variants import (
    HELM4,
    KUBERNETES,
    Cassandra41,
    EncryptedCassandra,
    EncryptedRabbitMQ,
    EncryptedS3,
    NewestRabbitMQ,
    OtherKubernetes,
    authorities,
)
from stack import exports, tools
from stack.errors import StackError
from stack.local import open_stack
from stack.native import NativeServer
from stack.progress import Progress
from stack.rabbitmq import InstalledRabbitMQ

CONTRACTS = (
    "tests/contract",
    "tests/integration/test_connecting.py",
    "tests/integration/test_operator_connections.py",
)
CONTROLLER = tuple(
    f"tests/controller/test_{of}.py"
    for of in (
        *("admission", "admission_policies", "api_contract", "children", "claims", "conditions"),
        *("configuration", "deletion", "delivery", "placement", "plan", "queues", "rights"),
        "upgrades",
    )
)
"""The CRDs with their rules in CEL, policies, roles, reconciles. What is left out depends on the
operator's program, not on the API server's release."""
CHART = ("tests/unit/chart", "tests/e2e/test_chart.py", "tests/e2e/test_install_page.py")
"""Rendering, and releases in a cluster with pods."""

DEFAULT = ("rabbitmq", "cassandra", "s3")


@dataclass(frozen=True)
class Leg:
    """Servers that replace default ones, and the tests that run over them."""

    name: str
    servers: Sequence[type[NativeServer]]
    tests: Sequence[str] = CONTRACTS
    helm: str = ""
    """The version of Helm, with which tests run that need it and a whole cluster."""


LEGS = (
    Leg("default", ()),
    Leg("rabbitmq3", (InstalledRabbitMQ,)),
    Leg("rabbitmq4.3", (NewestRabbitMQ,), (*CONTRACTS, "tests/matrix/test_rabbitmq4.py")),
    Leg("cassandra4.1", (Cassandra41,)),
    Leg("helm4", (), CHART, helm=HELM4),
    Leg("tls", (EncryptedRabbitMQ, EncryptedCassandra, EncryptedS3)),
    *(
        Leg(f"kubernetes{release.version.rpartition('.')[0]}", (release,), CONTROLLER)
        for release in KUBERNETES
    ),
)


def run(leg: Leg, folder: Path) -> str:
    """Run one leg; return its line of the table."""
    progress = Progress()
    wanted = (*DEFAULT, "kubernetes") if leg.helm else DEFAULT
    printed = exports.render(open_stack(*wanted).environments(wanted), plain=True)
    variables = dict(line.split("=", 1) for line in printed.splitlines())
    servers = [each(folder / each.name) for each in leg.servers]
    if leg.helm:
        os.environ["POSTROAD_STACK_HELM"] = leg.helm
        for tool in tools.TOOLS:
            tools.prepare(tool, progress)
    try:
        for server in servers:
            server.prepare(progress)
            server.start(progress)
            variables |= server.environment()
        if leg.name == "tls":
            variables["POSTROAD_CA_FILE"] = str(authorities(servers, folder))
        others = [each for each in servers if isinstance(each, OtherKubernetes)]
        versions = ", ".join(
            [
                _versions(variables),
                *(f"kubernetes {each.version}" for each in others),
                *([f"Helm {leg.helm}"] if leg.helm else ()),
            ]
        )
        results = folder / "results.xml"
        required = [*wanted, *("kubernetes" for _ in others), *(tools.TOOLS if leg.helm else ())]
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-qm",
            "needs",
            *leg.tests,
            f"--junit-xml={results}",
        ]
        subprocess.run(
            command,
            env=os.environ | variables | {"POSTROAD_REQUIRE": ",".join(required)},
            check=False,
        )
        return f"| {leg.name} | {versions} | {_counted(results)} |"
    finally:
        os.environ.pop("POSTROAD_STACK_HELM", None)
        for server in servers:
            server.remove()


def _versions(variables: dict[str, str]) -> str:
    script = (
        "import asyncio; from postroad.bootstrap.cluster import connect;"
        " from postroad.settings import from_environment\n"
        "async def main():\n"
        "    servers = connect(from_environment())\n"
        "    found = await servers.check()\n"
        "    print(', '.join(f'{name} {each.version or each.error}' for name, each in"
        " found.items()))\n"
        "    await servers.close()\n"
        "asyncio.run(main())"
    )
    command = [sys.executable, "-c", script]
    environment = os.environ | variables
    asked = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return asked.stdout.strip()


def _counted(results: Path) -> str:
    if not results.exists():
        return "did not run"
    [suite] = ElementTree.parse(results).getroot().iter("testsuite")
    total, bad = int(suite.get("tests", 0)), 0
    for kind in ("failures", "errors"):
        bad += int(suite.get(kind, 0))
    skipped = int(suite.get("skipped", 0))
    return f"{total - bad - skipped} passed, {bad} failed, {skipped} skipped"


def main(names: Sequence[str]) -> int:
    """Run the legs of these names. Returns an exit code."""
    unknown = set(names) - {leg.name for leg in LEGS}
    if unknown:
        print(f"no leg is called {', '.join(sorted(unknown))}: {', '.join(x.name for x in LEGS)}")
        return 2
    lines = []
    for leg in LEGS:
        if not names or leg.name in names:
            with tempfile.TemporaryDirectory(prefix="postroad-matrix-") as folder:
                try:
                    lines.append(run(leg, Path(folder)))
                except (StackError, subprocess.CalledProcessError) as error:
                    why = getattr(error, "stderr", None) or error
                    print(f"matrix: {leg.name}: {why}", file=sys.stderr)
                    lines.append(f"| {leg.name} | not known | did not run |")
    print("\n".join(["| leg | servers | contract |", "|---|---|---|", *lines]))
    return 0 if all(" 0 failed" in line for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
