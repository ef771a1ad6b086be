"""Sentences name the component that acts, as docs/contributing/sentences.md says."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from support.repository import ROOT, needs_a_clone, texts

SYSTEM_USER = "no" + "body"
WORDS_OF_OTHERS = {"tests/peers/postfix.py": [SYSTEM_USER]}
"""Words that the guide forbids and that a file has to use: the name of a system's user."""


def unclear_words(guide: str) -> re.Pattern[str]:
    """The words in the first column of the guide's table, in names too and over line ends, for a
    text in lower case: to ignore case takes five times as long."""
    table = guide.split("| not | instead |")[1].split("\n\n")[0]
    cells = re.findall(r"^\| (`[^|]*) \|", table, re.MULTILINE)
    words = [word for cell in cells for word in re.findall(r"`([a-z ]+)`", cell)]
    either = "|".join(r"[\s_#]+".join(word.split()) for word in words)
    return re.compile(rf"(?<![a-z])(?:{either})(?![a-z])")


@needs_a_clone
def test_every_sentence_names_the_component_that_acts() -> None:
    unclear = unclear_words((ROOT / "docs/contributing/sentences.md").read_text())
    found = {
        name: words
        for name, text in texts("operator", "tests", "docs", "README.md")
        if name != "docs/contributing/sentences.md" and (words := unclear.findall(text.lower()))
    }

    assert found == WORDS_OF_OTHERS, "write them as docs/contributing/sentences.md says"


@pytest.mark.parametrize(
    "text",
    ["One waits", "test_a_thing_that_one_waits_for", "it one\n    # waits", "(One  waits)"],
)
def test_unclear_words_are_found_in_names_and_over_line_ends(text: str) -> None:
    guide = "| not | instead |\n|---|---|\n| `one waits`, `other` | `this` |\n\n`that`"

    assert unclear_words(guide).search(text.lower())
    assert not unclear_words(guide).search("nones wait; one waitsy; this and that")


QUESTION = re.compile(r"(?:What|Whether|How|Which|Where)\b")
BOUND = re.compile(r"\b_?(?:MOST|LONGEST|LARGEST|LEAST|SOONEST|SHORTEST|FEWEST)(?:_[A-Z_]+)?\b")


def docstrings(code: str) -> Iterator[str]:
    """Yield the strings that stand alone: of modules, classes, functions, and behind values."""
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.Expr(ast.Constant(str() as text)):
                yield text


def test_docstrings_behind_values_and_of_functions_are_found() -> None:
    code = 'A = 1\n"""What A is."""\ndef f() -> None:\n    """How f works."""\n'

    assert [bool(QUESTION.match(each)) for each in docstrings(code)] == [True, True]
    assert not QUESTION.match("Whatever")


def test_a_docstring_begins_with_a_verb_or_a_noun() -> None:
    found = {
        name: [each for each in docstrings(text) if QUESTION.match(each)]
        for name, text in texts("operator")
        if name.endswith(".py")
    }

    assert found
    assert {name: each for name, each in found.items() if each} == {}


def test_bounds_are_named_max_and_min() -> None:
    assert BOUND.search("MOST_HOSTS = 3")
    assert not BOUND.search("AT_LEAST and ALMOST")
    found = {
        name: BOUND.findall(text)
        for name, text in texts("operator", "tests")
        if name.endswith(".py") and name != "tests/unit/test_sentences.py"
    }

    assert {name: each for name, each in found.items() if each} == {}
