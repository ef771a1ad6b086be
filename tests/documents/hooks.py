"""Hooks of mkdocs (mkdocs.yml): patterns in the navigation, an index of the decisions, and links
that leave the folder of the documents, which the site has no page for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DECISIONS = "adr/index.md"


def on_config(config: Any) -> Any:
    config.nav = whole(config.nav or [], Path(config.docs_dir))
    return config


def whole(nav: list[Any], docs: Path) -> list[Any]:
    """Return the navigation with every page: those that it does not name come last."""
    found = expanded(nav, docs)
    named = set(pages_of(found))
    others = sorted(f"{page.relative_to(docs)}" for page in docs.rglob("*.md"))
    if more := [each for each in others if each not in named]:
        found.append({"More": more})
    return found


def pages_of(nav: list[Any]) -> Iterator[str]:
    """Yield the pages that a navigation names."""
    for each in nav:
        for below in each.values() if isinstance(each, dict) else [each]:
            yield from pages_of(below) if isinstance(below, list) else [below]


def expanded(nav: list[Any], docs: Path) -> list[Any]:
    """Return the navigation with the pages that patterns such as `adr/*.md` stand for."""
    found: list[Any] = []
    for each in nav:
        if isinstance(each, str) and "*" in each:
            found += sorted(f"{page.relative_to(docs)}" for page in docs.glob(each))
        elif isinstance(each, dict):
            found.append(
                {
                    name: expanded(below, docs) if isinstance(below, list) else below
                    for name, below in each.items()
                }
            )
        else:
            found.append(each)
    return found


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    rows = []
    for page in sorted((Path(config.docs_dir) / "adr").glob("*.md")):
        number, title = page.read_text().splitlines()[0].removeprefix("# ").split(". ", 1)
        rows.append(f"| {number} | [{title}]({page.name}) |")
    text = "\n".join(["# Decisions", "", "| number | decision |", "|---|---|", *rows, ""])
    files.append(File.generated(config, DECISIONS, content=text))
    return files


LINK = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[^)#\s]*|adr/)(#[^)]*)?\)")


def on_page_markdown(markdown: str, page: Any, config: Any, **_: object) -> str:
    return inside(markdown, Path(config.docs_dir) / page.file.src_uri)


def inside(markdown: str, page: Path) -> str:
    """Return a page whose links to other files of the repository name them instead."""

    def named(link: re.Match[str]) -> str:
        text, target, _ = link.groups()
        if target.endswith("adr/"):
            return f"[{text}]({target}index.md)"
        path = (page.parent / target).resolve()
        if path.is_relative_to(ROOT / "docs"):
            return link[0]
        place = f"{path.relative_to(ROOT)}"
        return text if place in text else f"{text} (`{place}`)"

    return LINK.sub(named, markdown)
