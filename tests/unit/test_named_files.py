"""Modules, paths, targets, headings and tests that documents and the code name are there; rows of
tables have all their cells."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

from support.repository import ROOT, needs_a_clone, texts, tracked_files


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
    assert missing == [
        ("docs/contributing/tests.md", "tests/integration/test_x.py"),
        ("docs/how-to/find-a-mail.md", "mine.py"),
        ("docs/tutorial/directory.md", "mine.py"),
    ], "examples only"


EXAMPLES = {"tests/integration/test_x.py"}
"""Paths that documents name as examples only."""


def code_in(text: str) -> str:
    """The code spans and code blocks of a document, one a line."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return "\n".join([*blocks, *re.findall(r"`([^`\n]+)`", prose_in(text))])


def paths_in(text: str) -> set[str]:
    """Paths in the code of a document that begin with a folder of the project, of the package or
    of the tests."""
    found = re.findall(r"(?<![\w/.:~-])((?:[\w-]+/)+[\w.-]*\w)", code_in(text))
    return {path for path in found if any((home / path.split("/")[0]).is_dir() for home in HOMES)}


HOMES = (ROOT, ROOT / "operator", ROOT / "operator/postroad", ROOT / "tests")


def targets_in(text: str) -> set[str]:
    """The targets of `make` in the code of a document."""
    return set(re.findall(r"\bmake ([a-z][a-z-]*)", code_in(text)))


def links_in(text: str) -> set[tuple[str, str]]:
    """The files that a document links to (its own: empty), each with the heading in it (none:
    empty)."""
    return set(re.findall(r"\]\((?!\w+:)([^)#]*)#?([^)]*)\)", prose_in(text)))


def prose_in(text: str) -> str:
    """A document without its code blocks."""
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


@cache
def anchors_of(document: Path) -> set[str]:
    """What a link may name a heading of a document by."""
    headings = re.findall(r"^#+ (.*)$", prose_in(document.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}


def is_there(document: Path, file: str, heading: str) -> bool:
    """Whether a link of a document leads to a file, and to a heading of it."""
    target = document.parent / file if file else document
    return target.exists() and (not heading or heading in anchors_of(target))


def uneven_rows(text: str) -> list[str]:
    """Rows of tables with other numbers of cells than the header, which a renderer cuts or leaves
    empty, and lines that look like rows of no table."""
    found, header = [], 0
    lines = prose_in(text).splitlines()
    for line, next_line in zip(lines, [*lines[1:], ""], strict=True):
        cells = len(re.findall(r"(?<!\\)\|", line)) - 1 if line.startswith("|") else 0
        if cells and not header:
            is_header = re.fullmatch(r"\|[-:| ]+\|", next_line) is not None
            found += [] if is_header else [line]
        elif cells and (cells != header or not line.endswith("|")):
            found.append(line)
        header = (header or cells) if cells else 0
    return found


def cited_tests(text: str) -> set[str]:
    """The names of tests in a document that names them by `path::test_name` or, in a table beside
    the dead letter of their suite, without `test_`."""
    named = set(re.findall(r"::test_(\w+)", code_in(text)))
    rows = "\n".join(re.findall(r"^\|.*\b[AM] `.*$", text, re.MULTILINE))
    return named | {each for each in re.findall(r"`(\w+)`", rows) if "_" in each}


DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "operator/postroad/embedded/FORMAT.md",
    ROOT / "tests/stack/README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]


@cache
def names_of_tests() -> set[str]:
    code = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    return set(re.findall(r"def test_(\w+)", code))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: f"{path.relative_to(ROOT)}")
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
    assert sorted(link for link in links_in(text) if not is_there(document, *link)) == []
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
    assert links_in(text) == {("a/gone.md", "part")}


def test_a_heading_is_named_as_renderers_name_it(tmp_path: Path) -> None:
    document = tmp_path / "a.md"
    document.write_text("# `CASE=x`: how, and why it's so\n```sh\n# no heading\n```\n")

    assert anchors_of(document) == {"casex-how-and-why-its-so"}
    assert is_there(document, "", "casex-how-and-why-its-so")
    assert not is_there(document, "a.md", "no-heading")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: f"{path.relative_to(ROOT)}")
def test_each_row_of_a_table_has_the_cells_of_its_header(document: Path) -> None:
    assert uneven_rows(document.read_text()) == []


def test_rows_that_lack_cells_or_a_header_are_found() -> None:
    table = "| a | b |\n|---|---|\n| `x\\|y` | 2 |\n"

    assert uneven_rows(table) == []
    assert uneven_rows(f"{table}| 1 |\n| 1 | 2\n\n| 3 | 4 |\n") == ["| 1 |", "| 1 | 2", "| 3 | 4 |"]


MAX_PAGE_OCTETS = 12_000
SEARCHED = ("glossary.md", "operator/api-reference.md")


def pages_in(docs: Path) -> dict[str, int]:
    """Return the pages with their octets: not decisions, which are read by number, nor the
    glossary and the generated reference of the API, which are searched."""
    return {
        f"{page.relative_to(docs)}": page.stat().st_size
        for page in docs.rglob("*.md")
        if page.parent != docs / "adr" and str(page.relative_to(docs)) not in SEARCHED
    }


def unlisted_in(docs: Path) -> list[str]:
    """Return the pages of folders that the index beside their folder does not link to."""
    return [
        page
        for page in pages_in(docs)
        if (folder := Path(page).parent.name)
        and (page, "") not in links_in((docs / f"{folder}.md").read_text())
    ]


def test_a_page_is_short_enough_for_one_task_and_stands_in_the_index_of_its_folder() -> None:
    pages = pages_in(ROOT / "docs")

    assert "operator/install.md" in pages
    assert {name: size for name, size in pages.items() if size > MAX_PAGE_OCTETS} == {}
    assert unlisted_in(ROOT / "docs") == []


def test_a_page_that_no_index_links_to_is_found(tmp_path: Path) -> None:
    for name in ("adr/0001-x.md", "topic/listed.md", "topic/unlisted.md", "glossary.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("text\n")
    (tmp_path / "topic.md").write_text("| [a page](topic/listed.md) | its reader |\n")

    assert pages_in(tmp_path) == {"topic/listed.md": 5, "topic/unlisted.md": 5, "topic.md": 43}
    assert unlisted_in(tmp_path) == ["topic/unlisted.md"]


BESIDE_A_FILE = re.compile(
    r"(`[A-Za-z_]+`(?:(?:,| and|, and) `[A-Za-z_]+`)*) (?:in|of) `([\w./-]+\.py)`"
)


def absent_names(text: str, sources: Mapping[str, str]) -> list[str]:
    """Return the names that a text gives beside a file which has no such word."""
    return [
        f"{name} is not in {path}"
        for names, path in BESIDE_A_FILE.findall(text)
        for name in re.findall(r"\w+(?=`)", names)
        if path in sources and not re.search(rf"\b{name}\b", sources[path])
    ]


def test_a_name_beside_a_file_that_lacks_it_is_found() -> None:
    sources = {"a/b.py": "def there(): ...\n"}

    assert absent_names("`there`, `lost` and `gone` of `a/b.py`", sources) == [
        "lost is not in a/b.py",
        "gone is not in a/b.py",
    ]


@needs_a_clone
@pytest.mark.parametrize("document", ["README.md", "docs/contributing/rooms.md"])
def test_a_table_has_every_room_and_none_that_is_gone(document: str) -> None:
    rows = re.findall(r"^\| (`\w+`[`\w, ]*) \|", (ROOT / document).read_text(), re.MULTILINE)
    named = set(re.findall(r"`(\w+)`", " ".join(rows)))
    paths = [path.relative_to(ROOT).parts for path in tracked_files()]
    rooms = {Path(parts[2]).stem for parts in paths if parts[:2] == ("operator", "postroad")}

    assert {each for each in rooms if not each.startswith("_")} - {"py"} <= named
    assert named <= rooms | {parts[0] for parts in paths}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: f"{path.relative_to(ROOT)}")
def test_every_name_beside_a_file_of_a_document_is_in_that_file(document: Path) -> None:
    text = document.read_text()
    named = {path for _, path in BESIDE_A_FILE.findall(text)}
    sources = {
        path: (home / path).read_text()
        for path in named
        for home in HOMES
        if (home / path).exists()
    }

    assert absent_names(text, sources) == []
