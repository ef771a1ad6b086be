"""The glossary is short, and gives each of its terms one meaning."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

GLOSSARY = Path(__file__).parents[2] / "docs/glossary.md"

MAX_ROWS = 200
MAX_BYTES = 16_000
"""A reader takes in no more before the first change; a word that the field has needs no row."""


def terms_of(glossary: str) -> list[str]:
    """Return the terms of the first columns, without qualifiers such as `(of a mail)`."""
    cells = re.findall(r"^\| ([^|]*) \|", glossary, re.MULTILINE)
    bare = (re.sub(r"\([^)]*\)", "", cell) for cell in cells if cell != "word")
    return [term for cell in bare for part in re.split(r"[,;:]", cell) if (term := part.strip())]


def terms_in_several_rows(glossary: str) -> list[str]:
    """Return the terms with more than one meaning, whatever their case and plural."""
    counts = Counter(re.sub(r"(?<![su])s$", "", term.lower()) for term in terms_of(glossary))
    return sorted(term for term, count in counts.items() if count > 1)


def test_glossary_has_each_term_in_one_row() -> None:
    glossary = GLOSSARY.read_text()

    assert len(terms_of(glossary)) > 100
    assert terms_in_several_rows(glossary) == []


def test_glossary_stays_short_enough_to_be_read() -> None:
    glossary = GLOSSARY.read_text()

    assert len(re.findall(r"^\| (?!word |---)", glossary, re.MULTILINE)) <= MAX_ROWS
    assert len(glossary.encode()) <= MAX_BYTES


def test_term_with_two_qualifiers_is_found_in_both_rows() -> None:
    head = "| word | meaning |\n|---|---|\n"
    again = (
        f"{head}| lease (of a mail), claim | a |\n\n{head}| Leases (of readings); limits | b |\n"
    )

    assert terms_in_several_rows(again) == ["lease"]
    assert terms_in_several_rows(f"{head}| lease | a |\n| read lease | b |\n") == []
