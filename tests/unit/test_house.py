"""Guards of the repository: layout, import contracts, sources, sentences and commit subjects."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions
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
def source(tmp_path: Path) -> Path:
    """A copy of the source, in which a test breaks a rule."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(
        ROOT / "operator", tmp_path / "operator", ignore=shutil.ignore_patterns("__pycache__")
    )
    return tmp_path


def test_the_source_root_is_never_a_package() -> None:
    assert not (ROOT / "operator" / "__init__.py").exists(), "it would shadow stdlib's operator"


def test_no_module_is_named_like_one_of_the_standard_library() -> None:
    modules = (ROOT / "operator" / "postroad").rglob("*.py")
    named = {path: path.parent.name if path.stem == "__init__" else path.stem for path in modules}

    assert named
    assert [str(path) for path, name in named.items() if name in sys.stdlib_module_names] == []


SHARED_CLASS_NAMES = {
    "the same of each engine": {"Engine", "Maintenance"},
    "the same of each server or protocol": {
        "Access", "Connection", "Lease", "Message", "Session", "Transaction",
    },
    "a section of the settings, and what it is about": {
        "Broker", "Cassandra", "Intake", "RabbitMQ", "Retry", "S3", "View",
    },
    "an error, and the event that records it": {"ConfigurationRefused"},
    "their modules never meet": {"Consumer", "Kind", "Queues", "Step"},
}  # fmt: skip
"""Public classes in several modules, with the reason. Elsewhere a name means one class."""


def test_a_class_name_means_one_class_unless_a_reason_is_listed() -> None:
    homes: dict[str, set[str]] = {}
    for path in (ROOT / "operator" / "postroad").rglob("*.py"):
        for name in re.findall(r"^class ([A-Z]\w*)", path.read_text(), re.MULTILINE):
            homes.setdefault(name, set()).add(str(path.relative_to(ROOT)))
    explained = set[str]().union(*SHARED_CLASS_NAMES.values())

    assert {
        name: sorted(modules)
        for name, modules in homes.items()
        if len(modules) > 1 and name not in explained
    } == {}
    assert {name for name in explained if name not in homes} == set(), "these classes are gone"


def test_a_package_without_a_layer_breaks_the_import_contracts(source: Path) -> None:
    (source / "operator/postroad/stray").mkdir()
    (source / "operator/postroad/stray/__init__.py").touch()

    found = lint(source)

    assert found.returncode == 1
    assert "stray" in found.stdout


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("domain/slices.py", "import time"),
        ("domain/slices.py", "import postroad.ports.view"),
        ("scheduling/choosing.py", "import random"),
        ("scheduling/scheduler.py", "import postroad.ports.mail_queue"),
        ("adapters/s3/__init__.py", "import postroad.adapters.cassandra"),
        ("worker/__init__.py", "import postroad.intake"),
        ("routing/plans.py", "import random"),
        ("distributed/__init__.py", "import pika"),
        ("worker/routing.py", "import dns.message"),
        ("distributed/__init__.py", "import postroad.adapters.memory"),
        ("settings.py", "import postroad.bootstrap"),
    ],
    ids=lambda value: value.replace("import ", ""),
)
def test_an_import_in_the_wrong_direction_breaks_the_contracts(
    source: Path, module: str, line: str
) -> None:
    target = source / "operator/postroad" / module
    target.write_text(f"{target.read_text()}\n{line}\n")

    assert lint(source).returncode == 1


@pytest.mark.parametrize("module", ["cli", "cli.kubectl", "cli.mta", "bootstrap.embedded_store"])
def test_modules_that_need_no_server_import_no_driver(module: str) -> None:
    drivers = [
        "kopf",
        "kubernetes",
        "cassandra",
        "pika",
        "boto3",
        "botocore",
        "obstore",
        "aiohttp",
        "dns",
    ]
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


def test_every_library_that_is_declared_is_imported() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = [*project["dependencies"], *project["optional-dependencies"]["operator"]]
    modules = packages_distributions()
    code = "\n".join(path.read_text() for path in (ROOT / "operator").rglob("*.py"))
    imported = set(re.findall(r"^\s*(?:import|from) (\w+)", code, re.MULTILINE))
    provided = {
        name.lower().replace("_", "-") for module in imported for name in modules.get(module, ())
    }

    names = {re.split(r"[>=<\[]", each)[0].lower() for each in declared}
    assert sorted(names - provided) == []


needs_a_clone = pytest.mark.skipif(
    not (ROOT / ".git").exists(), reason="only a clone knows its files"
)


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


SOURCE = re.compile(r'Source:\s+(.*?)(?="""|\n\s*\n|\Z)', re.DOTALL)
KNOWN = re.compile(
    r"00[0-4]\b|RFC \d+|ADR \d{4}|invariants? \d+|(SP|LQ|SC|AMB)-\d+|FORMAT\.md \d+"
    # Documents of others that have no number are named here once, in full.
    r"|Kubernetes API conventions|Kubernetes documentation|kstatus"
    r"|Zeller and Hildebrandt, |postconf\(5\)"
    r"|Linux, include/uapi/|Docker's reference, |Apache Cassandra, native_protocol_v4\.spec"
)
REQUIREMENT = re.compile(r"\b(SP|LQ|SC|AMB)-(\d+)(?:(?:\.\.| to )(?:\1-)?(\d+))?")
OWN_NUMBERS = re.compile(r"\b(ADR|invariants?) ((?:\d+(?:, | and )?)+)")
UNCITED = "## Cited by no code and no test"


def unknown_sources(text: str) -> list[str]:
    """The parts of `Source:` texts, between semicolons, that begin with no known source."""
    found = [part for tag in SOURCE.findall(text) for part in re.split(r";(?![^(]*\))", tag)]
    return [part.strip() for part in found if not KNOWN.match(part.strip())]


def requirements_in(text: str) -> set[str]:
    """Every requirement that is cited, each one of a range."""
    return {
        f"{kind}-{number}"
        for kind, first, last in REQUIREMENT.findall(text)
        for number in range(int(first), int(last or first) + 1)
    }


def own_numbers_in(text: str) -> set[str]:
    """`ADR 0003` and `invariant 4` for every decision and invariant that is cited, lists too."""
    return {
        f"{'ADR' if kind == 'ADR' else 'invariant'} {number}"
        for kind, numbers in OWN_NUMBERS.findall(text)
        for number in re.findall(r"\d+", numbers)
        if kind != "ADR" or len(number) == 4  # James numbers its decisions with two digits
    }


def texts(*folders: str) -> list[tuple[str, str]]:
    """Tracked texts under these folders, without this file, whose examples are wrong on purpose."""
    names = [(f"{path.relative_to(ROOT)}", path) for path in tracked_files()]
    return [
        (name, path.read_text())
        for name, path in names
        if name.startswith(folders)
        and path.suffix in {".py", ".md", ".cql", ".yaml", ".sh", ".toml"}
        if path != Path(__file__)
    ]


def requirements() -> tuple[set[str], set[str]]:
    """The requirements that `docs/requirements.md` has, and those that it lists as uncited."""
    text, uncited = (ROOT / "docs/requirements.md").read_text().split(UNCITED)
    written = re.findall(r"^- \*\*([A-Z]+-\d+)\*\*", text, re.MULTILINE)
    assert len(written) == len(set(written)), "a requirement is written twice"
    first_cells = re.findall(r"^\| ([^|]*) \|", uncited, re.MULTILINE)
    return set(written), requirements_in("\n".join(first_cells))


@needs_a_clone
def test_every_source_tag_names_known_sources_in_all_its_parts() -> None:
    unknown = {
        name: parts for name, text in texts("operator", "tests") if (parts := unknown_sources(text))
    }

    assert unknown == {}


@needs_a_clone
def test_every_requirement_decision_and_invariant_that_is_cited_is_written() -> None:
    written, _ = requirements()
    decisions = {f"ADR {path.name[:4]}" for path in (ROOT / "docs/adr").glob("[0-9]*.md")}
    invariants = re.findall(r"^(\d+)\. ", (ROOT / "docs/invariants.md").read_text(), re.MULTILINE)
    known = written | decisions | {f"invariant {number}" for number in invariants}

    cited = {
        name: requirements_in(text) | own_numbers_in(text)
        for name, text in texts(
            "operator", "tests", "docs", "crds", "manifests", "README", "CHANGE"
        )
    }

    assert {name: found - known for name, found in cited.items() if found - known} == {}


@needs_a_clone
def test_the_list_of_requirements_that_nothing_cites_is_true() -> None:
    written, uncited = requirements()
    cited = {one for _, text in texts("operator", "tests") for one in requirements_in(text)}

    assert sorted(uncited) == sorted(written - cited)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('"""Source: RFC 5321 4.1; hearsay."""', ["hearsay."]),
        ('"""Source: 000\n    Decision (a; b); ADR 0002."""\n\n"""Source: a blog."""', ["a blog."]),
        ('"""Source:\n    a dream."""', ["a dream."]),
        ('"""Source: 0004 Decision."""', ["0004 Decision."]),
    ],
)
def test_a_source_that_is_not_known_is_found_wherever_it_stands(
    text: str, found: list[str]
) -> None:
    assert unknown_sources(text) == found


def test_citations_are_read_one_by_one_from_ranges_and_lists() -> None:
    text = "SP-7..9, LQ-28 to LQ-30; SC-1; ADR 0003, 0018; ADR 32; invariants 4 and 7."

    assert requirements_in(text) == {"SP-7", "SP-8", "SP-9", "LQ-28", "LQ-29", "LQ-30", "SC-1"}
    assert own_numbers_in(text) == {"ADR 0003", "ADR 0018", "invariant 4", "invariant 7"}


SYSTEM_USER = "no" + "body"
WORDS_OF_OTHERS = {"tests/peers/postfix.py": [SYSTEM_USER]}
"""Words that the guide forbids and that a file has to use: the name of a system's user."""


def unclear_words(guide: str) -> re.Pattern[str]:
    """The words in the first column of the guide's table, in names too and over line ends."""
    table = guide.split("| not | instead |")[1].split("\n\n")[0]
    cells = re.findall(r"^\| (`[^|]*) \|", table, re.MULTILINE)
    words = [word for cell in cells for word in re.findall(r"`([a-z ]+)`", cell)]
    either = "|".join(r"[\s_#]+".join(word.split()) for word in words)
    return re.compile(rf"(?<![a-z])(?:{either})(?![a-z])", re.IGNORECASE)


@needs_a_clone
def test_every_sentence_names_the_component_that_acts() -> None:
    unclear = unclear_words((ROOT / "docs/contributing.md").read_text())
    this = f"{Path(__file__).relative_to(ROOT)}"
    found = {
        name: unclear.findall(text)
        for name, text in [
            *texts("operator", "tests", "docs", "README.md"),
            (this, Path(__file__).read_text()),
        ]
        if name != "docs/contributing.md" and unclear.search(text)
    }

    assert found == WORDS_OF_OTHERS, "write them as docs/contributing.md says"


@pytest.mark.parametrize(
    "text",
    ["One waits", "test_a_thing_that_one_waits_for", "it one\n    # waits", "(One  waits)"],
)
def test_unclear_words_are_found_in_names_and_over_line_ends(text: str) -> None:
    guide = "| not | instead |\n|---|---|\n| `one waits`, `other` | `this` |\n\n`that`"

    assert unclear_words(guide).search(text)
    assert not unclear_words(guide).search("nones wait; one waitsy; this and that")


@needs_a_clone
def test_every_module_that_a_document_or_the_code_names_is_there() -> None:
    there = [f"{path.relative_to(ROOT)}" for path in tracked_files()]
    named = {
        (name, module)
        for name, text in texts("operator", "docs", "README.md")
        for module in re.findall(r"(?<![\w/.-])((?:[\w-]+/)*[\w-]+\.py)\b", text)
    }

    missing = [
        (name, module)
        for name, module in sorted(named)
        if not any(f"/{path}".endswith(f"/{module}") for path in there)
    ]
    assert missing == [("docs/contributing.md", "tests/integration/test_x.py")], "an example only"


EXAMPLES = {"tests/integration/test_x.py"}
"""Paths that documents name as examples only."""


def code_in(text: str) -> str:
    """The code spans and code blocks of a document, one a line."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    return "\n".join([*blocks, *re.findall(r"`([^`\n]+)`", prose)])


def paths_in(text: str) -> set[str]:
    """Paths in the code of a document that begin with a folder of the project, of the package or
    of the tests."""
    found = re.findall(r"(?<![\w/.:~-])((?:[\w-]+/)+[\w.-]*\w)", code_in(text))
    return {path for path in found if any((home / path.split("/")[0]).is_dir() for home in HOMES)}


HOMES = (ROOT, ROOT / "operator", ROOT / "operator/postroad", ROOT / "tests")


def targets_in(text: str) -> set[str]:
    """The targets of `make` in the code of a document."""
    return set(re.findall(r"\bmake ([a-z][a-z-]*)", code_in(text)))


def links_in(text: str) -> set[str]:
    """The files that a document links to."""
    return set(re.findall(r"\]\((?!\w+:|#)([^)#]+)[^)]*\)", text))


def cited_tests(text: str) -> set[str]:
    """The names of tests in a document that names them by `path::test_name` or, in a table beside
    the letter of their suite, without `test_`."""
    named = set(re.findall(r"::test_(\w+)", code_in(text)))
    rows = "\n".join(re.findall(r"^\|.*\b[AM] `.*$", text, re.MULTILINE))
    return named | {each for each in re.findall(r"`(\w+)`", rows) if "_" in each}


DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@cache
def names_of_tests() -> set[str]:
    code = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    return set(re.findall(r"def test_(\w+)", code))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_path_target_and_link_of_a_document_is_there(document: Path) -> None:
    text = document.read_text()
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)

    paths = {
        path
        for path in paths_in(text) - EXAMPLES
        if not path.startswith("build/") and not any((home / path).exists() for home in HOMES)
    }

    assert sorted(paths) == []
    assert sorted(targets_in(text) - set(targets)) == []
    assert sorted(to for to in links_in(text) if not (document.parent / to).exists()) == []
    assert sorted(cited_tests(text) - names_of_tests()) == []


def test_what_documents_name_is_found_in_spans_and_blocks() -> None:
    text = (
        "Tests make sense: `make unit`, `tests/gone`, [x](a/gone.md#part), [y](https://z).\n"
        "| a case | M `a_thing_holds`, `tests/gone.py::test_more`; `word` |\n"
        "```console\n$ CASE=a make bench ROOM=b\n$ python domain/gone.py --to ~/tests/x\n```\n"
    )

    assert targets_in(text) == {"unit", "bench"}
    assert paths_in(text) == {"tests/gone", "tests/gone.py", "domain/gone.py"}
    assert cited_tests(text) == {"a_thing_holds", "more"}
    assert links_in(text) == {"a/gone.md"}


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
