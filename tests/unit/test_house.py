"""Guards of the repository: layout, names, libraries and commit subjects."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Mapping
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from postroad import errors
from support.chart import copied_crds, installed_by_kubectl
from support.repository import ROOT, needs_a_clone, tracked_files


def test_the_source_root_is_never_a_package() -> None:
    assert not (ROOT / "operator" / "__init__.py").exists(), "it would shadow stdlib's operator"


def test_no_module_is_named_like_one_of_the_standard_library() -> None:
    modules = (ROOT / "operator" / "postroad").rglob("*.py")
    named = {path: path.parent.name if path.stem == "__init__" else path.stem for path in modules}

    assert named
    assert [str(path) for path, name in named.items() if name in sys.stdlib_module_names] == []


MAX_MODULES = 15


def crowded(folders: Mapping[Path, int]) -> list[Path]:
    """Folders with more modules than a reader takes in at a look."""
    return [folder for folder, modules in folders.items() if modules > MAX_MODULES]


def test_a_folder_of_more_than_fifteen_modules_is_found() -> None:
    assert crowded({Path("a"): MAX_MODULES, Path("b"): MAX_MODULES + 1}) == [Path("b")]


def test_no_folder_has_more_than_fifteen_modules() -> None:
    modules = [each for each in (ROOT / "operator").rglob("*.py") if each.stem != "__init__"]
    counted = Counter(each.parent for each in modules)

    assert counted
    assert crowded(counted) == []


SHARED_NAMES = {
    "the same of each engine": {"Engine", "EntryStep", "Maintenance"},
    "the same of each server": {"Access"},
    "a section of the settings and of a resource, and what it is about": {
        "Cassandra", "Intake", "Pipeline", "RabbitMQ", "Reports", "Retry", "S3",
    },
    "an error, and the event that records it": {"ConfigurationRefused"},
    "of the log, of deliveries: what each engine records": {"Record"},
    "what takes items of a queue, at both ends": {"Consumer"},
    "what a client may do, by a session of SMTP and of the console": {"Rights"},
    "the same type, in rooms that do not import each other": {
        "Duration", "Pick", "Result",
    },
}  # fmt: skip
"""Public classes and types in several modules, with the reason. Elsewhere a name means one."""

CLASS_OR_TYPE = re.compile(r"^(?:class ([A-Z]\w*)|([A-Z]\w*[a-z]\w*)(?:: TypeAlias)? = )", re.M)


def test_a_class_name_means_one_class_unless_a_reason_is_listed() -> None:
    homes: dict[str, set[str]] = {}
    for path in (ROOT / "operator" / "postroad").rglob("*.py"):
        for found in CLASS_OR_TYPE.finditer(path.read_text()):
            homes.setdefault(found[1] or found[2], set()).add(str(path.relative_to(ROOT)))
    shared = {name: sorted(modules) for name, modules in homes.items() if len(modules) > 1}
    explained = set[str]().union(*SHARED_NAMES.values())

    assert {name: shared[name] for name in shared.keys() - explained} == {}
    assert explained - shared.keys() == set(), "these are in one module"


def test_every_library_that_is_declared_is_imported() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    names = ("smtp", "distributed", "intake", "operator", "pipeline", "tracing")
    shipped = [each for name in names for each in extras[name]]
    declared = {each for each in (*project["dependencies"], *shipped) if "postroad[" not in each}
    modules = packages_distributions()
    code = "\n".join(path.read_text() for path in (ROOT / "operator").rglob("*.py"))
    imported = set(re.findall(r"^\s*(?:import|from) (\w+)", code, re.MULTILINE))
    provided = {
        name.lower().replace("_", "-") for module in imported for name in modules.get(module, ())
    }

    libraries = {re.split(r"[>=<\[]", each)[0].lower() for each in declared}
    assert sorted(libraries - provided) == ["pandas"], "PySpark imports it before it takes Arrow"


def test_the_library_of_each_extra_is_named_where_it_is_missing() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    modules = {
        distribution.lower().replace("_", "-"): module
        for module, distributions in packages_distributions().items()
        for distribution in distributions
        if module in errors.EXTRAS
    }
    brought = {
        (modules[name], extra)
        for extra, libraries in extras.items()
        if extra not in ("dev", "all")
        for each in libraries
        if (name := re.split(r"[>=<\[]", each)[0].lower()) != "postroad"
    }

    named = {each for each in errors.EXTRAS.items() if each[0] not in ("botocore", "starlette")}
    # Two extras bring these, and an error names one of them.
    assert brought - {("aiohttp", "distributed"), ("jwt", "console")} == named


@needs_a_clone
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


@pytest.mark.needs("helm")
def test_manifests_are_rendered_from_the_chart() -> None:
    for path, text in installed_by_kubectl().items():
        assert path.read_text() == text, "make manifests"


def test_the_chart_has_the_crds_of_this_source() -> None:
    for path, text in copied_crds().items():
        assert path.read_text() == text, "make manifests"
    assert len(copied_crds()) == len([*(ROOT / "charts/postroad/files/crds").iterdir()])


LAST_LONG_SUBJECT = "3527b62"


@needs_a_clone
def test_commit_subjects_keep_72_columns() -> None:
    revisions = f"{LAST_LONG_SUBJECT}..HEAD"
    log = subprocess.run(
        ["git", "log", "--format=%s", revisions], cwd=ROOT, capture_output=True, text=True
    )
    if log.returncode != 0:
        pytest.skip(f"commit {LAST_LONG_SUBJECT} is missing: use a clone with its history")

    assert [subject for subject in log.stdout.splitlines() if len(subject) > 72] == []
