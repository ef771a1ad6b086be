"""The import contracts of pyproject.toml bite: each wrong import in a copy of the source is
reported. What needs no server imports no driver."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.repository import ROOT

LINTER = Path(sys.executable).with_name("lint-imports")

WRONG = [
    ("domain/queues/entries.py", "time"),
    ("domain/queues/entries.py", "postroad.ports.view"),
    ("scheduling/choosing.py", "random"),
    ("scheduling/scheduler.py", "postroad.ports.mail_queue"),
    ("adapters/s3/__init__.py", "postroad.adapters.cassandra"),
    ("worker/__init__.py", "postroad.intake"),
    ("worker/__init__.py", "postroad.pipeline.states"),
    ("pipeline/states.py", "pyspark"),
    ("pipeline/states.py", "time"),
    ("pipeline/archive/planning.py", "os"),
    ("routing/routes.py", "random"),
    ("signing/signatures.py", "time"),
    ("signing/signatures.py", "cryptography"),
    ("distributed/__init__.py", "pika"),
    ("worker/route_finder.py", "dns.message"),
    ("distributed/__init__.py", "postroad.adapters.memory"),
    ("settings/__init__.py", "postroad.bootstrap"),
]
"""Modules, and what each must not import."""


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The report of import-linter on a copy of the source with every wrong import, and with a
    package that has no layer."""
    copy = tmp_path_factory.mktemp("source")
    shutil.copy(ROOT / "pyproject.toml", copy)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "operator", copy / "operator", ignore=ignored)
    package = copy / "operator/postroad"
    (package / "stray").mkdir()
    (package / "stray/__init__.py").touch()
    for module, imported in WRONG:
        with (package / module).open("a") as file:
            file.write(f"\nimport {imported}\n")
    environment = {"PYTHONPATH": str(copy / "operator"), "PATH": "/usr/bin:/bin"}
    linted = subprocess.run(
        [LINTER, "--no-cache"], cwd=copy, env=environment, capture_output=True, text=True
    )
    assert linted.returncode == 1, linted.stderr
    return linted.stdout


def test_a_package_without_a_layer_breaks_the_import_contracts(reported: str) -> None:
    assert re.search(r"^- postroad\.stray$", reported, re.MULTILINE)


@pytest.mark.parametrize(("module", "imported"), WRONG)
def test_an_import_in_the_wrong_direction_breaks_the_contracts(
    reported: str, module: str, imported: str
) -> None:
    importer = f"postroad/{module}".removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    package = imported if imported.startswith("postroad.") else imported.split(".")[0]

    chain = rf"^- +{re.escape(importer)} -> {re.escape(package)} \(l\."
    assert re.search(chain, reported, re.MULTILINE)


DRIVERS = {
    "kopf",
    "kubernetes",
    "cassandra",
    "pika",
    "boto3",
    "botocore",
    "obstore",
    "aiohttp",
    "dns",
    "pyspark",
}
NEED_NO_SERVER = ["cli", "cli.kubectl.plugin", "cli.processes.mta", "bootstrap.embedded_store"]
IMPORTS = """
import json, sys
from importlib import import_module
for module in sys.argv[1:]:
    import_module(f"postroad.{module}")
    print(json.dumps([module, sorted(sys.modules)]))
"""


@pytest.fixture(scope="module")
def imported_by() -> dict[str, set[str]]:
    """The modules in a process behind the import of each of these, one after the other."""
    found = subprocess.run(
        [sys.executable, "-c", IMPORTS, *NEED_NO_SERVER],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(ROOT / "operator")},
    )
    return {module: set(names) for module, names in map(json.loads, found.stdout.splitlines())}


@pytest.mark.parametrize("module", NEED_NO_SERVER)
def test_modules_that_need_no_server_import_no_driver(
    imported_by: dict[str, set[str]], module: str
) -> None:
    assert f"postroad.{module}" in imported_by[module]
    assert DRIVERS & imported_by[module] == set()
