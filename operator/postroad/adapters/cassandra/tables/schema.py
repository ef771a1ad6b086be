"""The keyspace and its tables: creates what is missing, alters options that differ.

The statements are in `schema/NNNN_{pre,post}_*.cql`, and run in the order of their numbers. Those
of existing tables are skipped, so that a user without the right to create can still
check.
Hazard: Cassandra before 6 may give a table two ids when two hosts create it in the same moment;
let one process (the operator) create.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from importlib import resources

from postroad.adapters.cassandra.connection.session import Session
from postroad.adapters.cassandra.tables.table_columns import (
    Column,
    ColumnName,
    declared_by,
    found_in,
    refuse_others,
)
from postroad.ports.view import FOREVER, SchemaChanges, TableOptions

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
    """Return the table that a statement creates, or None."""
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
    """Return the columns of the schema."""
    return {name: each for text in statements() for name, each in declared_by(text).items()}


async def has_table(session: Session, table: str) -> bool:
    """Return whether one table exists. Raises: ViewError."""
    return table in await _tables(session)


async def replication_factor(session: Session, datacenter: str) -> int | None:
    """Return how many copies of a row a data center has; None when there is no keyspace.
    Raises: ViewError."""
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
