"""The schema's files, and that the statements fit them."""

from __future__ import annotations

import re
from datetime import timedelta
from importlib import resources

import pytest

from postroad.adapters.cassandra import mark_statements, schema, statements
from postroad.adapters.cassandra.session import Statement
from postroad.adapters.cassandra.view import shared_state, view
from postroad.ports.view import TableOptions


def columns() -> dict[str, set[str]]:
    """The columns of every table."""
    found: dict[str, set[str]] = {}
    for statement in schema.statements():
        table = schema.table_of(statement)
        assert table is not None, f"the schema creates tables, and nothing else: {statement}"
        found[table] = set(re.findall(r"^    (\w+) [a-z]", statement, re.MULTILINE))
    return found


def test_files_are_numbered_without_gaps_and_say_when_they_run() -> None:
    folder = resources.files("postroad.adapters.cassandra") / "schema"
    names = sorted(file.name for file in folder.iterdir())

    assert names
    for number, name in enumerate(names, 1):
        assert re.fullmatch(rf"{number:04}_(pre|post)_\w+\.cql", name)


def test_every_statement_names_columns_that_its_table_has() -> None:
    tables = columns()
    written = 0
    for each in _statements():
        inserted = re.match(r"INSERT INTO \{keyspace\}\.(\w+) \(([^)]*)\)", each.cql)
        updated = re.match(r"UPDATE \{keyspace\}\.(\w+) .*?SET (.*?) WHERE", each.cql)
        if inserted is not None:
            assert set(inserted[2].split(", ")) <= tables[inserted[1]]
        if updated is not None:
            assert set(re.findall(r"(\w+) = ", updated[2])) <= tables[updated[1]]
        written += inserted is not None or updated is not None
    assert written >= 14


def test_every_statement_reads_columns_that_its_table_has() -> None:
    tables = columns()
    looked_at = 0

    for each in _statements():
        table = re.search(r"\{keyspace\}\.(\w+)", each.cql)
        if table is None:
            continue
        plain = re.sub(r"count\(\*\)|AS \w+|'\w+'", "", each.cql)
        chosen = re.match(r"SELECT (?:DISTINCT )?(.*?) FROM", plain)
        condition = re.search(r" IF (?!NOT EXISTS|EXISTS)(.*)$", plain)
        names = re.findall(r"\b[a-z]\w*\b(?!\()", chosen[1]) if chosen else []
        names += re.findall(r"(\w+) =", condition[1]) if condition else []
        assert set(names) <= tables[table[1]], each.cql
        looked_at += len(names)
    assert looked_at > 100


def test_marks_repeat_the_traits_of_rows_under_the_same_names() -> None:
    tables = columns()

    assert {"due_at", "held"} <= tables["enqueued_mails"] & tables["deleted_mails"]


@pytest.mark.parametrize(
    ("window", "unit", "size"),
    [
        (timedelta(hours=12), "HOURS", "12"),
        (timedelta(days=3), "DAYS", "3"),
        (timedelta(minutes=20), "MINUTES", "20"),
        (timedelta(seconds=30), "MINUTES", "1"),
    ],
    ids=["hours", "days", "minutes", "less than a minute"],
)
def test_a_compaction_window_is_written_in_cassandras_units(
    window: timedelta, unit: str, size: str
) -> None:
    options = TableOptions({}, timedelta(days=14), window, timedelta(hours=3))

    assert schema.aging(options) == (
        "default_time_to_live = 1209600 AND gc_grace_seconds = 10800 AND compaction ="
        " {'class': 'TimeWindowCompactionStrategy',"
        f" 'compaction_window_unit': '{unit}', 'compaction_window_size': '{size}'}}"
    )


def _statements() -> list[Statement]:
    modules = (
        statements,
        mark_statements,
        statements,
        view,
        shared_state,
        shared_state,
    )
    named = [each for module in modules for each in vars(module).values()]
    return [each for each in named if isinstance(each, Statement)]
