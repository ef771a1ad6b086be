"""The words of public classes, of tables and of metrics are in the glossary, or are ordinary."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
CODE = ROOT / "operator/postroad"
ROOMS = ("domain", "routing", "scheduling", "ports", "distributed", "embedded", "pipeline")

ORDINARY = frozenset(
    re.findall(
        r"\w+",
        # Structures and their parts; time; states and deeds of any program; networks and files.
        """
        batch field head header kind layout line meter month name option part pipeline readable
        report scan
        scanner snapshot source space state table
        backoff clock pause randomness second timing thread total
        candidate change check closeable configured count create decision delete detector done open
        effective end error fail failure filling finish found free identifier no not owned read
        rebuilt refuse
        seen selectable skipped store wait watch work written wrong
        advance ascending code connection disk enhanced handshake lock mode network protocol
        received refusal remote serving tls
        build info last success timestamp
        """,
    )
)
"""Words that mean here what they mean in any program. A word of mail, of queues or of the servers
gets a row in the glossary instead."""


def root_of(word: str) -> str:
    """Return what a word has in common with its plural, its participle and its opposite."""
    word = word.lower().removeprefix("un")
    word = re.sub(r"ies$", "y", word)
    word = re.sub(r"(?<![su])s$", "", word)
    return re.sub(r"(?<=..)(?:ed|er|e)$", "", word)


def names_of_classes() -> set[str]:
    return {
        node.name
        for room in ROOMS
        for path in (CODE / room).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    }


def names_of_tables() -> set[str]:
    schema = "".join(path.read_text() for path in CODE.rglob("schema/*.cql"))
    return set(re.findall(r"CREATE TABLE IF NOT EXISTS \{keyspace\}\.(\w+)", schema))


def names_of_metrics() -> set[str]:
    return set(re.findall(r'"postroad_(\w+)"', (CODE / "telemetry/metrics.py").read_text()))


def words_of(name: str) -> list[str]:
    """Return the words of `CamelCase` and of `snake_case`."""
    return re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)


def unexplained(names: set[str], glossary: str) -> dict[str, list[str]]:
    """Return the names with words that neither a first column of the glossary nor ORDINARY has."""
    defined = " ".join(re.findall(r"^\| ([^|]*) \|", glossary, re.MULTILINE))
    known = {root_of(word) for word in {*re.findall(r"[A-Za-z]+", defined), *ORDINARY}}
    found = {
        name: [word for word in words_of(name) if root_of(word) not in known] for name in names
    }
    return {name: words for name, words in found.items() if words}


def test_every_word_of_a_class_a_table_or_a_metric_is_explained() -> None:
    classes, tables, metrics = names_of_classes(), names_of_tables(), names_of_metrics()
    assert len(classes) > 100
    assert "enqueued_mails" in tables
    assert "late_mails_total" in metrics

    glossary = (ROOT / "docs/glossary.md").read_text()

    assert unexplained(classes | tables | metrics, glossary) == {}


def test_a_word_that_is_not_explained_is_found_in_every_form() -> None:
    glossary = "| word | meaning |\n|---|---|\n| purge, drained | of a dead letter |\n"

    assert unexplained({"PurgedBlobs", "undrained_slices"}, glossary) == {
        "PurgedBlobs": ["Blobs"],
        "undrained_slices": ["slices"],
    }
    assert unexplained({"DrainChecks", "purges_total"}, glossary) == {}
