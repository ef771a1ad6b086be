"""The keyspace and its tables: creates what is missing, alters options that differ.

The statements are in `schema/NNNN_{pre,post}_*.cql`, and run in the order of their numbers. Those
of existing tables are skipped, so that a user without the right to create can still
check.
Hazard: Cassandra before 6 may give a table two ids when two hosts create it in the same moment;
let one process (the operator) create.

Columns of a table as the schema declares them and as Cassandra has them.

A table of other columns than the schema's is none of postroad's, or of a release that this one
cannot share it with: it is refused by its differences, before anything is altered. Columns beside
those that are declared are no difference: a later release may have added them."""

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from importlib import resources
from typing import NamedTuple

from postroad.adapters.cassandra.session import Row, Session
from postroad.errors import ViewRefused
from postroad.ports.view import FOREVER, SchemaChanges, TableOptions

NAMED = 3
"""Number of differences an error names."""

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
    """Return how the present tables differ from those declared: what is found, what is wanted."""
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
    """True if two columns are the same. Of a type that is nested, releases of Cassandra write
    `frozen` at different depths."""
    return found is not None and (
        (_bare(wanted.type), wanted.kind, wanted.position)
        == (_bare(found.type), found.kind, found.position)
    )


def _bare(name: str) -> str:
    return re.sub(r"frozen|[<>\s]", "", name)


AGING_TABLES = ("deleted_mails", "deliveries", "enqueued_mails")
"""The tables whose rows expire, in the order in which they are altered. A mark must not expire
before its row: marks get a longer lifetime before rows do, and never a shorter one again."""

Aging = tuple[int, dict[str, str], int]
"""Lifetime in seconds, compaction, gc_grace in seconds, as Cassandra stores them."""

_CREATED = re.compile(r"CREATE TABLE IF NOT EXISTS \{keyspace\}\.(\w+)")
_UNITS = (("DAYS", timedelta(days=1)), ("HOURS", timedelta(hours=1)))


def statements() -> Iterator[str]:
    """Yield the schema's statements in order, with their placeholders."""
    folder = resources.files("postroad.adapters.cassandra") / "schema"
    for file in sorted(folder.iterdir(), key=lambda each: each.name):
        if file.name.endswith(".cql"):
            text = re.sub(r"--[^\n]*", "", file.read_text())
            yield from (part for each in text.split(";") if (part := each.strip()))


def table_of(statement: str) -> str | None:
    found = _CREATED.match(statement)
    return found[1] if found else None


async def create(
    session: Session, options: TableOptions, check_home: Callable[[], Awaitable[None]]
) -> SchemaChanges:
    """Create what is missing, alter options that differ; return the changes. `check_home` is asked
    where tables are there that it can be read from. Raises: ViewError, also of `check_home`;
    ViewRefused, before anything is created or altered in a keyspace that has tables of these names
    with other columns."""
    await _create_keyspace(session, options)
    already, found = await _tables(session), await _columns(session)
    refuse_others(declared(), found)
    if "configuration_events" in already:
        await check_home()
    for statement in statements():
        if table_of(statement) not in already:
            await session.run(statement.replace("{aging}", aging(options)))
    present, altered = await _tables(session), []
    for table in AGING_TABLES:
        chosen = options_of(table, present[table], options)
        if present[table] != wanted(chosen):
            await session.run(f"ALTER TABLE {{keyspace}}.{table} WITH {aging(chosen)}")
            altered.append(table)
    created = sorted(present.keys() - already.keys())
    return SchemaChanges(tuple(created), tuple(altered))


def options_of(table: str, found: Aging, options: TableOptions) -> TableOptions:
    """Return the options for one table, whose present ones are `found`."""
    if table == "enqueued_mails":
        return options
    return replace(options, row_lifetime=max(options.row_lifetime, _lifetime(found[0])))


async def exists(session: Session) -> bool:
    """Return whether every table of the schema exists. Raises: ViewError."""
    tables = await _tables(session)
    return all(table_of(each) in tables for each in statements())


async def _columns(session: Session) -> dict[ColumnName, Column]:
    return found_in(
        await session.run(
            "SELECT table_name, column_name, type, kind, position FROM system_schema.columns"
            " WHERE keyspace_name = '{keyspace}'"
        )
    )


def declared() -> dict[ColumnName, Column]:
    return {name: each for text in statements() for name, each in declared_by(text).items()}


async def has_table(session: Session, table: str) -> bool:
    """Return whether one table exists. Raises: ViewError."""
    return table in await _tables(session)


async def replication_factor(session: Session, datacenter: str) -> int | None:
    """Return how many copies of a row a data center has; None: no keyspace. Raises: ViewError."""
    found = await session.run(
        "SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = '{keyspace}'"
    )
    return copies(found[0]["replication"], datacenter) if found else None


def copies(replication: Mapping[str, str], datacenter: str) -> int:
    """Return the copies in a data center, by a keyspace's replication as Cassandra stores it.

    >>> copies({"class": "…NetworkTopologyStrategy", "dc1": "3"}, "dc1")
    3
    """
    found = replication.get(datacenter) or replication.get("replication_factor") or "0"
    return int(found.partition("/")[0])  # "3/1": one of them a transient replica


async def row_lifetime(session: Session) -> timedelta | None:
    """Return how long rows are kept, None when there are no tables. Raises: ViewError."""
    aging_of = (await _tables(session)).get("enqueued_mails")
    return None if aging_of is None else _lifetime(aging_of[0])


def aging(options: TableOptions) -> str:
    """Return the table options that let rows expire, in CQL."""
    lifetime, compaction, gc_grace = wanted(options)
    parts = ", ".join(f"'{name}': '{value}'" for name, value in compaction.items())
    return (
        f"default_time_to_live = {lifetime} AND gc_grace_seconds = {gc_grace}"
        f" AND compaction = {{{parts}}}"
    )


def wanted(options: TableOptions) -> Aging:
    """Return lifetime in seconds, compaction, gc_grace in seconds, as Cassandra stores them."""
    window = options.compaction_window
    unit, length = next(
        ((unit, length) for unit, length in _UNITS if window % length == timedelta(0)),
        ("MINUTES", timedelta(minutes=1)),
    )
    compaction = {
        "class": "TimeWindowCompactionStrategy",
        "compaction_window_unit": unit,
        "compaction_window_size": str(max(1, -(-window // length))),
    }
    lifetime = 0 if options.row_lifetime == FOREVER else _seconds(options.row_lifetime)
    return lifetime, compaction, _seconds(options.gc_grace)


async def _create_keyspace(session: Session, options: TableOptions) -> None:
    """Create a missing keyspace only: the user may have the right to create tables alone."""
    found = await session.run(
        "SELECT keyspace_name FROM system_schema.keyspaces WHERE keyspace_name = '{keyspace}'"
    )
    if not found:
        replication = ", ".join(
            f"{quoted(key)}: {quoted(value)}" for key, value in options.replication.items()
        )
        await session.run(
            f"CREATE KEYSPACE IF NOT EXISTS {{keyspace}} WITH replication = {{{replication}}}"
        )


def quoted(text: str) -> str:
    """Return a text as a literal of CQL.

    >>> quoted("o'neill")
    "'o''neill'"
    """
    return "'" + text.replace("'", "''") + "'"


async def _tables(session: Session) -> dict[str, Aging]:
    rows = await session.run(
        "SELECT table_name, default_time_to_live, compaction, gc_grace_seconds"
        " FROM system_schema.tables WHERE keyspace_name = '{keyspace}'"
    )
    return {
        row["table_name"]: (
            row["default_time_to_live"],
            {
                name: value.rpartition(".")[2] if name == "class" else value
                for name, value in row["compaction"].items()
                if name in ("class", "compaction_window_unit", "compaction_window_size")
            },
            row["gc_grace_seconds"],
        )
        for row in rows
    }


def _lifetime(seconds: int) -> timedelta:
    """Return a lifetime; Cassandra's 0 means that rows never expire."""
    return timedelta(seconds=seconds) if seconds else FOREVER


def _seconds(duration: timedelta) -> int:
    return round(duration.total_seconds())
