"""The site of the documents (mkdocs.yml): its navigation, its links, and its page of the API."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

import postroad
from documents.hooks import DECISIONS, inside, pages_of, whole
from support.repository import ROOT

DOCS = ROOT / "docs"


class Loader(yaml.SafeLoader):
    """Reads mkdocs.yml, which names a function of Python as a value."""


Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)


def test_every_page_is_in_the_navigation_once() -> None:
    nav = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)["nav"]
    there = sorted(f"{page.relative_to(DOCS)}" for page in DOCS.rglob("*.md"))

    assert [next(iter(part)) for part in nav] == [
        *("Home", "Tutorial", "How-to", "Reference", "Explanation")
    ]
    assert sorted(pages_of(whole(nav, DOCS))) == sorted([*there, DECISIONS])
    assert len([*pages_of(nav)]) > 50


def test_a_page_that_the_navigation_lacks_comes_last(tmp_path: Path) -> None:
    for name in ("index.md", "a.md", "b.md"):
        (tmp_path / name).touch()

    assert whole([{"Home": "index.md"}], tmp_path) == [
        {"Home": "index.md"},
        {"More": ["a.md", "b.md"]},
    ]


def test_a_link_that_leaves_the_documents_becomes_the_name_of_a_file() -> None:
    page = Path(DOCS / "operator/x.md")

    assert inside("[a](../adr/) [b](../host.md#x) [c](../../crds/)", page) == (
        "[a](../adr/index.md) [b](../host.md#x) c (`crds`)"
    )
    assert inside("[`LICENSE`](../../LICENSE)", page) == "`LICENSE`"


def test_the_page_of_the_api_has_each_public_name() -> None:
    named = set(re.findall(r"^::: (\S+)$", (DOCS / "python.md").read_text(), re.M))
    homes = {home.replace(":", ".") for home in postroad._HOMES.values()}

    assert homes - {"postroad.settings.Settings"} == {  # its fields: docs/settings.md
        each for each in named if each.count(".") > 1 or each.endswith("open_queue")
    }


def test_cells_of_the_tutorial_and_of_tasks_are_short() -> None:
    pages = [DOCS / "index.md", *DOCS.glob("tutorial/*.md"), *DOCS.glob("how-to/*.md")]
    cells = [
        cell
        for page in pages
        for line in page.read_text().splitlines()
        if line.startswith("|")
        for cell in line.split("|")
    ]

    assert len(cells) > 100
    assert [each for each in cells if len(each) > 200] == []
