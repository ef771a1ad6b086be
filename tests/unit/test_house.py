"""Guards of the house: its layout, its import contracts, and what must not be in it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINTER = Path(sys.executable).with_name("lint-imports")


def lint(copy: Path) -> subprocess.CompletedProcess[str]:
    environment = {"PYTHONPATH": str(copy / "operator"), "PATH": "/usr/bin:/bin"}
    return subprocess.run(
        [LINTER, "--no-cache"], cwd=copy, env=environment, capture_output=True, text=True
    )


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A copy of the source, to break rules in."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(ROOT / "operator", tmp_path / "operator")
    return tmp_path


def test_the_source_root_is_never_a_package() -> None:
    assert not (ROOT / "operator" / "__init__.py").exists(), "it would shadow stdlib's operator"


def test_a_room_that_nobody_placed_breaks_the_import_contracts(house: Path) -> None:
    (house / "operator/postroad/attic").mkdir()
    (house / "operator/postroad/attic/__init__.py").touch()

    found = lint(house)

    assert found.returncode == 1
    assert "attic" in found.stdout


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("domain/slices.py", "import time"),
        ("domain/slices.py", "import postroad.ports.view"),
        ("adapters/s3/__init__.py", "import postroad.adapters.cassandra"),
        ("worker/__init__.py", "import postroad.intake"),
        ("mailqueue/__init__.py", "import pika"),
        ("mailqueue/__init__.py", "import postroad.adapters.memory"),
        ("settings.py", "import postroad.bootstrap"),
    ],
    ids=lambda value: value.replace("import ", ""),
)
def test_an_import_in_the_wrong_direction_breaks_the_contracts(
    house: Path, module: str, line: str
) -> None:
    target = house / "operator/postroad" / module
    target.write_text(f"{target.read_text()}\n{line}\n")

    assert lint(house).returncode == 1


@pytest.mark.parametrize("module", ["cli", "cli.kubectl", "cli.mta", "bootstrap.directory"])
def test_what_needs_no_server_loads_none_of_their_drivers(module: str) -> None:
    drivers = ["kopf", "kubernetes", "cassandra", "pika", "boto3", "botocore", "obstore", "aiohttp"]
    program = f"import sys, postroad.{module}; print(*set({drivers}) & set(sys.modules))"

    found = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(ROOT / "operator")},
    )

    assert found.stdout.split() == []


def tracked_files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    return [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="only a clone knows its files")
def test_no_file_names_a_package_registry() -> None:
    hosts = "|".join(
        ["pypi" + r"\.org", "files\\.python" + "hosted", "proxy\\.golang", r"repo1?\.maven",
         "registry\\.npm" + "js", r"deb\.debian", "index" + "-url ?=? ?http"]
    )  # fmt: skip
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in tracked_files()
        if path.suffix not in {".png", ".sum"} and path.stat().st_size < 1_000_000
        for number, text in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if re.search(hosts, text)
    ]

    assert found == []


TAG = re.compile(r"Source: ([^\n\"]*)")
KNOWN = re.compile(
    r"(00[0-4]|RFC \d+|ADR \d{4}|(SP|LQ|SC|AMB)-\d+|Kubernetes API conventions|kstatus)"
)


def sources() -> list[tuple[str, str]]:
    return [
        (f"{path.relative_to(ROOT)}", tag)
        for path in (ROOT / "operator").rglob("*.py")
        for tag in TAG.findall(path.read_text())
    ]


def test_every_source_tag_names_a_known_source() -> None:
    unknown = [(where, tag) for where, tag in sources() if not KNOWN.match(tag.strip())]

    assert unknown == []


def test_every_adr_that_is_cited_is_written() -> None:
    written = {path.name[:4] for path in (ROOT / "docs/adr").glob("[0-9]*.md")}
    texts = [path.read_text() for path in (ROOT / "operator").rglob("*.py")]
    cited = {number for text in texts for number in re.findall(r"ADR (\d{4})", text)}

    assert sorted(cited - written) == []
