"""What the columns of a table are, as the schema declares them and as Cassandra has them.

A table of other columns than the schema's is none of postroad's, or of a release that this one
cannot share it with: it is refused by its differences, before anything is altered. Columns beside
those that are declared are no difference: a later release may have added them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from postroad.adapters.cassandra.connection.loop_bridge import Row
from postroad.errors import ViewRefused

NAMED = 3
"""How many differences an error names."""

_TABLE = re.compile(
    r"CREATE TABLE IF NOT EXISTS \{keyspace\}\.(\w+) \((.*)\)(?:\s*WITH .*)?$", re.S
)
_KEY = re.compile(r"PRIMARY KEY\s*\((?:\(([^()]*)\)|(\w+))(?:,([^()]*))?\)")

ColumnName = tuple[str, str]
"""Table and column."""


class Column(NamedTuple):
    """The type of a column, and its part in the key: `partition_key`, `clustering`, `static` or
    `regular`, with its place among those of its part."""

    type: str
    kind: str
    position: int = -1

    def __str__(self) -> str:
        return self.type if self.kind == "regular" else f"{self.type} ({self.kind})"


def declared_by(statement: str) -> dict[ColumnName, Column]:
    """Return the columns of the table that a statement of the schema creates."""
    created = _TABLE.match(statement)
    return dict(_of_table(created[1], created[2])) if created is not None else {}


def _of_table(table: str, body: str) -> Iterator[tuple[ColumnName, Column]]:
    key = _KEY.search(body)
    assert key is not None, f"the table {table} has no primary key"
    partition, clustering = _names(key[1] or key[2]), _names(key[3] or "")
    for line in _KEY.sub("", body).splitlines():
        name, _, rest = line.strip().rstrip(",").partition(" ")
        if not rest:
            continue
        kind = "static" if rest.endswith(" static") else "regular"
        position = -1
        for part, members in (("partition_key", partition), ("clustering", clustering)):
            if name in members:
                kind, position = part, members.index(name)
        yield (table, name), Column(rest.removesuffix(" static"), kind, position)


def _names(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]


def found_in(rows: Sequence[Row]) -> dict[ColumnName, Column]:
    """Return the columns that rows of `system_schema.columns` describe."""
    return {
        (row["table_name"], row["column_name"]): Column(row["type"], row["kind"], row["position"])
        for row in rows
    }


def differences(
    declared: Mapping[ColumnName, Column], found: Mapping[ColumnName, Column]
) -> list[str]:
    """Return how the tables that are there differ from those declared: each with what is found and
    what is wanted."""
    tables = {table for table, _ in found}
    return [
        _difference(name, wanted, found.get(name))
        for name, wanted in declared.items()
        if name[0] in tables and not _is_same(wanted, found.get(name))
    ]


def refuse_others(
    declared: Mapping[ColumnName, Column], found: Mapping[ColumnName, Column]
) -> None:
    """Raises: ViewRefused where tables differ."""
    differing = differences(declared, found)
    if differing:
        more = f", and {len(differing) - NAMED} more" if len(differing) > NAMED else ""
        raise ViewRefused(
            f"the keyspace has tables of other columns: {'; '.join(differing[:NAMED])}{more}",
            hint="use another keyspace; these tables are left as they are",
        )


def _difference(name: ColumnName, wanted: Column, found: Column | None) -> str:
    return f"{'.'.join(name)} is {found or 'missing'}, wanted is {wanted}"


def _is_same(wanted: Column, found: Column | None) -> bool:
    """Whether two columns are the same. Of a type that is nested, releases of Cassandra write
    `frozen` at different depths."""
    return found is not None and (
        (_bare(wanted.type), wanted.kind, wanted.position)
        == (_bare(found.type), found.kind, found.position)
    )


def _bare(name: str) -> str:
    return re.sub(r"frozen|[<>\s]", "", name)
